"""SQL that both stores share; placeholders are `?`, names are quoted. Only names from `rows.py` enter the text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torpor.errors import TorporError
from torpor.memory.rows import TABLES, columns
from torpor.memory.store import Contains, Range, Scope, Where

BATCH = 500
"""Values in one IN list; SQLite's limit was 999 before 3.32."""


@functools.cache
def names(table: type[tuple[Any, ...]]) -> str:
    """Return the quoted columns of a table, joined."""
    return ", ".join(f'"{name}"' for name in columns(table))


@functools.cache
def insert(table: type[tuple[Any, ...]]) -> str:
    """Return the INSERT of a whole row."""
    marks = ", ".join("?" * len(columns(table)))
    return f"INSERT INTO {TABLES[table]}({names(table)}) VALUES ({marks})"  # noqa: S608  # names come from rows.py


def select(table: type[tuple[Any, ...]], clause: str, order: str, limit: int | None) -> str:
    """Return a SELECT of whole rows."""
    end = "" if limit is None else f" LIMIT {int(limit)}"
    return f"SELECT {names(table)} FROM {TABLES[table]}{clause} ORDER BY {order}{end}"  # noqa: S608  # names come from rows.py


def conditions(where: Where) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield WHERE clauses; a long list of values becomes several, one after the other."""
    fixed: list[str] = []
    values: list[object] = []
    many: tuple[str, list[object]] | None = None
    for column, want in where.items():
        if isinstance(want, (list, tuple, set, frozenset)):
            if many is not None:
                raise TorporError("a query may have one list of values")
            many = (column, list(want))
        else:
            clauses, given = _single(column, want)
            fixed += clauses
            values += given
    if many is None:
        yield (" WHERE " + " AND ".join(fixed) if fixed else ""), tuple(values)
        return
    column, wanted = many
    for start in range(0, len(wanted), BATCH):
        part = wanted[start : start + BATCH]
        clause = " AND ".join([*fixed, f'"{column}" IN ({",".join("?" * len(part))})'])
        yield f" WHERE {clause}", (*values, *part)


def _single(column: str, want: object) -> tuple[list[str], list[object]]:
    if isinstance(want, Range):
        ends = [
            (sign, end) for sign, end in ((">=", want.low), ("<=", want.high)) if end is not None
        ]
        return [f'"{column}" {sign} ?' for sign, _ in ends], [end for _, end in ends]
    if isinstance(want, Contains):
        plain = re.sub(r"([%_~])", r"~\1", want.text)
        return [f'"{column}" LIKE ? ESCAPE ?'], [f"%{plain}%", "~"]
    if want is None:
        return [f'"{column}" IS NULL'], []
    return [f'"{column}" = ?'], [want]


def scoped(scopes: Sequence[Scope]) -> tuple[str, tuple[object, ...]]:
    """Return the condition that a document lies in one of the scopes."""
    clause = " OR ".join(["(branch = ? AND tx <= ?)"] * len(scopes)) or "1 = 0"
    return clause, tuple(value for scope in scopes for value in scope)
