"""Reading what is left of a damaged database: read-only, row by row, around the damage."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torpor.errors import DataDamaged, NotFound
from torpor.memory.chain import GENESIS
from torpor.memory.jsonl import write_lines
from torpor.memory.rows import EXPORTED, TABLES, Txn, columns
from torpor.model_memory import Exported

_STEP = 256


def salvage(path: Path, to: Path) -> Exported:
    """Write every row of `path` that can be read to an export; the file itself is not touched.

    Raises:
        NotFound: there is no such file.
        DataDamaged: nothing in it can be read.
    """
    if not path.is_file():
        raise NotFound(f"{path} does not exist", path=str(path))
    lost = 0
    rows: list[tuple[Any, ...]] = []
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        for table in EXPORTED:
            for row in _rows(db, table):
                if row is None:
                    lost += 1
                else:
                    rows.append(row)
        key = _meta(db)
    except sqlite3.Error as exc:
        raise DataDamaged(f"nothing in {path} can be read: {exc}", path=str(path)) from exc
    finally:
        db.close()
    if not rows:
        raise DataDamaged(f"nothing in {path} can be read", path=str(path))
    head = next((r.hash for r in reversed(rows) if isinstance(r, Txn)), GENESIS)
    done = write_lines(to, rows, len(rows), head, key)
    return Exported(done.path, done.rows, head, lost)


def _meta(db: sqlite3.Connection) -> str:
    try:
        row = db.execute("SELECT value FROM meta WHERE key = 'id_key'").fetchone()
    except sqlite3.Error:
        return ""
    return "" if row is None else str(row[0])


def _rows(db: sqlite3.Connection, table: type[tuple[Any, ...]]) -> Iterator[tuple[Any, ...] | None]:
    """Yield rows, and None for each stretch that cannot be read."""
    name = TABLES[table]
    try:
        top = int(db.execute(f"SELECT coalesce(max(rowid), 0) FROM {name}").fetchone()[0])  # noqa: S608  # names come from rows.py
    except sqlite3.OperationalError:
        raise  # the schema is unreadable: nothing is left
    except sqlite3.DatabaseError:
        yield None
        return
    for start in range(0, top + 1, _STEP):
        yield from _between(db, table, start, min(start + _STEP - 1, top))


def _between(
    db: sqlite3.Connection, table: type[tuple[Any, ...]], low: int, high: int
) -> Iterator[tuple[Any, ...] | None]:
    sql = f"SELECT {', '.join(columns(table))} FROM {TABLES[table]} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"  # noqa: S608  # names come from rows.py
    try:
        found = db.execute(sql, (low, high)).fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        if low == high:
            yield None
            return
        middle = (low + high) // 2
        yield from _between(db, table, low, middle)
        yield from _between(db, table, middle + 1, high)
        return
    for row in found:
        yield table._make(row)  # type: ignore[attr-defined]  # every table is a NamedTuple
