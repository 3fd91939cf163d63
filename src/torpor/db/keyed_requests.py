"""Rows of requests that came with an idempotency key: written before the act, and again with its answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import DatabaseError

from torpor.db.database import Database, translate
from torpor.db.tables_access import keyed_request

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with a key, and what became of it."""

    workspace: str
    key: str
    fingerprint: bytes
    seed: bytes
    created_at: datetime
    status: int | None = None
    """HTTP status of the answer; None: there is none yet."""
    answer: bytes | None = None


class KeyedRequestRows:
    """Reads and writes those rows. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, workspace: str, key: str) -> KeyedRequest | None:
        """Return one."""
        with self._database.begin() as connection:
            raw = (
                connection.execute(select(keyed_request).where(*_one(workspace, key)))
                .mappings()
                .first()
            )
        if raw is None:
            return None
        values: dict[str, Any] = dict(raw)
        values["created_at"] = _EPOCH + timedelta(microseconds=values["created_at"])
        return KeyedRequest(**values)

    def insert(self, row: KeyedRequest) -> None:
        """Add one that is about to be carried out."""
        self._write(
            insert(keyed_request).values(
                workspace=row.workspace,
                key=row.key,
                fingerprint=row.fingerprint,
                seed=row.seed,
                created_at=(row.created_at - _EPOCH) // timedelta(microseconds=1),
                status=row.status,
                answer=row.answer,
            )
        )

    def answered(self, workspace: str, key: str, status: int, answer: bytes) -> None:
        """Write down the answer."""
        self._write(
            update(keyed_request).where(*_one(workspace, key)).values(status=status, answer=answer)
        )

    def forget(self, workspace: str, key: str) -> None:
        """Remove one: nothing came of it, and it may be asked again."""
        self._write(delete(keyed_request).where(*_one(workspace, key)))

    def forget_before(self, before: datetime) -> None:
        """Remove those that are older."""
        micros = (before - _EPOCH) // timedelta(microseconds=1)
        self._write(delete(keyed_request).where(keyed_request.c.created_at < micros))

    def count(self, workspace: str) -> int:
        """Return how many a workspace has."""
        with self._database.begin() as connection:
            found = connection.execute(
                select(func.count())
                .select_from(keyed_request)
                .where(keyed_request.c.workspace == workspace)
            )
            return int(found.scalar_one())

    def _write(self, statement: Any) -> None:
        try:
            with self._database.begin() as connection:
                connection.execute(statement)
        except DatabaseError as exc:
            raise translate(exc, str(self._database.engine.url.database)) from exc


def _one(workspace: str, key: str) -> tuple[Any, Any]:
    return (keyed_request.c.workspace == workspace, keyed_request.c.key == key)
