"""Snapshots that are known to be good: a change was kept after its checks passed, or a drill brought it back whole.

The newest of each sandbox is its last way back: retention never takes it, and neither does a user without `force`.
The marks are held in memory, and durable in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from torpor.db.good_snapshots import GoodRows
from torpor.errors import LastGoodSnapshot
from torpor.model import Goodness, SandboxId, SnapshotId, SnapshotInfo


class GoodSnapshots:
    """Which snapshots are known to be good."""

    def __init__(self, rows: GoodRows) -> None:
        self._rows = rows
        self._marks: dict[SnapshotId, Goodness] = {}

    async def load(self, known: Iterable[SnapshotId]) -> None:
        """Read what an earlier daemon wrote; marks of snapshots that are gone are dropped."""
        there = set(known)
        self._marks = await asyncio.to_thread(self._rows.all)
        for snapshot_id in [found for found in self._marks if found not in there]:
            await self.forget(snapshot_id)

    async def mark(self, snapshot_id: SnapshotId, mark: Goodness) -> None:
        """Mark a snapshot as good; in force before this returns."""
        self._marks[snapshot_id] = mark
        await asyncio.to_thread(self._rows.put, snapshot_id, mark)

    async def forget(self, snapshot_id: SnapshotId) -> None:
        """Take the mark off, as the snapshot is found not to be good, or is gone; none is no error."""
        if snapshot_id in self._marks:
            await asyncio.to_thread(self._rows.drop, snapshot_id)
            self._marks.pop(snapshot_id, None)

    def seen(self, info: SnapshotInfo) -> SnapshotInfo:
        """Return `info` with its mark."""
        mark = self._marks.get(info.id)
        return info if mark is None else replace(info, good=mark)

    def last(self, snapshots: Iterable[SnapshotInfo]) -> dict[SandboxId, SnapshotInfo]:
        """Return the newest good snapshot of each sandbox."""
        found: dict[SandboxId, SnapshotInfo] = {}
        for info in snapshots:
            if info.sandbox_id is None or info.id not in self._marks:
                continue
            before = found.get(info.sandbox_id)
            if before is None or (before.created_at, before.id) < (info.created_at, info.id):
                found[info.sandbox_id] = self.seen(info)
        return found

    def check_not_last(self, info: SnapshotInfo, snapshots: Iterable[SnapshotInfo]) -> None:
        """Raise `LastGoodSnapshot` when a snapshot is the newest good one of its sandbox."""
        if info.sandbox_id is None or info.id not in self._marks:
            return
        if self.last(snapshots)[info.sandbox_id].id != info.id:
            return
        mark = self._marks[info.id]
        raise LastGoodSnapshot(
            f"snapshot {info.id} is the last one of sandbox {info.sandbox_id} that is known to be good: "
            f"{mark.reason}",
            hint=f"prove a newer one first (torpor drill {info.sandbox_id}), or force it: "
            f"torpor snapshot rm {info.id} --force",
            snapshot_id=info.id,
            sandbox_id=info.sandbox_id,
            found_by=mark.found_by,
        )
