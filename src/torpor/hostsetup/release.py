"""The one Firecracker that `torpor host setup` installs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """A release as its makers publish it."""

    version: str
    url: str
    """Of the archive; a gzipped tar."""
    sha256: str
    """Of the archive."""

    def member(self, program: str) -> str:
        """Return the name that `program` has in the archive."""
        return f"release-v{self.version}-x86_64/{program}-v{self.version}-x86_64"


_SITE = "https://github.com/firecracker-microvm/firecracker/releases/download"

PINNED = Release(
    version="1.12.1",
    url=f"{_SITE}/v1.12.1/firecracker-v1.12.1-x86_64.tgz",
    sha256="0a75e67ef6e4c540a2cf248b06822b0be9820cbba9fe19f9e0321200fe76ff6b",
)
"""The version that the tests run with; another one is used when `TORPOR_FIRECRACKER` names it."""
