"""Rows of changes: one a change, written before each of its acts and after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DatabaseError, IntegrityError

from torpor.db.database import Database, translate
from torpor.db.sandboxes import micros
from torpor.db.tables import change
from torpor.errors import Conflict
from torpor.model import SandboxId
from torpor.model_changes import BAD_TARGET, ChangeId, ChangeInfo, ChangeSpec, ChangeState

KEPT_EACH = 500
"""Changes that are over are remembered so far back, for each sandbox."""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A change as the daemon keeps it."""

    info: ChangeInfo
    spec: ChangeSpec
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What its steps have to know of each other."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """The evidence so far; see `torpor.recovery.changes.report`."""

    def with_info(self, **changes: Any) -> ChangeRow:
        """Return a copy with these fields of `info` changed."""
        return replace(self, info=replace(self.info, **changes))


class ChangeRows:
    """Reads and writes rows of changes. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def attach(cls, path: Path) -> ChangeRows:
        """Return the rows in a database that the engine has opened, and so brought to this version."""
        return cls(Database(f"sqlite:///{path}"))

    def insert(self, row: ChangeRow) -> None:
        """Add a change, and forget the oldest ones of its sandbox.

        Raises:
            Conflict: a change of that sandbox is open; it is named.
        """
        old = (
            select(change.c.id)
            .where(change.c.sandbox_id == row.info.sandbox_id, change.c.open_on.is_(None))
            .order_by(change.c.created_at.desc(), change.c.id.desc())
            .offset(KEPT_EACH)
        )
        try:
            with self._database.begin() as connection:
                connection.execute(insert(change).values(**_values(row)))
                connection.execute(delete(change).where(change.c.id.in_(old)))
        except IntegrityError as exc:
            found = self.open_of(row.info.sandbox_id)
            raise Conflict(
                f"sandbox {row.info.sandbox_id} is being changed already: "
                + (f"{found.info.id} ({found.info.reason})" if found else "the change just ended"),
                hint=f"wait for it, or end it: torpor change rollback {found.info.id}"
                if found
                else "try again",
                change_id=found.info.id if found else None,
            ) from exc
        except DatabaseError as exc:
            raise self._translated(exc) from exc

    def save(self, row: ChangeRow) -> None:
        """Write all of a row that exists."""
        try:
            with self._database.begin() as connection:
                connection.execute(
                    update(change).where(change.c.id == row.info.id).values(**_values(row))
                )
        except DatabaseError as exc:
            raise self._translated(exc) from exc

    def get(self, change_id: ChangeId) -> ChangeRow | None:
        """Return one row."""
        found = self._rows(select(change).where(change.c.id == change_id))
        return found[0] if found else None

    def open_of(self, sandbox_id: SandboxId) -> ChangeRow | None:
        """Return the change of a sandbox that is open."""
        found = self._rows(select(change).where(change.c.open_on == sandbox_id))
        return found[0] if found else None

    def open(self) -> list[ChangeRow]:
        """Return all changes that are open, oldest first."""
        query = select(change).where(change.c.open_on.is_not(None))
        return self._rows(query.order_by(change.c.created_at, change.c.id))

    def infos(self, sandbox_id: SandboxId | None, limit: int, *, skip: int = 0) -> list[ChangeInfo]:
        """Return changes, newest first, behind the first `skip`; of one sandbox, or all."""
        query = select(change).order_by(change.c.created_at.desc(), change.c.id.desc())
        if sandbox_id is not None:
            query = query.where(change.c.sandbox_id == sandbox_id)
        return [row.info for row in self._rows(query.limit(limit).offset(skip))]

    def bad_target(self, sandbox_ids: Iterable[SandboxId], target: str) -> ChangeInfo | None:
        """Return the newest change of these sandboxes that was rolled back because of this target; None: kept since."""
        query = (
            select(change)
            .where(
                change.c.sandbox_id.in_(list(sandbox_ids)),
                change.c.target == folded(target),
                change.c.is_bad_target.is_(True) | (change.c.state == str(ChangeState.KEPT)),
            )
            .order_by(change.c.created_at.desc(), change.c.id.desc())
        )
        found = self._rows(query.limit(1))
        return found[0].info if found and found[0].info.state is not ChangeState.KEPT else None

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _rows(self, query: Any) -> list[ChangeRow]:
        try:
            with self._database.begin() as connection:
                return [_row(found) for found in connection.execute(query).mappings()]
        except DatabaseError as exc:
            raise self._translated(exc) from exc

    def _translated(self, exc: Exception) -> Exception:
        return translate(exc, str(self._database.engine.url.database))


def folded(target: str) -> str:
    """Return a target so that it is found again however it was spelled: case and blanks do not count."""
    return " ".join(target.casefold().split())


def _values(row: ChangeRow) -> dict[str, Any]:
    info = row.info
    return {
        "id": info.id,
        "sandbox_id": info.sandbox_id,
        "open_on": info.sandbox_id if info.is_open else None,
        "state": str(info.state),
        "target": None if info.target is None else folded(info.target),
        "is_bad_target": info.state is ChangeState.ROLLED_BACK and info.ending in BAD_TARGET,
        "created_at": micros(info.created_at),
        "ended_at": None if info.ended_at is None else micros(info.ended_at),
        "info": json.dumps(info.to_json(), sort_keys=True),
        "spec": json.dumps(row.spec.to_json(), sort_keys=True),
        "notes": json.dumps(row.notes, sort_keys=True),
        "report": json.dumps(row.report, sort_keys=True),
    }


def _row(raw: Any) -> ChangeRow:
    return ChangeRow(
        ChangeInfo.from_json(json.loads(raw["info"])),
        ChangeSpec.from_json(json.loads(raw["spec"])),
        json.loads(raw["notes"]),
        json.loads(raw["report"]),
    )
