from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from torpor.memory import Memory
from torpor.memory.rows import CHAINED, TABLES, columns


@pytest.fixture
def filled(path: Path) -> Path:
    with Memory.open(path) as memory:
        mem = memory.space("a")
        mem.record("My editor is vim. I prefer tea.")
        mem.consolidate()
        mem.remember("user", "editor", "emacs", authority="user_said")
        mem.remember("user", "editor", "nano")
        mem.correct(mem.facts("user", "preference")[0].id, "coffee", "misheard")
        mem.remember("x", "y", 1, derived_from=[mem.facts("user")[0].id])
        mem.watermark("snap")
        mem.effect("k", "w")
        mem.erase(episode=mem.record("to be forgotten soon").id)
        assert memory.verify_chain().ok
    return path


def edit(path: Path, sql: str, *values: object) -> int:
    with sqlite3.connect(path) as db:
        count = db.execute(sql, values).rowcount
    db.close()
    return count


def problems(path: Path, expect: str | None = None) -> tuple[str, ...]:
    with Memory.open(path) as memory:
        return memory.verify_chain(expect=expect).problems


@pytest.mark.parametrize("table", [TABLES[t] for t in CHAINED])
def test_a_deleted_row_is_found(filled: Path, table: str) -> None:
    edit(filled, f"DELETE FROM {table} WHERE rowid = (SELECT max(rowid) FROM {table})")
    assert problems(filled) != ()


@pytest.mark.parametrize(
    ("table", "column"),
    [(TABLES[t], c) for t in CHAINED for c in columns(t) if c != "salt"],
)
def test_every_changed_column_is_found(filled: Path, table: str, column: str) -> None:
    change = f"CASE typeof({column}) WHEN 'integer' THEN {column} + 1 WHEN 'real' THEN {column} + 1 WHEN 'text' THEN {column} || 'x' ELSE 7 END"
    where = f"WHERE rowid = (SELECT max(rowid) FROM {table})"
    assert edit(filled, f"UPDATE {table} SET {column} = {change} {where}") == 1
    assert problems(filled) != ()


@pytest.mark.parametrize(
    "column",
    ["at", "actor", "kind", "branch", "reason", "reason_digest", "root", "prev_hash", "hash"],
)
def test_every_changed_column_of_a_transaction_is_found(filled: Path, column: str) -> None:
    change = f"{column} + 1" if column == "at" else f"{column} || 'x'"
    assert edit(filled, f"UPDATE txn SET {column} = {change} WHERE tx = 3") == 1
    assert problems(filled) != ()


def test_an_added_row_is_found(filled: Path) -> None:
    edit(
        filled,
        "INSERT INTO derivation VALUES ('dv_new', 3, (SELECT id FROM branch), 'c', 'p', x'00')",
    )
    assert "rows of transaction 3 are not those that were written" in problems(filled)


def test_a_cut_off_end_is_found_with_a_kept_head(filled: Path) -> None:
    with Memory.open(filled) as memory:
        head = memory.verify_chain().head
        last = memory.space("a").tx
    for table in [TABLES[t] for t in CHAINED] + ["txn"]:
        edit(filled, f"DELETE FROM {table} WHERE tx = ?", last)
    assert problems(filled) == ()
    assert problems(filled, expect=head) != ()


def test_an_erasure_without_a_receipt_is_found(filled: Path) -> None:
    edit(filled, "DELETE FROM erasure")
    assert any("without a receipt" in p for p in problems(filled))
