"""The SQLite schema as numbered steps; `PRAGMA user_version` says how many were done."""

from __future__ import annotations

from typing import Any

from torpor.memory.rows import TABLES, columns

APPLICATION_ID = 0x544D454D
"""`TMEM` in the database's header: a file of ours."""

_TYPES = {
    "tx": "INTEGER NOT NULL",
    "at": "INTEGER NOT NULL",
    "fork_tx": "INTEGER NOT NULL",
    "at_tx": "INTEGER NOT NULL",
    "of_tx": "INTEGER NOT NULL",
    "epoch": "INTEGER NOT NULL",
    "seq": "INTEGER NOT NULL",
    "occurred_at": "INTEGER NOT NULL",
    "recorded_at": "INTEGER NOT NULL",
    "valid_from": "INTEGER NOT NULL",
    "confirmed_at": "INTEGER NOT NULL",
    "valid_at": "INTEGER NOT NULL",
    "valid_to": "INTEGER",
    "ended_at": "INTEGER",
    "expires_at": "INTEGER",
    "known_at": "INTEGER",
    "pinned": "INTEGER NOT NULL",
    "injected": "INTEGER NOT NULL",
    "rank": "INTEGER NOT NULL",
    "dim": "INTEGER NOT NULL",
    "start": "INTEGER NOT NULL",
    "stop": "INTEGER NOT NULL",
    "bytes_left": "INTEGER NOT NULL",
    "score": "REAL NOT NULL",
    "bm25": "REAL NOT NULL",
    "dense": "REAL NOT NULL",
    "neighbour": "REAL NOT NULL",
    "prior": "REAL NOT NULL",
    "confidence": "REAL NOT NULL",
    "salt": "BLOB NOT NULL",
    "blob": "BLOB NOT NULL",
    "parent": "TEXT",
    "snapshot": "TEXT",
    "version_of": "TEXT",
    "ended_by": "TEXT",
    "abstained": "TEXT",
}

_SPECIAL = {
    ("txn", "tx"): "INTEGER PRIMARY KEY",
    ("txn", "reason"): "TEXT",
    ("txn", "salt"): "BLOB",
    ("doc", "doc"): "INTEGER PRIMARY KEY AUTOINCREMENT",
    ("recall_item", "recall"): "TEXT NOT NULL",
    ("derivation", "parent"): "TEXT NOT NULL",
    ("watermark", "snapshot"): "TEXT NOT NULL",
}

INDEXES = (
    "CREATE INDEX episode_branch ON episode(branch, session)",
    "CREATE INDEX episode_family ON episode(family)",
    "CREATE INDEX episode_tx ON episode(tx)",
    "CREATE INDEX fact_key ON fact(key)",
    "CREATE INDEX fact_subject ON fact(subject)",
    "CREATE INDEX fact_tx ON fact(tx)",
    "CREATE INDEX fact_version ON fact(version_of)",
    "CREATE INDEX fact_kind ON fact(kind) WHERE kind IN ('instruction','decision','commitment')",
    "CREATE INDEX state_object ON state(object)",
    "CREATE INDEX state_tx ON state(tx)",
    "CREATE INDEX state_pinned ON state(pinned) WHERE pinned = 1",
    "CREATE INDEX evidence_fact ON evidence(fact)",
    "CREATE INDEX evidence_episode ON evidence(episode)",
    "CREATE INDEX evidence_tx ON evidence(tx)",
    "CREATE INDEX derivation_child ON derivation(child)",
    "CREATE INDEX derivation_parent ON derivation(parent)",
    "CREATE INDEX supersession_old ON supersession(old)",
    "CREATE INDEX supersession_new ON supersession(new)",
    "CREATE INDEX conflict_key ON conflict(key)",
    "CREATE INDEX consolidated_episode ON consolidated(episode)",
    "CREATE INDEX head_agent ON head(agent)",
    "CREATE INDEX watermark_snapshot ON watermark(snapshot)",
    "CREATE INDEX effect_key ON effect_ledger(agent, key)",
    "CREATE INDEX tombstone_tx ON tombstone(of_tx)",
    "CREATE INDEX recall_item_recall ON recall_item(recall)",
    "CREATE INDEX recall_item_owner ON recall_item(owner)",
    "CREATE INDEX doc_owner ON doc(owner)",
    "CREATE UNIQUE INDEX embedding_owner ON embedding(owner, model)",
)


def column_type(table: type[tuple[Any, ...]], column: str) -> str:
    """Return the SQLite type and constraints of a column."""
    if column == "id":
        return "TEXT NOT NULL UNIQUE"
    return _SPECIAL.get((TABLES[table], column)) or _TYPES.get(column, "TEXT NOT NULL")


def create_table(table: type[tuple[Any, ...]]) -> str:
    """Return the CREATE TABLE of a row class."""
    parts = [f"{column} {column_type(table, column)}" for column in columns(table)]
    return f"CREATE TABLE {TABLES[table]} ({', '.join(parts)})"


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        *(create_table(table) for table in TABLES),
        *INDEXES,
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        # No content in the index: the text is in episode and fact alone, so there is one place to erase.
        "CREATE VIRTUAL TABLE fts USING fts5(text, content='', tokenize='porter unicode61')",
    ),
)
"""Step n takes a database of version n to n + 1. A published step never changes; add the next."""
