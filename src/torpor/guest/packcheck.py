"""A guest's tar stream, checked as it passes: whoever unpacks it on the host must not be led astray."""

from __future__ import annotations

from typing import Final

from torpor.errors import GuestFailed
from torpor_guest.tarstream import BadTar, Member, TarReader

_MAX_DEPTH: Final = 1024


class PackCheck:
    """Follows a stream that our agent packed; raises when it is one that our agent would never pack.

    Names are relative, have no `..`, come once, parents before children and in order, and no entry lies below a
    symlink. Since the order is fixed, only the folders above the last entry are remembered.
    """

    def __init__(self) -> None:
        self._reader = TarReader()
        self._folders: list[bytes] = []
        """The names of the folders that are open, from the top."""
        self._last: tuple[bytes, ...] = ()

    def feed(self, data: bytes) -> None:
        """Look at the next bytes.

        Raises:
            GuestFailed: they are no honest archive; they must not be handed on.
        """
        try:
            for event in self._reader.feed(data):
                if isinstance(event, Member):
                    self._check(event)
        except BadTar as exc:
            raise GuestFailed(f"the guest packed what must not be unpacked: {exc}") from exc

    def finish(self) -> None:
        """Raise `GuestFailed` unless the archive came whole."""
        try:
            self._reader.finish()
        except BadTar as exc:
            raise GuestFailed(f"the guest's archive is not whole: {exc}") from exc

    def _check(self, member: Member) -> None:
        parts = tuple(part.encode("utf-8", "surrogateescape") for part in member.name.split("/"))
        if member.kind == "hardlink" or not member.name:
            raise BadTar(f"{member.name[:200]!r} is a hard link or nameless")
        if parts <= self._last:
            raise BadTar(f"{member.name[:200]!r} comes twice or out of order")
        if len(parts) > _MAX_DEPTH:
            raise BadTar(f"{member.name[:200]!r} lies too deep")
        del self._folders[len(parts) - 1 :]
        if tuple(self._folders) != parts[:-1]:
            raise BadTar(f"{member.name[:200]!r} lies in no folder of the archive")
        if member.kind == "dir":
            self._folders.append(parts[-1])
        self._last = parts
