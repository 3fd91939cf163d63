"""Rows of databases. Their passwords are not here: see `torpor.databases.passwords`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DatabaseError

from torpor.db.database import Database, translate
from torpor.db.tables import database
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_databases import DatabaseAttachment, DatabaseId, DatabaseSnapshot

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRow:
    """A database as the daemon keeps it."""

    id: DatabaseId
    name: str
    created_at: datetime
    state: Literal["creating", "ready", "deleting"]
    """`creating` is undone by the next daemon, `deleting` finished."""
    size_bytes: int
    ram_mib: int
    vcpus: int
    workspace: str = DEFAULT_WORKSPACE
    idle_seconds: int | None = None
    sandbox_id: str | None = None
    volume_id: str | None = None
    keeps_volume: bool = False
    """Of one that is `deleting`."""
    port: int | None = None
    server_version: str | None = None
    parent: str | None = None
    is_password_set: bool = False
    """Whether the server is known to have the password that is kept; else it is set before anyone connects."""
    snapshots: tuple[DatabaseSnapshot, ...] = ()
    """The oldest first."""
    loose: tuple[str, ...] = ()
    """Snapshots of its volume that are being taken or dropped; the next daemon removes them."""
    attachments: tuple[DatabaseAttachment, ...] = ()


class DatabaseRows:
    """Reads and writes them. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def attach(cls, path: Path) -> DatabaseRows:
        """Return the rows in a database that the engine has opened, and so brought to this version."""
        return cls(Database(f"sqlite:///{path}"))

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def all(self) -> list[DatabaseRow]:
        """Return all databases, by name."""
        with self._database.begin() as connection:
            found = connection.execute(select(database).order_by(database.c.name)).mappings()
            return [_row(row) for row in found]

    def insert(self, row: DatabaseRow) -> None:
        """Add a database."""
        self._write(insert(database).values(**_values(row)))

    def save(self, row: DatabaseRow) -> None:
        """Write all of a database that exists."""
        self._write(update(database).where(database.c.id == row.id).values(**_values(row)))

    def delete(self, database_id: DatabaseId) -> None:
        """Forget a database."""
        self._write(delete(database).where(database.c.id == database_id))

    def _write(self, statement: Any) -> None:
        try:
            with self._database.begin() as connection:
                connection.execute(statement)
        except DatabaseError as exc:
            raise translate(exc, str(self._database.engine.url.database)) from exc


_COLUMNS = ("id", "workspace", "name", "state", "created_at")
_FACTS = (
    "size_bytes",
    "ram_mib",
    "vcpus",
    "idle_seconds",
    "sandbox_id",
    "volume_id",
    "keeps_volume",
    "port",
    "server_version",
    "parent",
    "is_password_set",
)


def _values(row: DatabaseRow) -> dict[str, Any]:
    facts: dict[str, Any] = {name: getattr(row, name) for name in _FACTS}
    facts["snapshots"] = [
        {"id": s.id, "label": s.label, "at": s.at.isoformat(), "wal_file": s.wal_file}
        for s in row.snapshots
    ]
    facts["loose"] = list(row.loose)
    facts["attachments"] = [{"sandbox_id": a.sandbox_id, "port": a.port} for a in row.attachments]
    values: dict[str, Any] = {name: getattr(row, name) for name in _COLUMNS}
    values["created_at"] = (row.created_at - _EPOCH) // timedelta(microseconds=1)
    values["facts"] = json.dumps(facts, sort_keys=True)
    return values


def _row(raw: Any) -> DatabaseRow:
    facts = json.loads(raw["facts"])
    return DatabaseRow(
        id=DatabaseId(raw["id"]),
        workspace=raw["workspace"],
        name=raw["name"],
        state=raw["state"],
        created_at=_EPOCH + timedelta(microseconds=raw["created_at"]),
        snapshots=tuple(
            DatabaseSnapshot(
                id=s["id"],
                label=s["label"],
                at=datetime.fromisoformat(s["at"]),
                wal_file=s["wal_file"],
            )
            for s in facts["snapshots"]
        ),
        loose=tuple(facts.get("loose", ())),
        attachments=tuple(DatabaseAttachment(**a) for a in facts["attachments"]),
        **{name: facts[name] for name in _FACTS},
    )
