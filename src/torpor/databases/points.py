"""Snapshots of databases: points of their volumes that their rows know.

A volume's snapshot gets its id from the row, which names it as loose before it is made and after it was dropped. So one
that a dead daemon left without a row is found, and its label is free again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from torpor.base.faults import reach
from torpor.base.ids import new_id
from torpor.databases import server
from torpor.databases.lives import Rooms
from torpor.db.databases import DatabaseRow
from torpor.errors import Conflict, NotFound
from torpor.model import SandboxId
from torpor.model_databases import DatabaseSnapshot
from torpor.model_volumes import VolumeSnapshotId


@dataclass(frozen=True, slots=True)
class Points:
    """Takes and drops them. The database's turn is held."""

    rooms: Rooms

    async def take(self, row: DatabaseRow, label: str | None) -> DatabaseRow:
        """Take a snapshot of a database whose machine runs; it is the last of its row.

        Raises:
            Conflict: a snapshot of it, or of its volume, has that label.
        """
        if label is not None and any(s.label == label for s in row.snapshots):
            raise Conflict(
                f"database {row.name} has a snapshot with the label {label!r} already",
                hint="choose another label or delete that snapshot",
            )
        row = await self.tidy(row)
        engine, shelf = self.rooms.engine, self.rooms.shelf
        async with engine.guest(SandboxId(str(row.sandbox_id))) as guest:
            wal_file = await server.checkpoint(guest)
        wanted = VolumeSnapshotId(new_id("vsnap"))
        await shelf.change(row.id, lambda r: replace(r, loose=(wanted,)))
        reach("database.snapshot.intent")
        point = await engine.volumes.snapshot(str(row.volume_id), label=label, snapshot_id=wanted)
        reach("database.snapshot.taken")
        made = DatabaseSnapshot(id=point.id, label=label, at=point.created_at, wal_file=wal_file)
        return await shelf.change(
            row.id, lambda r: replace(r, snapshots=(*r.snapshots, made), loose=())
        )

    async def drop(self, row: DatabaseRow, snapshot: DatabaseSnapshot) -> None:
        """Delete a snapshot of a database."""
        row = await self.tidy(row)
        row = await self.rooms.shelf.change(
            row.id,
            lambda r: replace(
                r, snapshots=tuple(s for s in r.snapshots if s != snapshot), loose=(snapshot.id,)
            ),
        )
        reach("database.snapshot.dropping")
        await self.tidy(row)

    async def tidy(self, row: DatabaseRow) -> DatabaseRow:
        """Remove the snapshots of a database's volume that were not taken to the end, or not dropped to it."""
        if not row.loose:
            return row
        for snapshot_id in row.loose:
            with contextlib.suppress(NotFound):
                await self.rooms.engine.volumes.delete_snapshot(str(row.volume_id), snapshot_id)
        return await self.rooms.shelf.change(row.id, lambda r: replace(r, loose=()))
