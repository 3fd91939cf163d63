"""Rows of watches: one a sandbox at most."""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import delete, insert, select

from torpor.db.database import Database
from torpor.db.sandboxes import micros
from torpor.db.tables_recovery import watch
from torpor.model import SandboxId
from torpor.model_watches import WatchInfo, WatchSpec


class WatchRows:
    """Reads and writes rows of watches. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def attach(cls, path: Path) -> WatchRows:
        """Return the rows in a database that the engine has opened, and so brought to this version."""
        return cls(Database(f"sqlite:///{path}"))

    def put(self, info: WatchInfo, spec: WatchSpec) -> None:
        """Add a watch, or write all of the one that the sandbox has."""
        values = {
            "sandbox_id": info.sandbox_id,
            "next_at": micros(info.next_at),
            "info": json.dumps(info.to_json(), sort_keys=True),
            "spec": json.dumps(spec.to_json(), sort_keys=True),
        }
        with self._database.transaction() as connection:
            connection.execute(delete(watch).where(watch.c.sandbox_id == info.sandbox_id))
            connection.execute(insert(watch).values(**values))

    def all(self) -> list[tuple[WatchInfo, WatchSpec]]:
        """Return all watches, the one that comes first first."""
        with self._database.transaction() as connection:
            found = connection.execute(select(watch).order_by(watch.c.next_at, watch.c.sandbox_id))
            return [
                (
                    WatchInfo.from_json(json.loads(raw["info"])),
                    WatchSpec.from_json(json.loads(raw["spec"])),
                )
                for raw in found.mappings()
            ]

    def drop(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox's watch; none is no error."""
        with self._database.transaction() as connection:
            connection.execute(delete(watch).where(watch.c.sandbox_id == sandbox_id))

    def close(self) -> None:
        """Close the database."""
        self._database.close()
