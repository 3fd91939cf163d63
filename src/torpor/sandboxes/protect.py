"""Snapshots that must not go: each has holders, who say why. Held in memory, and durable in the database.

Whoever needs a snapshot later (a change that may have to go back to it, say) protects it under a name of its own.
Neither a user nor retention deletes it until every holder has let go.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime

from torpor.db.protections import Protection, ProtectionRows
from torpor.errors import Conflict
from torpor.model import SnapshotId, SnapshotInfo


class Protections:
    """Who needs which snapshot."""

    def __init__(self, rows: ProtectionRows) -> None:
        self._rows = rows
        self._by_snapshot: dict[SnapshotId, dict[str, str]] = {}

    async def load(self) -> None:
        """Read what an earlier daemon wrote."""
        self._by_snapshot.clear()
        for found in await asyncio.to_thread(self._rows.all):
            self._note(found)

    async def put(self, wanted: Protection, at: datetime) -> None:
        """Protect a snapshot; in force when this returns, and before."""
        self._note(wanted)
        await asyncio.to_thread(self._rows.put, wanted, at)

    async def drop(self, snapshot_id: SnapshotId | None, holder: str) -> None:
        """End a holder's protection of one snapshot, or of all; none is no error."""
        await asyncio.to_thread(self._rows.drop, snapshot_id, holder)
        for known in [snapshot_id] if snapshot_id else list(self._by_snapshot):
            holders = self._by_snapshot.get(known, {})
            holders.pop(holder, None)
            if not holders:
                self._by_snapshot.pop(known, None)

    def _note(self, wanted: Protection) -> None:
        self._by_snapshot.setdefault(wanted.snapshot_id, {})[wanted.holder] = wanted.reason

    def __contains__(self, snapshot_id: object) -> bool:
        return snapshot_id in self._by_snapshot

    def reasons(self, snapshot_id: SnapshotId) -> tuple[str, ...]:
        """Return why a snapshot is protected, by holder; empty when it is not."""
        return tuple(reason for _, reason in sorted(self._by_snapshot.get(snapshot_id, {}).items()))

    def seen(self, info: SnapshotInfo) -> SnapshotInfo:
        """Return `info` with why it is protected."""
        reasons = self.reasons(info.id)
        return replace(info, protected=reasons) if reasons else info

    def check_free(self, snapshot_id: SnapshotId) -> None:
        """Raise `Conflict`, with the reasons, while a snapshot is protected."""
        reasons = self.reasons(snapshot_id)
        if reasons:
            raise Conflict(
                f"snapshot {snapshot_id} is needed: {'; '.join(reasons)}",
                hint="end what needs it first",
                reasons=reasons,
            )
