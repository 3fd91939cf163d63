"""Rows of machines that moved: written before the machine is touched, emptied when memory has followed."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import DatabaseError

from torpor.base.plain import from_plain, to_plain
from torpor.db.database import Database, translate
from torpor.db.tables import memory_move
from torpor.model_memory import MachineMove


class MemoryMoves:
    """Reads and writes moves, at most one a sandbox. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, tuple[MachineMove | None, str]]:
        """Return, by sandbox, the move that memory has still to follow, and what went otherwise than asked for."""
        with self._database.begin() as connection:
            found = connection.execute(select(memory_move)).mappings().all()
        return {row["sandbox_id"]: (_move(row["move"]), row["note"]) for row in found}

    def put(self, sandbox_id: str, move: MachineMove | None, note: str = "") -> None:
        """Write a sandbox's row, in place of the one before."""
        body = None if move is None else json.dumps(to_plain(move), sort_keys=True)
        self._write(
            delete(memory_move).where(memory_move.c.sandbox_id == sandbox_id),
            insert(memory_move).values(sandbox_id=sandbox_id, move=body, note=note),
        )

    def drop(self, sandbox_id: str) -> None:
        """Remove a sandbox's row; none is no error."""
        self._write(delete(memory_move).where(memory_move.c.sandbox_id == sandbox_id))

    def _write(self, *statements: Any) -> None:
        try:
            with self._database.begin() as connection:
                for statement in statements:
                    connection.execute(statement)
        except DatabaseError as exc:
            raise translate(exc, str(self._database.engine.url.database)) from exc


def _move(body: str | None) -> MachineMove | None:
    return None if body is None else from_plain(MachineMove, json.loads(body))
