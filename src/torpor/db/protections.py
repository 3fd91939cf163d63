"""Rows that say which snapshots somebody needs, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import DatabaseError

from torpor.db.database import Database, translate
from torpor.db.sandboxes import micros
from torpor.db.tables import protection
from torpor.model import SnapshotId


@dataclass(frozen=True, slots=True)
class Protection:
    """One need of one holder."""

    snapshot_id: SnapshotId
    holder: str
    reason: str


class ProtectionRows:
    """Reads and writes protections. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[Protection]:
        """Return every protection."""
        with self._database.begin() as connection:
            found = connection.execute(select(protection)).mappings()
            return [
                Protection(SnapshotId(row["snapshot_id"]), row["holder"], row["reason"])
                for row in found
            ]

    def put(self, wanted: Protection, at: datetime) -> None:
        """Add a protection, or replace the reason of the one that its holder has."""
        same = self._one(wanted.snapshot_id, wanted.holder)
        values = {
            "snapshot_id": wanted.snapshot_id,
            "holder": wanted.holder,
            "reason": wanted.reason,
            "created_at": micros(at),
        }
        self._write(delete(protection).where(*same), insert(protection).values(**values))

    def drop(self, snapshot_id: SnapshotId | None, holder: str) -> None:
        """Remove a holder's protection of one snapshot, or all of them."""
        self._write(delete(protection).where(*self._one(snapshot_id, holder)))

    @staticmethod
    def _one(snapshot_id: SnapshotId | None, holder: str) -> list[Any]:
        found: list[Any] = [protection.c.holder == holder]
        if snapshot_id is not None:
            found.append(protection.c.snapshot_id == snapshot_id)
        return found

    def _write(self, *statements: Any) -> None:
        try:
            with self._database.begin() as connection:
                for statement in statements:
                    connection.execute(statement)
        except DatabaseError as exc:
            raise translate(exc, str(self._database.engine.url.database)) from exc
