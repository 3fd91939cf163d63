"""SQLite databases: the fingerprint of the schema and the rows of each table, read without disturbing anyone.

Nothing is written, no file is made, and no writer waits longer than one short read:
- A database with a live WAL is read through its shared memory, read-only (`readonly_shm`): readers lock no writer out.
- One without (its WAL is empty or gone) is read as it lies (`immutable`), which takes no lock, and once more looked at
  afterwards: if it changed meanwhile, what was read is not used.
- One whose WAL has no shared memory beside it, as after a crash, is read as of its last checkpoint, and says so.
- One with a rollback journal is read under SQLite's own shared lock, which holds a commit up for that long.

POSIX locks belong to a process and are lost when it closes any descriptor on the file: so none of this happens in
the agent, whose own holds on databases would be gone.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

from torpor_guest.inventory.budget import Budget, Section
from torpor_guest.inventory.content import Cache
from torpor_guest.inventory.keyed import Keyed
from torpor_guest.inventory.walk import Found, Walker

MAGIC = b"SQLite format 3\0"
ONE_MOST_S = 0.5
"""Seconds that one database may take; then rows that were not counted are unknown."""
_AGAIN_S = 0.02
_COUNT = 'SELECT count(*) FROM "{name}"'
OBJECTS_MOST = 2000
_SCHEMA_MOST = 4 << 20


class Table(NamedTuple):
    """One table."""

    name: str
    schema: str
    rows: int | None
    """None: not counted in time."""


class Content(NamedTuple):
    """What a database holds."""

    schema: str
    version: int
    tables: tuple[Table, ...]
    has_all: bool
    """False: what its WAL holds is not in it."""


def databases(
    walker: Walker,
    cache: Cache,
    budget: Budget,
    keyed: Keyed,
    patterns: list[str],
    section: Section,
    tables: Section,
) -> None:
    """List the databases that patterns fit, told by their first bytes, and their tables."""
    done: set[str] = set()
    for pattern in patterns:
        for found in walker.glob(pattern, section):
            if (
                found.path in done
                or not found.is_file
                or found.path.endswith(("-wal", "-shm", "-journal"))
            ):
                continue
            done.add(found.path)
            if found.stat.st_size and not _is_database(found):
                continue
            budget.check_time()
            _database(walker.root + found.path, found, cache, budget, keyed, section, tables)


def _is_database(found: Found) -> bool:
    try:
        fd = found.open()
    except OSError:
        return True  # closed to us: said below
    try:
        return os.read(fd, len(MAGIC)) == MAGIC
    finally:
        os.close(fd)


def _database(
    path: str,
    found: Found,
    cache: Cache,
    budget: Budget,
    keyed: Keyed,
    section: Section,
    tables: Section,
) -> None:
    shown: dict[str, object] = {"size_bytes": found.stat.st_size}
    if not found.stat.st_size:
        section.add(found.path, shown | {"is_empty": True})
        return
    signature = _signature(path)
    newest = max((part for part in signature if part > 1 << 50), default=0)
    try:
        content = cache.get("sqlite", path, signature, lambda: read(path, budget, keyed), newest)
    except (sqlite3.Error, OSError) as exc:
        section.note(f"{found.path} cannot be read: {exc}")
        section.add(found.path, shown, unknown=["schema", "user_version", "has_all"])
        tables.cut(f"the tables of {found.path} are not known")
        return
    shown |= {"user_version": content.version, "has_all": content.has_all}
    section.add(found.path, shown, {"schema": content.schema})
    for table in content.tables:
        name = f"{found.path}: {table.name}"
        if table.rows is None:
            tables.add(name, {}, {"schema": table.schema}, ["rows"])
        else:
            tables.add(name, {"rows": table.rows}, {"schema": table.schema})


def _signature(path: str) -> tuple[int, ...]:
    """Return what differs when the database, or its WAL, does."""
    parts: list[int] = []
    for name in (path, f"{path}-wal", f"{path}-journal"):
        try:
            info = os.lstat(name)
            parts += (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        except OSError:
            parts += (-1, -1, -1, -1)
    return tuple(parts)


def read(path: str, budget: Budget, keyed: Keyed) -> Content:
    """Return what a database holds. Raises `sqlite3.Error`, `OSError`."""
    if os.path.realpath(path) != path:
        raise OSError(40, "it is behind a symlink", path)
    mode, has_all = _mode(path)
    before = _signature(path)
    with _connection(path, mode, budget) as (connection, is_late):
        content = _content(connection, keyed, has_all, is_late)
    if "immutable" in mode and _signature(path) != before:
        raise sqlite3.OperationalError("it was written to while it was read")
    return content


def _mode(path: str) -> tuple[str, bool]:
    """Return how to open a database, and whether all of it is read so."""
    with open(path, "rb") as file:
        head = file.read(20)
    uses_wal = len(head) == 20 and head[18] == 2
    if not uses_wal:
        return "mode=ro", True
    try:
        has_wal = os.lstat(f"{path}-wal").st_size > 0
    except OSError:
        has_wal = False
    if not has_wal:
        return "mode=ro&immutable=1", True
    if os.path.lexists(f"{path}-shm"):
        return "mode=ro&readonly_shm=1", True
    return "mode=ro&immutable=1", False


@contextlib.contextmanager
def _connection(
    path: str, mode: str, budget: Budget
) -> Iterator[tuple[sqlite3.Connection, threading.Event]]:
    """Enter with a connection that is interrupted when its time is up, and what tells that it was."""
    uri = f"file:{urllib.parse.quote(os.fsencode(path))}?{mode}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=0.1, isolation_level=None, check_same_thread=False
    )
    is_late, is_done = threading.Event(), threading.Event()

    def interrupt() -> None:
        if is_done.wait(min(ONE_MOST_S, budget.seconds_left)):
            return
        is_late.set()
        while True:  # one that comes between two statements is lost
            connection.interrupt()
            if is_done.wait(_AGAIN_S):
                return

    timer = threading.Thread(target=interrupt, name="limit", daemon=True)
    timer.start()
    try:
        connection.execute("PRAGMA query_only=1")
        connection.execute("PRAGMA trusted_schema=0")
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        yield connection, is_late
    finally:
        is_done.set()
        timer.join()
        connection.close()


def _content(
    connection: sqlite3.Connection, keyed: Keyed, has_all: bool, is_late: threading.Event
) -> Content:
    connection.execute("BEGIN")
    rows = connection.execute(
        "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master "
        "WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY type, name LIMIT ?",
        (OBJECTS_MOST + 1,),
    ).fetchall()
    if len(rows) > OBJECTS_MOST or sum(len(row[3]) for row in rows) > _SCHEMA_MOST:
        raise sqlite3.OperationalError(f"it has more than {OBJECTS_MOST} tables and indexes")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    virtual = tuple(f"{row[1]}_" for row in rows if _is_virtual(row[3]))
    tables = []
    for kind, name, _, sql in rows:
        if kind != "table" or (virtual and name.startswith(virtual)):
            continue
        own = [row for row in rows if row[2] == name]
        count = None if _is_virtual(sql) or is_late.is_set() else _count(connection, name, is_late)
        if not _is_virtual(sql):
            tables.append(Table(name, keyed.of_value("sqlite table", own), count))
    return Content(keyed.of_value("sqlite schema", rows), version, tuple(tables), has_all)


def _is_virtual(sql: str) -> bool:
    return sql[:30].upper().startswith("CREATE VIRTUAL TABLE")


def _count(connection: sqlite3.Connection, name: str, is_late: threading.Event) -> int | None:
    quoted = name.replace('"', '""')
    try:
        (count,) = connection.execute(_COUNT.format(name=quoted)).fetchone()
    except sqlite3.OperationalError:
        if is_late.is_set():
            return None
        raise
    return int(count)
