"""Bad files and bad times: each gives a typed error and leaves the file as it was."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.unit.memory.clock import FakeClock
from torpor.errors import Busy, Conflict, DataDamaged, HostNotReady, InsufficientResources
from torpor.memory import Memory
from torpor.memory.rows import StateRow, columns
from torpor.memory.sqlite import SqliteStore, scan_files
from torpor.memory.sqlite_schema import MIGRATIONS, create_table


def test_a_text_file_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database")
    with pytest.raises(DataDamaged, match="does not begin like a database"):
        Memory.open(path)
    assert path.read_text() == "these are my notes, not a database"
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name)")
    db.close()
    with pytest.raises(Conflict, match="something else"):
        Memory.open(path)


def test_a_folder_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Conflict):
        Memory.open(tmp_path)
    with pytest.raises(HostNotReady):
        Memory.open(tmp_path / "none" / "m.db")


def test_a_newer_schema_is_refused(path: Path) -> None:
    Memory.open(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(HostNotReady, match="schema 99"):
        Memory.open(path)


def test_the_file_is_private(path: Path) -> None:
    Memory.open(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_page_is_found_when_it_is_opened(path: Path) -> None:
    with Memory.open(path) as memory:
        space = memory.space("a")
        for n in range(200):
            space.record(f"message number {n} with some more words in it")
    data = bytearray(path.read_bytes())
    for at in range(4096 * 3, len(data), 4096 * 2):
        data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(DataDamaged) as caught:
        Memory.open(path)
    assert caught.value.hint is not None
    assert path.read_bytes() == bytes(data)


def test_a_text_that_is_no_text_any_more_is_said_to_be_damaged(path: Path) -> None:
    with Memory.open(path) as memory:
        memory.space("a").record("the pomegranate protocol")
    path.write_bytes(path.read_bytes().replace(b"the pomegranate", b"the \xffomegranate"))
    with Memory.open(path) as memory, pytest.raises(DataDamaged, match="decode"):
        memory.space("a").episodes()


def test_a_second_writer_waits_and_then_is_told(path: Path) -> None:
    with Memory.open(path) as first, Memory.open(path, busy_timeout_s=0.05) as second:
        one, two = first.space("a"), second.space("a")
        one.record("said by the first")
        two.record("said by the second")
        store = first._store
        with store.transaction(), pytest.raises(Busy):
            two.record("not now")
        assert [e.content for e in two.episodes()] == ["said by the first", "said by the second"]
        two.record("now")
        assert len(one.episodes()) == 3
        assert first.verify_chain().ok


def test_a_full_disk_leaves_nothing_half_written(path: Path) -> None:
    with Memory.open(path) as memory:
        space = memory.space("a")
        space.record("before it was full")
        store = memory._store
        assert isinstance(store, SqliteStore)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
        before = space.tx
        with pytest.raises(InsufficientResources):
            space.record("word " * 100_000)
        assert space.tx == before
        assert len(space.episodes()) == 1
        assert memory.verify_chain().ok
        store._db.execute("PRAGMA max_page_count = 1000000")
        space.record("there is room again")
        assert memory.verify_chain().ok


def test_memory_is_there_after_it_was_closed_and_opened(path: Path) -> None:
    with Memory.open(path) as memory:
        fact = memory.space("a").remember("billing", "database", "Postgres")
    with Memory.open(path) as memory:
        assert memory.agents() == ("a",)
        assert memory.space("a").fact(fact.id).value == "Postgres"


def test_a_scan_counts_across_blocks_and_once(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * ((16 << 20) - 3) + b"needle" + b"y" * 100 + b"needle")
    found = scan_files([path, tmp_path / "missing"], [b"needle", b"nowhere"])
    assert found.hits == 2
    assert found.found == {b"needle"}
    assert found.scanned_bytes == path.stat().st_size


def test_the_schema_covers_every_column() -> None:
    assert len(MIGRATIONS) >= 1
    statement = create_table(StateRow)
    assert all(f"{name} " in statement for name in columns(StateRow))


def test_a_time_that_stands_still_or_goes_back_keeps_the_order(path: Path) -> None:
    clock = FakeClock()
    with Memory.open(path, clock=clock) as memory:
        space = memory.space("a")
        first = space.record("one")
        second = space.record("two")
        assert second.recorded_at > first.recorded_at
        clock.advance(hours=-5)
        third = space.record("three")
        assert third.tx > second.tx
        assert [e.content for e in space.episodes()] == ["one", "two", "three"]
