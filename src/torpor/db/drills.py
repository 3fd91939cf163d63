"""Rows of drills, and of the schedules that begin them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert, select, update

from torpor.db.database import Database
from torpor.db.sandboxes import micros
from torpor.db.tables_recovery import drill, drill_schedule
from torpor.model import SandboxId, SnapshotId
from torpor.model_drills import DrillId, DrillInfo, DrillSpec, ScheduleInfo

KEPT_EACH = 500
"""Drills that are over are remembered so far back, for each snapshot's sandbox."""


@dataclass(frozen=True, slots=True)
class DrillRow:
    """A drill as the daemon keeps it."""

    info: DrillInfo
    spec: DrillSpec
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What its steps have to know of each other."""

    def with_info(self, **changes: Any) -> DrillRow:
        """Return a copy with these fields of `info` changed."""
        return replace(self, info=replace(self.info, **changes))


class DrillRows:
    """Reads and writes rows of drills and schedules. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def attach(cls, path: Path) -> DrillRows:
        """Return the rows in a database that the engine has opened, and so brought to this version."""
        return cls(Database(f"sqlite:///{path}"))

    # ---- drills ----

    def insert(self, row: DrillRow) -> list[DrillId]:
        """Add a drill, and forget the oldest ones of its sandbox; return which were forgotten."""
        same = drill.c.sandbox_id == row.info.sandbox_id
        if row.info.sandbox_id is None:
            same = drill.c.snapshot_id == row.info.snapshot_id
        old = (
            select(drill.c.id)
            .where(same, drill.c.ended_at.is_not(None))
            .order_by(drill.c.created_at.desc(), drill.c.id.desc())
            .offset(KEPT_EACH)
        )
        with self._database.transaction() as connection:
            connection.execute(insert(drill).values(**_drill_values(row)))
            forgotten = [DrillId(found) for found in connection.execute(old).scalars()]
            connection.execute(delete(drill).where(drill.c.id.in_(forgotten)))
        return forgotten

    def save(self, row: DrillRow) -> None:
        """Write all of a row that exists."""
        with self._database.transaction() as connection:
            connection.execute(
                update(drill).where(drill.c.id == row.info.id).values(**_drill_values(row))
            )

    def get(self, drill_id: DrillId) -> DrillRow | None:
        """Return one row."""
        found = self._drills(select(drill).where(drill.c.id == drill_id))
        return found[0] if found else None

    def open(self) -> list[DrillRow]:
        """Return all drills that are open, oldest first."""
        query = select(drill).where(drill.c.ended_at.is_(None))
        return self._drills(query.order_by(drill.c.created_at, drill.c.id))

    def infos(
        self,
        *,
        sandbox_id: SandboxId | None = None,
        snapshot_id: SnapshotId | None = None,
        workspace: str | None = None,
        limit: int,
    ) -> list[DrillInfo]:
        """Return drills, newest first: those that all conditions fit."""
        query = select(drill).order_by(drill.c.created_at.desc(), drill.c.id.desc())
        for column, value in (
            (drill.c.sandbox_id, sandbox_id),
            (drill.c.snapshot_id, snapshot_id),
            (drill.c.workspace, workspace),
        ):
            if value is not None:
                query = query.where(column == value)
        return [row.info for row in self._drills(query.limit(limit))]

    def _drills(self, query: Any) -> list[DrillRow]:
        return [
            DrillRow(
                DrillInfo.from_json(json.loads(raw["info"])),
                DrillSpec.from_json(json.loads(raw["spec"])),
                json.loads(raw["notes"]),
            )
            for raw in self._found(query)
        ]

    # ---- schedules ----

    def put_schedule(self, info: ScheduleInfo, spec: DrillSpec) -> None:
        """Add a schedule, or write all of one that exists."""
        values = {
            "id": info.id,
            "next_at": micros(info.next_at),
            "info": json.dumps(info.to_json(), sort_keys=True),
            "spec": json.dumps(spec.to_json(), sort_keys=True),
        }
        with self._database.transaction() as connection:
            connection.execute(delete(drill_schedule).where(drill_schedule.c.id == info.id))
            connection.execute(insert(drill_schedule).values(**values))

    def schedules(self) -> list[tuple[ScheduleInfo, DrillSpec]]:
        """Return all schedules, the one that comes first first."""
        query = select(drill_schedule).order_by(drill_schedule.c.next_at, drill_schedule.c.id)
        return [
            (
                ScheduleInfo.from_json(json.loads(raw["info"])),
                DrillSpec.from_json(json.loads(raw["spec"])),
            )
            for raw in self._found(query)
        ]

    def drop_schedule(self, schedule_id: str) -> bool:
        """Remove a schedule; return whether it was there."""
        with self._database.transaction() as connection:
            found = connection.execute(
                delete(drill_schedule).where(drill_schedule.c.id == schedule_id)
            )
            return bool(found.rowcount)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _found(self, query: Any) -> list[Any]:
        with self._database.transaction() as connection:
            return list(connection.execute(query).mappings())


def _drill_values(row: DrillRow) -> dict[str, Any]:
    info = row.info
    return {
        "id": info.id,
        "sandbox_id": info.sandbox_id,
        "snapshot_id": info.snapshot_id,
        "workspace": info.workspace,
        "created_at": micros(info.created_at),
        "ended_at": None if info.ended_at is None else micros(info.ended_at),
        "info": json.dumps(info.to_json(), sort_keys=True),
        "spec": json.dumps(row.spec.to_json(), sort_keys=True),
        "notes": json.dumps(row.notes, sort_keys=True),
    }
