"""Reading databases that are in use: nobody is locked out, nothing is touched, and what is not read is said."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.guest.inventory.machine import database
from torpor_guest.inventory import databases
from torpor_guest.inventory.budget import Budget
from torpor_guest.inventory.databases import Content, read
from torpor_guest.inventory.keyed import Keyed

KEYED = Keyed(b"k" * 32)


def _read(path: Path) -> Content:
    return read(str(path), Budget(time.monotonic() + 10), KEYED)


def _files(path: Path) -> dict[str, tuple[int, int, int]]:
    return {
        p.name: (p.stat().st_ino, p.stat().st_size, p.stat().st_mtime_ns)
        for p in path.parent.iterdir()
    }


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    """A database with a WAL that another process's connection holds open."""
    path = tmp_path / "live.db"
    database(path, rows=10, wal=True)
    writer = sqlite3.connect(path, isolation_level=None, timeout=0)
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute("INSERT INTO messages (text) VALUES ('in the wal')")
    yield path, writer
    writer.close()


def _in_another_process(path: Path) -> list[int | None]:
    """Read it where POSIX locks are another's, as the worker does."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from torpor_guest.inventory.databases import read\n"
        "from torpor_guest.inventory.budget import Budget\n"
        "from torpor_guest.inventory.keyed import Keyed\n"
        "found = read(sys.argv[2], Budget(time.monotonic() + 10), Keyed(b'k' * 32))\n"
        "print(*[t.rows for t in found.tables], found.has_all)"
    )
    source = str(Path(databases.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, source, str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    *rows, has_all = done.stdout.split()
    assert has_all == "True"
    return [None if row == "None" else int(row) for row in rows]


def test_a_live_wal_is_read_and_no_writer_waits(live: tuple[Path, sqlite3.Connection]) -> None:
    path, writer = live
    before = _files(path)
    assert _in_another_process(path) == [11]
    assert {n: f[:2] for n, f in _files(path).items()} == {n: f[:2] for n, f in before.items()}
    assert _files(path)["live.db-wal"] == before["live.db-wal"]
    assert _files(path)["live.db"] == before["live.db"]
    writer.execute("BEGIN IMMEDIATE")  # held by a writer, it is read as it was
    writer.execute("DELETE FROM messages")
    assert _in_another_process(path) == [11]
    writer.execute("COMMIT")
    assert _in_another_process(path) == [0]
    writer.execute("INSERT INTO messages (text) VALUES ('still works')")


def test_writers_go_on_while_it_is_read(live: tuple[Path, sqlite3.Connection]) -> None:
    path, writer = live
    mode, has_all = databases._mode(str(path))
    assert (mode, has_all) == ("mode=ro&readonly_shm=1", True)
    reader = sqlite3.connect(f"file:{path}?{mode}", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    (rows,) = reader.execute("SELECT count(*) FROM messages").fetchone()
    for _ in range(20):
        writer.execute("INSERT INTO messages (text) VALUES ('x')")
    assert reader.execute("SELECT count(*) FROM messages").fetchone() == (rows,)
    reader.close()


def test_a_wal_that_is_closed_makes_no_files(tmp_path: Path) -> None:
    path = tmp_path / "closed.db"
    database(path, rows=7, wal=True)
    before = _files(path)
    assert list(before) == ["closed.db"]
    found = _read(path)
    assert ([t.rows for t in found.tables], found.has_all) == ([7], True)
    assert _files(path) == before


def test_a_wal_without_its_memory_is_read_as_of_the_checkpoint(
    live: tuple[Path, sqlite3.Connection], tmp_path: Path
) -> None:
    path, _ = live
    copy = tmp_path / "copy" / "c.db"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    shutil.copy(f"{path}-wal", f"{copy}-wal")
    before = _files(copy)
    found = _read(copy)
    assert ([t.rows for t in found.tables], found.has_all) == ([10], False)
    assert _files(copy) == before


def test_a_rollback_journal_database(tmp_path: Path) -> None:
    path = tmp_path / "plain.db"
    database(path, rows=3)
    writer = sqlite3.connect(path, isolation_level=None, timeout=0)
    writer.execute("BEGIN IMMEDIATE")
    assert _in_another_process(path) == [3]
    writer.execute("INSERT INTO messages (text) VALUES ('x')")
    writer.execute("COMMIT")
    writer.execute("BEGIN EXCLUSIVE")
    begun = time.monotonic()
    with pytest.raises(subprocess.CalledProcessError):
        _in_another_process(path)
    assert time.monotonic() - begun < 10
    writer.execute("COMMIT")
    assert _in_another_process(path) == [4]
    writer.close()


def test_one_that_changes_while_it_is_read_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "closed.db"
    database(path, rows=7, wal=True)
    own = databases._content

    def meanwhile(*args: object) -> Content:
        found = own(*args)  # type: ignore[arg-type]
        os.utime(path)
        return found

    monkeypatch.setattr(databases, "_content", meanwhile)
    with pytest.raises(sqlite3.OperationalError, match="while it was read"):
        _read(path)


def test_a_count_that_takes_too_long_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.db"
    database(path, rows=3)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (x)")
    connection.execute("PRAGMA user_version=4")
    connection.commit()
    connection.close()
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(databases, "_COUNT", endless)
        begun = time.monotonic()
        found = _read(path)
        assert databases.ONE_MOST_S <= time.monotonic() - begun < 20
    assert [(t.name, t.rows) for t in found.tables] == [("messages", None), ("other", None)]
    assert found.version == 4
    assert [(t.name, t.rows) for t in _read(path).tables] == [("messages", 3), ("other", 0)]


def test_the_schema_is_what_is_in_sqlite_master(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    database(path, rows=1)
    before = _read(path)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO messages (text) VALUES ('x')")
    connection.execute("ANALYZE")
    connection.commit()
    after = _read(path)
    assert (after.schema, after.tables[0].schema) == (before.schema, before.tables[0].schema)
    connection.execute("CREATE INDEX i ON messages (text)")
    connection.execute("CREATE VIRTUAL TABLE f USING fts5(t)")
    connection.execute("PRAGMA user_version=7")
    connection.commit()
    connection.close()
    last = _read(path)
    assert last.schema != before.schema
    assert last.tables[0].schema != before.tables[0].schema, "an index is its table's"
    assert (last.version, [t.name for t in last.tables]) == (7, ["messages"])


def test_behind_a_symlink(tmp_path: Path) -> None:
    database(tmp_path / "real" / "d.db", rows=1)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="behind a symlink"):
        _read(tmp_path / "link" / "d.db")
