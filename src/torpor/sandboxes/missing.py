"""What is answered for ids of nothing; the server says the same of what is in another workspace."""

from __future__ import annotations

from torpor.errors import NotFound


def no_sandbox(sandbox_id: str) -> NotFound:
    """Return the error for a sandbox that does not exist."""
    return NotFound(
        f"there is no sandbox {sandbox_id}", hint="list them: torpor ls", sandbox_id=sandbox_id
    )


def no_snapshot(snapshot_id: str) -> NotFound:
    """Return the error for a snapshot that does not exist."""
    return NotFound(
        f"there is no snapshot {snapshot_id}",
        hint="list them: torpor snapshots",
        snapshot_id=snapshot_id,
    )
