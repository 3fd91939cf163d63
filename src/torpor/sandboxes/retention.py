"""Snapshots that nobody asked for by name, and that go by themselves.

A snapshot that a user took is kept until the user removes it. Two kinds are made along the way: one for each fork
of a running sandbox, and one for each sleep. The first goes when no sandbox and no snapshot comes from it any
more; of the second, the last of each sandbox stays. One that has a label is the user's, and one that is protected
stays until nobody needs it (see `protect`). The last of a sandbox that is known to be good stays, whatever it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from torpor.model import SandboxInfo, SandboxState, SnapshotId, SnapshotInfo

GRACE = timedelta(minutes=10)
"""Nothing younger goes: it may be about to be used."""
_AT_IT = frozenset(
    {SandboxState.HIBERNATED, SandboxState.WAKING, SandboxState.RESTORING, SandboxState.HIBERNATING}
)


def superseded(
    snapshots: Iterable[SnapshotInfo],
    sandboxes: Iterable[SandboxInfo],
    now: datetime,
    *,
    last_good: Collection[SnapshotId] = (),
) -> list[SnapshotId]:
    """Return the snapshots that can go; never one of `last_good`, the newest good one of each sandbox."""
    known = list(snapshots)
    living = list(sandboxes)
    parents = {s.parent for s in known} | {s.parent_snapshot for s in living}
    asleep = {s.parent_snapshot for s in living if s.state in _AT_IT}
    last_sleep: dict[str, SnapshotInfo] = {}
    for snapshot in known:
        if snapshot.reason == "hibernate" and snapshot.sandbox_id is not None:
            before = last_sleep.get(snapshot.sandbox_id)
            if before is None or before.created_at < snapshot.created_at:
                last_sleep[snapshot.sandbox_id] = snapshot
    old = [
        s
        for s in known
        if s.label is None
        and not s.protected
        and s.id not in last_good
        and s.created_at < now - GRACE
    ]
    return [
        s.id
        for s in old
        if (s.reason == "fork" and s.id not in parents)
        or (
            s.reason == "hibernate"
            and s.id not in asleep
            and s is not last_sleep.get(str(s.sandbox_id))
        )
    ]
