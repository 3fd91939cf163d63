"""Keeping SQLite quiet: real databases, real writers, and what is in their way."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.guest.holding import helper, paths

_WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
db.execute("PRAGMA synchronous=off")
number = 0
while True:
    db.execute("INSERT INTO rows (writer, number) VALUES (?, ?)", (sys.argv[2], number))
    print(number, flush=True)  # acknowledged
    number += 1
"""


def make(path: Path, *, mode: str = "wal") -> Path:
    """A database with a table."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode={mode}")
        db.execute("CREATE TABLE rows (writer, number)")
        db.commit()
    return path


def is_writable(path: Path) -> bool:
    """Whether a writer gets in now."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        db.execute("ROLLBACK")
        return True


@contextlib.contextmanager
def storm(path: Path, folder: Path, count: int = 4) -> Iterator[list[Path]]:
    """Writers that write as fast as they can; each writes down what was acknowledged."""
    logs = [folder / f"acknowledged-{number}" for number in range(count)]
    writers = []
    for number, log in enumerate(logs):
        with log.open("wb") as out:
            writers.append(
                subprocess.Popen(
                    [sys.executable, "-c", _WRITER, str(path), str(number)], stdout=out
                )
            )
    try:
        yield logs
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def acknowledged(log: Path) -> int:
    """How many rows were."""
    return log.read_bytes().count(b"\n")


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_storm_of_writers(tmp_path: Path, mode: str) -> None:
    db = make(tmp_path / "app.data", mode=mode)
    copy = tmp_path / "copy"
    copy.mkdir()
    with storm(db, tmp_path) as logs:
        deadline = time.monotonic() + 20
        while sum(map(acknowledged, logs)) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(3):
            with helper(kind="sqlite", paths=paths(db)) as held:
                held.quiet()
                before = list(map(acknowledged, logs))
                # stands for the snapshot: files copied one after the other, while all is held
                for file in tmp_path.glob("app.data*"):
                    if not file.name.endswith("-shm"):
                        shutil.copy(file, copy / file.name)
                assert held.ask("confirm")["ok"]
                assert not is_writable(db)
                assert held.ask("release")["ok"]
            with contextlib.closing(
                sqlite3.connect(copy / "app.data", isolation_level=None)
            ) as db2:
                assert db2.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                found = dict(db2.execute("SELECT writer, count(*) FROM rows GROUP BY writer"))
                assert all(found.get(str(n), 0) >= count for n, count in enumerate(before))
                db2.execute("BEGIN IMMEDIATE")
            for file in copy.iterdir():
                file.unlink()
    assert is_writable(db)


def test_readers_go_on_and_the_wal_is_emptied(tmp_path: Path) -> None:
    db = make(tmp_path / "x.db")
    with contextlib.closing(sqlite3.connect(db, isolation_level=None)) as writer:
        writer.execute("INSERT INTO rows VALUES (1, 1)")
        assert (tmp_path / "x.db-wal").stat().st_size > 0
        with helper(kind="sqlite", paths=paths(db)) as held:
            held.quiet()
            assert (tmp_path / "x.db-wal").stat().st_size == 0
            assert writer.execute("SELECT count(*) FROM rows").fetchone() == (1,)


