"""Rows that say which snapshots are known to be good, who found it and when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, insert, select

from torpor.db.database import Database
from torpor.db.sandboxes import micros
from torpor.db.tables_recovery import good_snapshot
from torpor.model import Goodness, SnapshotId

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class GoodRows:
    """Reads and writes marks. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[SnapshotId, Goodness]:
        """Return every mark, by snapshot."""
        with self._database.transaction() as connection:
            found = connection.execute(select(good_snapshot)).mappings()
            return {
                SnapshotId(row["snapshot_id"]): Goodness(
                    found_by=row["found_by"],
                    reason=row["reason"],
                    found_at=_EPOCH + timedelta(microseconds=row["found_at"]),
                )
                for row in found
            }

    def put(self, snapshot_id: SnapshotId, mark: Goodness) -> None:
        """Mark a snapshot, in place of the mark that it has."""
        values = {
            "snapshot_id": snapshot_id,
            "found_by": mark.found_by,
            "reason": mark.reason,
            "found_at": micros(mark.found_at),
        }
        with self._database.transaction() as connection:
            connection.execute(self._of(snapshot_id))
            connection.execute(insert(good_snapshot).values(**values))

    def drop(self, snapshot_id: SnapshotId) -> None:
        """Take a snapshot's mark off; none is no error."""
        with self._database.transaction() as connection:
            connection.execute(self._of(snapshot_id))

    @staticmethod
    def _of(snapshot_id: SnapshotId) -> object:
        return delete(good_snapshot).where(good_snapshot.c.snapshot_id == snapshot_id)
