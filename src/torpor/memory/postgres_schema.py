"""The PostgreSQL schema as numbered steps, made from the same row classes as the SQLite one."""

from __future__ import annotations

from typing import Any

from torpor.memory.rows import TABLES, DocRow, columns
from torpor.memory.sqlite_schema import INDEXES, column_type

_TYPES = {
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    "BLOB": "BYTEA",
    "TEXT": 'TEXT COLLATE "C"',
}


def _create(table: type[tuple[Any, ...]]) -> str:
    parts = ["n BIGSERIAL PRIMARY KEY"]
    for column in columns(table):
        kind = column_type(table, column).replace("INTEGER PRIMARY KEY AUTOINCREMENT", "INTEGER")
        kind = kind.replace("PRIMARY KEY", "NOT NULL UNIQUE")
        base, _, rest = kind.partition(" ")
        parts.append(f'"{column}" {_TYPES[base]} {rest}')
    return f"CREATE TABLE {TABLES[table]} ({', '.join(parts)})"


def _create_doc() -> str:
    """Documents number themselves, and know their length for BM25."""
    rest = [
        f'"{c}" {_TYPES[column_type(DocRow, c).partition(" ")[0]]} NOT NULL'
        for c in columns(DocRow)[1:]
    ]
    return f"CREATE TABLE doc (doc BIGSERIAL PRIMARY KEY, {', '.join(rest)}, len BIGINT NOT NULL)"


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        *(_create(table) for table in TABLES if table is not DocRow),
        _create_doc(),
        *INDEXES,
        'CREATE TABLE meta (key TEXT COLLATE "C" PRIMARY KEY, value TEXT NOT NULL)',
        'CREATE TABLE posting (term TEXT COLLATE "C", doc BIGINT, tf BIGINT NOT NULL, PRIMARY KEY (term, doc))',
        "CREATE INDEX posting_doc ON posting(doc)",
    ),
)
"""Step n takes a schema of version n to n + 1. A published step never changes; add the next."""