def test_a_reader_in_the_wal_is_told_of(tmp_path: Path) -> None:
    db = make(tmp_path / "x.db")
    with (
        contextlib.closing(sqlite3.connect(db, isolation_level=None)) as reader,
        contextlib.closing(sqlite3.connect(db, isolation_level=None)) as writer,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM rows").fetchall()
        writer.execute("INSERT INTO rows VALUES (1, 1)")
        with helper(kind="sqlite", paths=paths(db)) as held:
            assert held.ask("prepare", 10)["ok"]
            answer = held.ask("hold", 10, 30)
            assert answer["ok"]
            assert "a reader keeps a part of the WAL" in answer["message"]
            assert not is_writable(db)


def test_a_reader_of_all_keeps_the_wal_and_nothing_else(tmp_path: Path) -> None:
    db = make(tmp_path / "x.db")
    with (
        contextlib.closing(sqlite3.connect(db, isolation_level=None)) as reader,
        contextlib.closing(sqlite3.connect(db, isolation_level=None)) as writer,
    ):
        writer.execute("INSERT INTO rows VALUES (1, 1)")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM rows").fetchall()
        with helper(kind="sqlite", paths=paths(db)) as held:
            assert held.ask("prepare", 10)["ok"]
            assert (
                "holds all, and its WAL could not be emptied" in held.ask("hold", 10, 30)["message"]
            )
            assert held.ask("confirm")["ok"]
            assert not is_writable(db), "also after another connection to it was closed"
            shutil.copy(db, tmp_path / "copy")
    with contextlib.closing(sqlite3.connect(tmp_path / "copy")) as alone:
        assert alone.execute("SELECT count(*) FROM rows").fetchone() == (1,)


def test_one_that_is_locked_by_another(tmp_path: Path) -> None:
    locked, free = make(tmp_path / "b.db"), make(tmp_path / "a.db")
    with contextlib.closing(sqlite3.connect(locked, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with helper(kind="sqlite", paths=paths(free, locked)) as held:
            assert held.ask("prepare", 10)["ok"]
            answer = held.ask("hold", 0.6, 30)
            assert answer == {"ok": False, "message": f"{locked} is locked by another"}
            assert held.ask("release")["ok"]
            assert is_writable(free)


@pytest.mark.parametrize("how", ["end of stdin", "killed", "time is over"])
def test_it_lets_go(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    db = make(tmp_path / "x.db")
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(helper(kind="sqlite", paths=paths(db)))
        held.ask("prepare", 10)
        assert held.ask("hold", 10, -2.7 if how == "time is over" else 30)["ok"]
        assert how == "time is over" or not is_writable(db)
        if how == "end of stdin":
            stack.close()
        elif how == "killed":
            held.process.send_signal(signal.SIGKILL)
            held.process.wait(10)
            with contextlib.suppress(AssertionError):
                stack.close()
        else:
            held.process.wait(10)
        assert is_writable(db)


def test_a_database_that_is_replaced_while_it_is_held(tmp_path: Path) -> None:
    db = make(tmp_path / "x.db")
    with helper(kind="sqlite", paths=paths(db)) as held:
        held.quiet()
        make(tmp_path / "new").rename(db)
        assert "was replaced" in held.ask("confirm")["message"]
        db.unlink()
        assert "was removed" in held.ask("confirm")["message"]


def test_a_damaged_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0" + bytes(4080))
    with helper(kind="sqlite", paths=paths(tmp_path)) as held:
        answers = [held.ask("prepare", 5), held.ask("hold", 5, 30)]
        assert not all(answer["ok"] for answer in answers)
        assert any("x.db" in answer["message"] for answer in answers)


def test_too_many_databases(tmp_path: Path) -> None:
    first = make(tmp_path / "0.db")
    for number in range(1, 258):
        shutil.copy(first, tmp_path / f"{number}.db")
    with helper(kind="sqlite", roots=paths(tmp_path)) as held:
        assert "at most 256" in held.ask("prepare", 20)["message"]
    with helper(
        kind="sqlite", roots=paths(tmp_path), exclude=[f"{tmp_path}/[1-9][0-9][0-9]*"]
    ) as held:
        held.quiet()
        assert not is_writable(tmp_path / "99.db")
        assert is_writable(tmp_path / "199.db")


def test_odd_names(tmp_path: Path) -> None:
    names = [
        b"per%20cent.db",
        b"qu?estion#.db",
        b"new\nline.db",
        b"\xff\xfe.db",
        b"-dash",
        b"a b'\".db",
    ]
    for name in names:
        make(tmp_path / "plain.db").rename(tmp_path / os.fsdecode(name))
    with helper(kind="sqlite", roots=paths(tmp_path)) as held:
        assert held.ask("prepare", 10)["message"].startswith(f"{len(names)} databases found")
        message = held.ask("hold", 10, 30)["message"]
        assert message.isprintable()
        assert "new\\nline.db" in message
        for name in names:
            assert not is_writable(tmp_path / os.fsdecode(name))
    assert {os.fsencode(path.name) for path in tmp_path.iterdir()} == set(names), (
        "nothing is left beside them"
    )


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("SQLite format 3, or so")
    with helper(kind="sqlite", roots=paths(tmp_path, tmp_path / "missing")) as held:
        assert held.ask("prepare", 5).get("nothing") is True
    for path, what in (
        (tmp_path / "text", "is no SQLite database"),
        (tmp_path / "none", "No such"),
    ):
        with helper(kind="sqlite", paths=paths(path)) as held:
            assert what in held.ask("prepare", 5)["message"]
