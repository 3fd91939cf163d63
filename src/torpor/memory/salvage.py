"""Reading what is left of a damaged database: read-only, row by row, around the damage."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torpor.errors import DataDamaged, NotFound
from torpor.memory.chain import GENESIS
from torpor.memory.jsonl import write_lines
from torpor.memory.rows import EXPORTED, TABLES, Txn, columns
from torpor.model_memory import Exported

_STEP = 256
_MISSES = 8
"""So many steps without a row are taken for the end of a table."""


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
    db = _opened(path)
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


def _opened(path: Path) -> sqlite3.Connection:
    """Open a file that is only read, also where nothing can be written beside it, or its end is missing."""
    place = quote(str(path))
    for how in ("mode=ro", "mode=ro&immutable=1"):
        db = sqlite3.connect(f"file:{place}?{how}", uri=True)
        try:
            db.execute("PRAGMA writable_schema = ON")  # tolerate a schema that is damaged in part
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            if "immutable" in how:
                return db
            db.close()
        except sqlite3.DatabaseError:
            return db
        else:
            return db
    raise AssertionError("unreachable")


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
    except sqlite3.DatabaseError:  # its end is gone, or the schema does not name it any more
        yield from _from_the_start(db, table)
        yield None
        return
    for start in range(0, top + 1, _STEP):
        yield from _between(db, table, start, min(start + _STEP - 1, top))


def _from_the_start(
    db: sqlite3.Connection, table: type[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table whose last row cannot be found, until nothing more is read."""
    start, misses = 0, 0
    while misses < _MISSES:
        found = [r for r in _between(db, table, start, start + _STEP - 1) if r is not None]
        yield from found
        misses = 0 if found else misses + 1
        start += _STEP


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
