"""Which of a sandbox's snapshots a drill takes: the newest, the oldest and a random one in turn."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from torpor.errors import NotFound
from torpor.model import SandboxId, SnapshotInfo
from torpor.model_drills import Choice, DrillInfo

TURN: tuple[Choice, ...] = ("newest", "oldest", "random")
_TAKEN_TO_KEEP = frozenset({"snapshot", "hibernate"})
_WRECKS = ("failed-chg_", "boot-chg_")
"""Labels of the machine as a change left it that was rolled back, and of what it was booted from."""


def candidates(snapshots: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
    """Return the snapshots that a drill of their sandbox may take, newest first."""
    return sorted(
        (
            info
            for info in snapshots
            if info.reason in _TAKEN_TO_KEEP and not (info.label or "").startswith(_WRECKS)
        ),
        key=lambda info: (info.created_at, info.id),
        reverse=True,
    )


def choose(
    sandbox_id: SandboxId, snapshots: Sequence[SnapshotInfo], earlier: Sequence[DrillInfo]
) -> tuple[SnapshotInfo, Choice]:
    """Return the next snapshot to try, and which one it is.

    Args:
        sandbox_id: whose they are.
        snapshots: all of the sandbox.
        earlier: its drills, newest first.

    Raises:
        NotFound: it has none.
    """
    found = candidates(snapshots)
    if not found:
        raise NotFound(
            f"sandbox {sandbox_id} has no snapshot that could be restored",
            hint=f"take one: torpor snapshot {sandbox_id}",
            sandbox_id=sandbox_id,
        )
    last = next((info.choice for info in earlier if info.choice in TURN), "random")
    choice = TURN[(TURN.index(last) + 1) % len(TURN)]
    if choice == "newest":
        return found[0], choice
    if choice == "oldest":
        return found[-1], choice
    inner = found[1:-1] or found  # the ends have turns of their own
    return secrets.choice(inner), choice
