"""The store in one SQLite file: write-ahead log, FTS5, vectors as BLOBs; Python's own sqlite3, no extension.

`secure_delete` is on from the first page, so that freed pages are zeroed; FTS5 forgets terms only when it
is merged, which `scrub` does (SQLite before 3.42 has no secure delete in FTS5).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from torpor.errors import (
    Busy,
    Conflict,
    DataDamaged,
    HostNotReady,
    InsufficientResources,
    TorporError,
)
from torpor.memory import sql
from torpor.memory.rows import VectorRow
from torpor.memory.sqlite_schema import APPLICATION_ID, MIGRATIONS
from torpor.memory.sqlstore import SqlStore, unstorable
from torpor.memory.store import Scan, Scope

_CHECK_BELOW = 64 << 20
"""Files up to this size get a structural check when opened; it costs about 1 ms a MiB."""


_LOG_WAIT_MS = 250
"""How long a log waits for another writer: who reads does not wait for long to note that it read."""


class SqliteStore(SqlStore):
    """One SQLite file. Several processes may open it; SQLite lets one write at a time."""

    def __init__(self, path: Path, *, busy_timeout_s: float = 5.0) -> None:
        super().__init__()
        self.path = path
        self._busy_ms = int(busy_timeout_s * 1000)
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

    @override
    def _run(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._db.execute(query, values)

    @override
    def _run_many(self, query: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._db.executemany(query, rows)

    @override
    def _typed(self) -> contextlib.AbstractContextManager[None]:
        return _typed(self.path)

    @override
    def _begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    @override
    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def index(self, owner: str, kind: str, branch: str, session: str, tx: int, text: str) -> None:
        """Make `text` findable on `branch` from `tx` on."""
        with self._lock, self._typed():
            cursor = self._db.execute(
                "INSERT INTO doc(owner, kind, branch, session, tx) VALUES (?,?,?,?,?)",
                (owner, kind, branch, session, tx),
            )
            self._db.execute("INSERT INTO fts(rowid, text) VALUES (?, ?)", (cursor.lastrowid, text))

    def unindex(self, owner: str, text: str) -> int:
        """Take `owner` out of the index."""
        with self._lock, self._typed():
            docs = self._db.execute("SELECT doc FROM doc WHERE owner = ?", (owner,)).fetchall()
            for (doc,) in docs:
                self._db.execute(
                    "INSERT INTO fts(fts, rowid, text) VALUES ('delete', ?, ?)", (doc, text)
                )
            self._db.execute("DELETE FROM doc WHERE owner = ?", (owner,))
        return len(docs)

    def bm25(
        self, terms: Sequence[str], scopes: Sequence[Scope], limit: int
    ) -> list[tuple[int, float]]:
        """Return (document, score) of the best matches of any term."""
        words = [term.replace('"', " ").strip() for term in terms]
        match = " OR ".join(f'"{word}"' for word in words if word)
        if not match:
            return []
        clause, values = sql.scoped(scopes)
        query = (
            "SELECT d.doc, -bm25(fts) AS s FROM fts JOIN doc AS d ON d.doc = fts.rowid "  # noqa: S608  # only placeholders
            f"WHERE fts MATCH ? AND ({clause}) ORDER BY s DESC, d.doc LIMIT ?"
        )
        with self._lock, self._typed():
            found: list[tuple[int, float]] = self._db.execute(
                query, (match, *values, limit)
            ).fetchall()
        return found

    def put_vector(self, row: VectorRow) -> None:
        """Keep an embedding."""
        with self._lock, self._typed():
            self._db.execute(sql.insert(VectorRow).replace("INSERT", "INSERT OR REPLACE", 1), row)

    def log(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write log rows without waiting for the disk; within a transaction they are part of it."""
        with self._lock, self._typed():
            if self._depth:
                self._insert_many(rows)
                return
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(f"PRAGMA busy_timeout = {min(_LOG_WAIT_MS, self._busy_ms)}")
            try:
                with self.transaction():
                    self._insert_many(rows)
            finally:
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute(f"PRAGMA busy_timeout = {self._busy_ms}")

    def set_meta(self, key: str, value: str) -> None:
        """Keep a setting inside a transaction."""
        with self._lock, self._typed():
            self._db.execute("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", (key, value))

    def scrub(self) -> None:
        """Merge the text index and fold the log into the database.

        Raises:
            Busy: a reader elsewhere still holds an old page; what was deleted is still in the log.
        """
        with self._lock, self._typed():
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
        with self._lock, self._typed():
            self._db.execute("VACUUM")
            self._checkpoint()

    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self.path.stat().st_size

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
    """Refuse a file that is no database or cannot be read, before SQLite can touch it."""
    try:
        _look(path)
    except OSError as exc:
        raise HostNotReady(f"{path} cannot be opened: {exc.strerror}", path=str(path)) from exc


def _look(path: Path) -> None:
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


@contextlib.contextmanager
def _typed(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours; the transaction was rolled back by then."""
    try:
        yield
    except sqlite3.Error as exc:
        raise _translate(path, exc) from exc
    except (OverflowError, UnicodeEncodeError) as exc:
        raise unstorable(exc) from exc


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
    is_garbled = str(exc).startswith("Could not decode")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or is_garbled:
        return DataDamaged(f"{path} is damaged: {exc}", hint=_SALVAGE, path=str(path))
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return Conflict(f"{path} does not take the row: {exc}", path=str(path))
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return HostNotReady(f"{path} cannot be opened for writing: {exc}", path=str(path))
    return TorporError(f"the memory in {path} failed: {exc}", path=str(path))


def _is_full(folder: Path) -> bool:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize < 1 << 20
