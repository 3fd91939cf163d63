"""Looks into one SQLite database. Reads what to ask from stdin as JSON, prints JSON.

The file is opened as its owner, so that no file of ours, or root's, is left beside it; and it is opened as
the application opens it, for only then the write-ahead log is read too. Nothing is written but the canary.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import sys
import urllib.parse

CANARY = "_torpor_canary"
ROWS_MOST = 1000
CELL_CHARS = 2000
PROBLEMS_MOST = 5


def deleted_log_holders(path: str) -> list[int]:
    """Return the processes that write to a log of this database which is deleted: all they write is lost."""
    gone = {path + "-wal (deleted)", path + "-shm (deleted)", path + " (deleted)"}
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdecimal():
            continue
        try:
            for fd in os.listdir("/proc/%s/fd" % pid):
                if os.readlink("/proc/%s/fd/%s" % (pid, fd)) in gone:
                    found.append(int(pid))
                    break
        except OSError:
            continue
    return found


def become_owner(path: str) -> None:
    """Give up root for the user who owns the file."""
    if os.geteuid() == 0:
        facts = os.stat(path)
        os.setgroups([])
        os.setgid(facts.st_gid)
        os.setuid(facts.st_uid)


def connect(path: str, *, timeout: float) -> sqlite3.Connection:
    """Open the database, which has to exist."""
    uri = "file:%s?mode=rw" % urllib.parse.quote(path)
    connection = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)
    keep = getattr(sqlite3, "SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE", None)
    has_log = os.path.exists(path + "-wal") and os.path.getsize(path + "-wal") > 0
    if keep is not None and has_log:
        connection.setconfig(keep, True)  # type: ignore[attr-defined]  # Python 3.12: leave its log as it is
    return connection


def quick_check(connection: sqlite3.Connection) -> list[str]:
    """Return what SQLite finds wrong."""
    found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(%d)" % PROBLEMS_MOST)]
    return [] if found == ["ok"] else found


def fingerprint(connection: sqlite3.Connection) -> str:
    """Return SHA-256 over the schema: a line of type, name, table and SQL for each object, sorted."""
    rows = connection.execute(
        "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"
        " WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~' AND tbl_name <> ?",
        (CANARY,),
    )
    lines = sorted("\x1f".join([*map(str, row[:3]), " ".join(str(row[3]).split())]) for row in rows)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the tables, some fifty at most."""
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
        " AND coalesce(sql, '') NOT LIKE 'CREATE VIRTUAL%' ORDER BY name LIMIT 50"
    )
    return [str(row[0]) for row in rows]


def count(connection: sqlite3.Connection, table: str) -> int | None:
    """Return the rows of a table; None: there is no such table."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if known is None:
        return None
    quoted = '"%s"' % table.replace('"', '""')
    return int(connection.execute("SELECT count(*) FROM %s" % quoted).fetchone()[0])


def query(connection: sqlite3.Connection, sql: str) -> object:
    """Return a single value, or a list with a line for each row."""
    cursor = connection.execute(sql)
    rows = cursor.fetchmany(ROWS_MOST + 1)
    if len(rows) == 1 and len(rows[0]) == 1:
        value = rows[0][0]
        return value if isinstance(value, (int, float)) else _cell(value)
    return ["|".join(map(_cell, row)) for row in rows[:ROWS_MOST]]


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()[:CELL_CHARS]
    return "" if value is None else str(value)[:CELL_CHARS]


def canary(path: str, timeout: float) -> None:
    """Write a row, close, open again, read it, and take it away. Raises what SQLite raises, or ValueError."""
    token = secrets.token_hex(16)
    connection = connect(path, timeout=timeout)
    connection.execute("CREATE TABLE IF NOT EXISTS %s (token TEXT)" % CANARY)
    try:
        connection.execute("INSERT INTO %s VALUES (?)" % CANARY, (token,))
        connection.close()
        connection = connect(path, timeout=timeout)
        found = connection.execute("SELECT token FROM %s WHERE token = ?" % CANARY, (token,))
        if found.fetchone() is None:
            raise ValueError(
                "what was written is not there after the database was closed and opened"
            )
    finally:
        connection.execute("DROP TABLE IF EXISTS %s" % CANARY)
        connection.close()


def look(asked: dict) -> dict:  # type: ignore[type-arg]
    """Return what was found."""
    path = os.path.realpath(asked["path"])
    if not os.path.exists(path):
        return {"missing": "there is no such file"}
    holders = deleted_log_holders(path)
    if holders:  # not opened: a new log beside the lost one would make it worse
        pids = ", ".join(map(str, holders))
        return {"broken": "process %s holds a deleted file of it: what that writes is lost" % pids}
    become_owner(path)
    with open(path, "rb") as file:
        header = file.read(16)
    if header != b"SQLite format 3\x00":
        said = header.hex() or "it is empty"
        return {"broken": "it does not begin as an SQLite database: %s" % said}
    problems = []
    connection = connect(path, timeout=asked["lock_wait"])
    try:
        connection.execute("PRAGMA query_only = ON")
        if asked["quick-check"]:
            problems = quick_check(connection)
        found: dict = {"problems": problems}  # type: ignore[type-arg]
        found["schema"] = fingerprint(connection)
        names = tables(connection) if asked["tables"] is None else asked["tables"]
        found["rows"] = {table: count(connection, table) for table in names}
        connection.set_authorizer(_no_attach)
        found["queries"] = {sql: _asked(connection, sql) for sql in asked["queries"]}
    finally:
        connection.close()
    if asked["write-canary"]:
        found["canary"] = "not tried: the database is damaged"
        if not problems:
            found["canary"] = _canary(path, asked["lock_wait"])
    return found


def _asked(connection: sqlite3.Connection, sql: str) -> dict:  # type: ignore[type-arg]
    try:
        return {"value": query(connection, sql)}
    except sqlite3.Error as exc:
        return {"error": str(exc)}


def _canary(path: str, timeout: float) -> str:
    try:
        canary(path, timeout)
    except (sqlite3.Error, ValueError, OSError) as exc:
        if _is_locked(exc):
            raise
        return str(exc)
    return "ok"


def _no_attach(action: int, *_names: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


def _is_locked(exc: BaseException) -> bool:
    return isinstance(exc, sqlite3.OperationalError) and (
        "locked" in str(exc) or "busy" in str(exc)
    )


def main() -> None:
    """Look, and print what was found, or `{locked}`, `{broken}` or `{missing}`."""
    asked = json.loads(sys.stdin.buffer.read())
    try:
        found = look(asked)
    except sqlite3.Error as exc:
        found = {"locked" if _is_locked(exc) else "broken": str(exc)}
    except OSError as exc:
        found = {"broken": str(exc)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
