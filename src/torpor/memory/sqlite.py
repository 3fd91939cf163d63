"""The store in one SQLite file: write-ahead log, FTS5, vectors as BLOBs; Python's own sqlite3, no extension.

`secure_delete` is on from the first page, so that freed pages are zeroed; FTS5 forgets terms only when it
is merged, which `scrub` does (SQLite before 3.42 has no secure delete in FTS5).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torpor.errors import (
    Busy,
    Conflict,
    DataDamaged,
    HostNotReady,
    InsufficientResources,
    TorporError,
)
from torpor.memory.rows import TABLES, DocRow, VectorRow, columns
from torpor.memory.sqlite_schema import APPLICATION_ID, MIGRATIONS
from torpor.memory.store import Range, Scan, Scope, Where

R = TypeVar("R", bound=tuple[Any, ...])

_BATCH = 500
"""Values in one IN list; SQLite's limit was 999 before 3.32."""
_CHECK_BELOW = 64 << 20
"""Files up to this size get a structural check when opened; it costs about 1 ms a MiB."""


class SqliteStore:
    """One SQLite file. Several processes may open it; SQLite lets one write at a time."""

    def __init__(self, path: Path, *, busy_timeout_s: float = 5.0) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        _refuse_foreign(path)
        with _typed(path):
            self._db = sqlite3.connect(
                path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
        try:
            with _typed(path):
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        fresh = self.path.stat().st_size == 0
        if fresh:
            self.path.chmod(0o600)
        elif self.path.stat().st_size <= _CHECK_BELOW:
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise DataDamaged(
                    f"{self.path} is damaged: {found}", hint=_SALVAGE, path=str(self.path)
                )
        self._db.execute("PRAGMA secure_delete = ON")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA temp_store = MEMORY")
        self._db.execute("PRAGMA cache_size = -65536")
        self._migrate()

    def _migrate(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            version = self._checked_version()
            for step in MIGRATIONS[version:]:
                for statement in step:
                    self._db.execute(statement)
            if version < len(MIGRATIONS):
                self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _checked_version(self) -> int:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        app = int(self._db.execute("PRAGMA application_id").fetchone()[0])
        empty = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not empty and app != APPLICATION_ID:
            raise Conflict(f"{self.path} is a database of something else", path=str(self.path))
        if version > len(MIGRATIONS):
            raise HostNotReady(
                f"{self.path} has schema {version}; this Torpor knows {len(MIGRATIONS)}",
                hint="update Torpor",
            )
        return version

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a write transaction, or a part of the one that this thread is in."""
        with self._lock, _typed(self.path):
            if self._depth:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                self._depth = 0

    def insert(self, row: tuple[Any, ...]) -> None:
        """Add a row inside a transaction."""
        with self._lock, _typed(self.path):
            self._db.execute(_insert_sql(type(row)), row)

    def select(self, table: type[R], where: Where, *, limit: int | None = None) -> list[R]:
        """Return the rows that match, in the order they were written."""
        make = table._make  # type: ignore[attr-defined]  # every table is a NamedTuple
        found: list[R] = []
        with self._lock, _typed(self.path):
            for clause, values in _conditions(where):
                sql = f"SELECT {', '.join(columns(table))} FROM {TABLES[table]}{clause} ORDER BY rowid"  # noqa: S608  # names come from rows.py
                if limit is not None:
                    sql += f" LIMIT {int(limit)}"
                found.extend(map(make, self._db.execute(sql, values)))
        return found if limit is None else found[:limit]

    def newest(self, table: type[R], where: Where) -> R | None:
        """Return the row written last of those that match."""
        make = table._make  # type: ignore[attr-defined]  # every table is a NamedTuple
        with self._lock, _typed(self.path):
            for clause, values in _conditions(where):
                sql = f"SELECT {', '.join(columns(table))} FROM {TABLES[table]}{clause} ORDER BY rowid DESC LIMIT 1"  # noqa: S608  # names come from rows.py
                row = self._db.execute(sql, values).fetchone()
                if row is not None:
                    result: R = make(row)
                    return result
        return None

    def stream(self, table: type[R]) -> Iterator[R]:
        """Yield all rows in the order they were written, a batch at a time."""
        make = table._make  # type: ignore[attr-defined]  # every table is a NamedTuple
        last = -1
        sql = f"SELECT rowid, {', '.join(columns(table))} FROM {TABLES[table]} WHERE rowid > ? ORDER BY rowid LIMIT 1000"  # noqa: S608  # names come from rows.py
        while True:
            with self._lock, _typed(self.path):
                rows = self._db.execute(sql, (last,)).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            for row in rows:
                yield make(row[1:])

    def count(self, table: type[tuple[Any, ...]], where: Where) -> int:
        """Return how many rows match."""
        total = 0
        with self._lock, _typed(self.path):
            for clause, values in _conditions(where):
                sql = f"SELECT count(*) FROM {TABLES[table]}{clause}"  # noqa: S608  # names come from rows.py
                total += self._db.execute(sql, values).fetchone()[0]
        return total

    def delete(self, table: type[tuple[Any, ...]], column: str, values: Sequence[str]) -> int:
        """Delete rows inside a transaction."""
        gone = 0
        if column not in columns(table):
            raise TorporError(f"table {TABLES[table]} has no column {column}")
        with self._lock, _typed(self.path):
            for clause, part in _conditions({column: list(values)}):
                gone += self._db.execute(f"DELETE FROM {TABLES[table]}{clause}", part).rowcount  # noqa: S608  # names come from rows.py
        return gone

    def blank_reason(self, tx: int) -> None:
        """Remove a transaction's reason and salt."""
        with self._lock, _typed(self.path):
            self._db.execute("UPDATE txn SET reason = NULL, salt = NULL WHERE tx = ?", (tx,))

    def last_tx(self) -> int:
        """Return the number of the last transaction."""
        with self._lock, _typed(self.path):
            return int(self._db.execute("SELECT coalesce(max(tx), 0) FROM txn").fetchone()[0])

    def index(self, owner: str, kind: str, branch: str, session: str, tx: int, text: str) -> None:
        """Make `text` findable on `branch` from `tx` on."""
        with self._lock, _typed(self.path):
            cursor = self._db.execute(
                "INSERT INTO doc(owner, kind, branch, session, tx) VALUES (?,?,?,?,?)",
                (owner, kind, branch, session, tx),
            )
            self._db.execute("INSERT INTO fts(rowid, text) VALUES (?, ?)", (cursor.lastrowid, text))

    def unindex(self, owner: str, text: str) -> int:
        """Take `owner` out of the index."""
        with self._lock, _typed(self.path):
            docs = self._db.execute("SELECT doc FROM doc WHERE owner = ?", (owner,)).fetchall()
            for (doc,) in docs:
                self._db.execute(
                    "INSERT INTO fts(fts, rowid, text) VALUES ('delete', ?, ?)", (doc, text)
                )
            self._db.execute("DELETE FROM doc WHERE owner = ?", (owner,))
        return len(docs)

    def documents(self, scopes: Sequence[Scope], after: int) -> list[DocRow]:
        """Return documents above number `after` in `scopes`."""
        clause, values = _scoped(scopes)
        sql = f"SELECT {', '.join(columns(DocRow))} FROM doc WHERE doc > ? AND ({clause}) ORDER BY doc"  # noqa: S608  # only placeholders
        with self._lock, _typed(self.path):
            return [DocRow._make(row) for row in self._db.execute(sql, (after, *values))]

    def bm25(
        self, terms: Sequence[str], scopes: Sequence[Scope], limit: int
    ) -> list[tuple[int, float]]:
        """Return (document, score) of the best matches of any term."""
        words = [term.replace('"', " ").strip() for term in terms]
        match = " OR ".join(f'"{word}"' for word in words if word)
        if not match:
            return []
        clause, values = _scoped(scopes)
        sql = (
            "SELECT d.doc, -bm25(fts) AS s FROM fts JOIN doc AS d ON d.doc = fts.rowid "  # noqa: S608  # only placeholders
            f"WHERE fts MATCH ? AND ({clause}) ORDER BY s DESC, d.doc LIMIT ?"
        )
        with self._lock, _typed(self.path):
            return [(doc, s) for doc, s in self._db.execute(sql, (match, *values, limit))]

    def put_vector(self, row: VectorRow) -> None:
        """Keep an embedding."""
        with self._lock, _typed(self.path):
            self._db.execute(_insert_sql(VectorRow).replace("INSERT", "INSERT OR REPLACE", 1), row)

    def vectors(self, model: str, owners: Sequence[str]) -> dict[str, bytes]:
        """Return the vectors of `owners` made by `model`."""
        found: dict[str, bytes] = {}
        with self._lock, _typed(self.path):
            for clause, values in _conditions({"owner": list(owners)}):
                sql = f"SELECT owner, blob FROM embedding{clause} AND model = ?"  # noqa: S608  # only placeholders
                found.update(self._db.execute(sql, (*values, model)))
        return found

    def log(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write log rows without waiting for the disk; within a transaction they are part of it."""
        with self._lock, _typed(self.path):
            if self._depth:
                self._insert_many(rows)
                return
            self._db.execute("PRAGMA synchronous = NORMAL")
            try:
                with self.transaction():
                    self._insert_many(rows)
            finally:
                self._db.execute("PRAGMA synchronous = FULL")

    def _insert_many(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for table, group in itertools.groupby(rows, type):
            self._db.executemany(_insert_sql(table), group)

    def meta(self, key: str) -> str | None:
        """Return a setting."""
        with self._lock, _typed(self.path):
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str) -> None:
        """Keep a setting inside a transaction."""
        with self._lock, _typed(self.path):
            self._db.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", (key, value))

    def scrub(self) -> None:
        """Merge the text index and fold the log into the database.

        Raises:
            Busy: a reader elsewhere still holds an old page; what was deleted is still in the log.
        """
        with self._lock, _typed(self.path):
            self._checkpoint()
            self._db.execute("INSERT INTO fts(fts) VALUES ('optimize')")
            self._checkpoint()

    def _checkpoint(self) -> None:
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise Busy(
                f"another connection is reading {self.path}; its log cannot be emptied yet",
                hint="close other readers and run verify_erasure",
            )

    def rebuild(self) -> None:
        """Write the whole database anew."""
        with self._lock, _typed(self.path):
            self._db.execute("VACUUM")
            self._checkpoint()

    def scan(self, needles: Sequence[bytes]) -> Scan:
        """Look for bytes in the database, its log and its rollback journal."""
        with self._lock:
            return scan_files(
                [self.path, *(Path(f"{self.path}{end}") for end in ("-wal", "-journal"))], needles
            )

    def close(self) -> None:
        """Release the file; the log is folded in if no one else has it open."""
        with self._lock:
            self._db.close()


_SALVAGE = "read what is left with Memory.salvage(path, to=FILE) and import it into a new file"


def scan_files(paths: Sequence[Path], needles: Sequence[bytes]) -> Scan:
    """Look for needles in files; files that do not exist are skipped."""
    keep = max((len(n) for n in needles), default=1) - 1
    hits = scanned = 0
    found: set[bytes] = set()
    for path in paths:
        if not path.exists():
            continue
        tail = b""
        with path.open("rb") as file:
            while block := file.read(16 << 20):
                scanned += len(block)
                window = tail + block
                for needle in needles:
                    new = _fresh_hits(window, needle, len(tail))
                    hits += new
                    if new:
                        found.add(needle)
                tail = window[-keep:] if keep else b""
    return Scan(hits, scanned, frozenset(found))


def _fresh_hits(window: bytes, needle: bytes, tail: int) -> int:
    """Count occurrences in `window` that do not lie wholly in its first `tail` bytes."""
    count = 0
    at = window.find(needle)
    while at >= 0:
        count += at + len(needle) > tail
        at = window.find(needle, at + 1)
    return count


def _refuse_foreign(path: Path) -> None:
    """Refuse a file that is no database, before SQLite can touch it."""
    if not path.parent.is_dir():
        raise HostNotReady(f"{path.parent} is not a folder", hint="create it first")
    if path.is_dir():
        raise Conflict(f"{path} is a folder", path=str(path))
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            head = file.read(16)
        if head != b"SQLite format 3\0":
            raise DataDamaged(
                f"{path} does not begin like a database", hint=_SALVAGE, path=str(path)
            )


@functools.cache
def _insert_sql(table: type[tuple[Any, ...]]) -> str:
    names = columns(table)
    return f"INSERT INTO {TABLES[table]}({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608  # names come from rows.py


def _conditions(where: Where) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield WHERE clauses; a long list of values becomes several, one after the other."""
    fixed: list[str] = []
    values: list[object] = []
    many: tuple[str, list[object]] | None = None
    for column, want in where.items():
        if isinstance(want, Range):
            for sign, end in ((">=", want.low), ("<=", want.high)):
                if end is not None:
                    fixed.append(f"{column} {sign} ?")
                    values.append(end)
        elif isinstance(want, (list, tuple, set, frozenset)):
            if many is not None:
                raise TorporError("a query may have one list of values")
            many = (column, list(want))
        elif want is None:
            fixed.append(f"{column} IS NULL")
        else:
            fixed.append(f"{column} = ?")
            values.append(want)
    if many is None:
        yield (" WHERE " + " AND ".join(fixed) if fixed else ""), tuple(values)
        return
    column, wanted = many
    for start in range(0, len(wanted), _BATCH):
        part = wanted[start : start + _BATCH]
        clause = " AND ".join([*fixed, f"{column} IN ({','.join('?' * len(part))})"])
        yield f" WHERE {clause}", (*values, *part)


def _scoped(scopes: Sequence[Scope]) -> tuple[str, tuple[object, ...]]:
    clause = " OR ".join(["(branch = ? AND tx <= ?)"] * len(scopes)) or "0"
    return clause, tuple(value for scope in scopes for value in scope)


@contextlib.contextmanager
def _typed(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours; the transaction was rolled back by then."""
    try:
        yield
    except sqlite3.Error as exc:
        raise _translate(path, exc) from exc


def _translate(path: Path, exc: sqlite3.Error) -> TorporError:
    code = getattr(exc, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy(f"another writer holds {path}", hint="try again", path=str(path))
    if primary == sqlite3.SQLITE_FULL or (
        primary == sqlite3.SQLITE_IOERR and _is_full(path.parent)
    ):
        return InsufficientResources(
            f"no space left for {path}; nothing was written", hint="free some space", path=str(path)
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DataDamaged(f"{path} is damaged: {exc}", hint=_SALVAGE, path=str(path))
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return HostNotReady(f"{path} cannot be opened for writing: {exc}", path=str(path))
    return TorporError(f"the memory in {path} failed: {exc}", path=str(path))


def _is_full(folder: Path) -> bool:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize < 1 << 20
