"""Quotas: how many snapshots one sandbox may have, and how much disk they may take.

They are the daemon's, by environment. Going to sleep is never refused: it frees CPU and RAM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torpor.base.units import GIB, format_bytes
from torpor.errors import InvalidRequest, LimitExceeded
from torpor.layers.store import LayerStore
from torpor.model import SandboxId

COUNT = "TORPOR_MAX_SNAPSHOTS_PER_SANDBOX"
SIZE = "TORPOR_MAX_SNAPSHOT_GIB_PER_SANDBOX"


@dataclass(frozen=True, slots=True)
class Quota:
    """What the snapshots of one sandbox may be, those of its sleep counted in."""

    max_snapshots: int = 1000
    max_snapshot_bytes: int | None = None
    """None: as much as the disk has."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> Quota:
        """Return the quotas that the environment names, the defaults where it names none.

        Raises:
            InvalidRequest: a value is not a number, or is too small.
        """
        count, size = Quota().max_snapshots, None
        if environment.get(COUNT):
            count = int(_number(COUNT, environment[COUNT], whole=True))
        if environment.get(SIZE):
            size = int(_number(SIZE, environment[SIZE], whole=False) * GIB)
        return Quota(count, size)

    def check(self, store: LayerStore, sandbox_id: SandboxId) -> None:
        """Raise `LimitExceeded`, with the numbers, unless the sandbox may have one more snapshot."""
        found = store.snapshots(sandbox_id)
        if len(found) >= self.max_snapshots:
            raise LimitExceeded(
                f"sandbox {sandbox_id} has {len(found)} snapshots; {self.max_snapshots} are allowed",
                hint=f"delete some (torpor snapshots {sandbox_id}), or start the daemon with a larger {COUNT}",
                sandbox_id=sandbox_id,
                snapshots=len(found),
                max_snapshots=self.max_snapshots,
            )
        size = sum(manifest.info.size_bytes for manifest in found)
        if self.max_snapshot_bytes is not None and size >= self.max_snapshot_bytes:
            raise LimitExceeded(
                f"the {len(found)} snapshots of sandbox {sandbox_id} take {format_bytes(size)}; "
                f"{format_bytes(self.max_snapshot_bytes)} are allowed",
                hint=f"delete some (torpor snapshots {sandbox_id}), or start the daemon with a larger {SIZE}",
                sandbox_id=sandbox_id,
                snapshot_bytes=size,
                max_snapshot_bytes=self.max_snapshot_bytes,
            )


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise InvalidRequest(
            f"{name} is {text!r}; a {'whole ' if whole else ''}number above 0 is wanted",
            hint=f"correct {name} or leave it out",
        )
    return value
