"""The store in a PostgreSQL schema: extra `torpor[postgres]`. The same rows and rules as in one file.

Writers of one schema take turns by an advisory lock, so that transaction numbers have no gaps. The text index
is a table of postings with BM25 in SQL: PostgreSQL's own rank is no BM25. Vectors are bytes and are scanned
by the caller, exactly, as with SQLite; no extension is needed. `scan` reads what the server would give to a
dump; its write-ahead log, replicas and backups are the administrator's.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from torpor.errors import (
    Busy,
    Conflict,
    DataDamaged,
    HostNotReady,
    InsufficientResources,
    InvalidRequest,
    TorporError,
)
from torpor.memory import sql
from torpor.memory.postgres_schema import MIGRATIONS
from torpor.memory.rows import TABLES, VectorRow
from torpor.memory.sqlstore import SqlStore, unstorable
from torpor.memory.store import Scan, Scope

if TYPE_CHECKING:
    import psycopg

_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,40}")


class PostgresStore(SqlStore):
    """One schema of a PostgreSQL database (14 or newer)."""

    order = "n"

    def __init__(
        self, dsn: str, *, schema: str = "torpor_memory", busy_timeout_s: float = 5.0
    ) -> None:
        super().__init__()
        if _SCHEMA.fullmatch(schema) is None:
            raise InvalidRequest(f"{schema!r} cannot name a schema", hint="use a-z, 0-9 and _")
        try:
            import psycopg
        except ImportError as exc:
            raise HostNotReady(
                "the PostgreSQL store needs psycopg", hint="pip install 'torpor[postgres]'"
            ) from exc
        self._schema = schema
        self._lock_key = int.from_bytes(hashlib.sha256(schema.encode()).digest()[:7], "big")
        self._timeout_ms = int(busy_timeout_s * 1000)
        with self._typed():
            self._db = psycopg.connect(dsn, autocommit=True)
        try:
            with self._typed():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._run(f"SET lock_timeout = {self._timeout_ms}")
        self._run("SET client_min_messages = warning")
        self._run("SET synchronous_commit = on")
        self._begin()
        try:
            self._run(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            self._run(f"SET search_path = {self._schema}")
            self._run("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
            version = self._version()
            for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
                for statement in step:
                    self._run(statement)
                self._run("INSERT INTO schema_version VALUES (?)", (number,))
            self._run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._run(f"SET search_path = {self._schema}")

    def _version(self) -> int:
        row = self._run("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()
        version = int(row[0]) if row is not None else 0
        if version > len(MIGRATIONS):
            raise HostNotReady(
                f"schema {self._schema} is of version {version}; this Torpor knows {len(MIGRATIONS)}",
                hint="update Torpor",
            )
        return version

    @override
    def _run(self, query: str, values: Sequence[object] = ()) -> psycopg.Cursor[Any]:
        text: Any = query.replace(" LIKE ? ", " ILIKE ? ").replace("?", "%s")
        return self._db.execute(text, tuple(values) or None)

    @override
    def _run_many(self, query: str, rows: Iterable[tuple[Any, ...]]) -> None:
        text: Any = query.replace("?", "%s")
        with self._db.cursor() as cursor:
            cursor.executemany(text, [tuple(row) for row in rows])

    @override
    def _typed(self) -> contextlib.AbstractContextManager[None]:
        return _typed()

    @override
    def _begin(self) -> None:
        self._db.execute("BEGIN")
        try:
            self._run("SELECT pg_advisory_xact_lock(?)", (self._lock_key,))
        except BaseException:
            self._roll_back()
            raise

    @override
    def _roll_back(self) -> None:
        from psycopg.pq import TransactionStatus

        if self._db.info.transaction_status not in (
            TransactionStatus.IDLE,
            TransactionStatus.UNKNOWN,
        ):
            self._db.execute("ROLLBACK")

    def index(self, owner: str, kind: str, branch: str, session: str, tx: int, text: str) -> None:
        """Make `text` findable on `branch` from `tx` on."""
        with self._lock, self._typed():
            doc = self._run(
                "INSERT INTO doc(owner, kind, branch, session, tx, len) VALUES (?,?,?,?,?,0) RETURNING doc",
                (owner, kind, branch, session, tx),
            ).fetchone()
            assert doc is not None
            for part in _parts(text):
                self._run(_POST, (doc[0], part))
            self._run(
                "UPDATE doc SET len = (SELECT coalesce(sum(tf), 0) FROM posting WHERE doc = ?) WHERE doc = ?",
                (doc[0], doc[0]),
            )

    def unindex(self, owner: str, text: str) -> int:
        """Take `owner` out of the index."""
        with self._lock, self._typed():
            self._run(
                "DELETE FROM posting WHERE doc IN (SELECT doc FROM doc WHERE owner = ?)", (owner,)
            )
            return int(self._run("DELETE FROM doc WHERE owner = ?", (owner,)).rowcount)

    def bm25(
        self, terms: Sequence[str], scopes: Sequence[Scope], limit: int
    ) -> list[tuple[int, float]]:
        """Return (document, score) of the best matches of any term."""
        if not terms:
            return []
        clause, values = sql.scoped(scopes)
        with self._lock, self._typed():
            rows = self._run(_BM25.format(clause=clause), (" ".join(terms), *values, limit))
            return [(int(doc), float(score)) for doc, score in rows]

    def put_vector(self, row: VectorRow) -> None:
        """Keep an embedding."""
        with self._lock, self._typed():
            self._run(
                sql.insert(VectorRow)
                + " ON CONFLICT (owner, model) DO UPDATE SET blob = excluded.blob, dim = excluded.dim",
                row,
            )

    def log(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write log rows without waiting for the disk."""
        with self._lock, self._typed():
            if self._depth:
                self._insert_many(rows)
                return
            with self.transaction():
                self._run("SET LOCAL synchronous_commit = off")
                self._insert_many(rows)

    def set_meta(self, key: str, value: str) -> None:
        """Keep a setting inside a transaction."""
        with self._lock, self._typed():
            self._run(
                "INSERT INTO meta(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, value),
            )

    def scrub(self) -> None:
        """Write the tables anew, without their dead rows; others wait meanwhile."""
        self.rebuild()

    def rebuild(self) -> None:
        """Write the tables anew."""
        with self._lock, self._typed():
            for name in (*TABLES.values(), "posting", "meta"):
                self._run(f"VACUUM FULL {name}")

    def size_bytes(self) -> int:
        """Return the size of all tables with their indexes."""
        with self._lock, self._typed():
            row = self._run(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
                "JOIN pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = ? AND c.relkind = 'r'",
                (self._schema,),
            ).fetchone()
        return int(row[0]) if row is not None else 0

    def scan(self, needles: Sequence[bytes]) -> Scan:
        """Look for bytes in all that the server would give to a dump of the schema."""
        hits = scanned = 0
        found: set[bytes] = set()
        with self._lock, self._typed():
            for name in (*TABLES.values(), "posting", "meta"):
                for row in self._run(f"SELECT * FROM {name}"):  # noqa: S608  # names come from rows.py
                    body = b"\x1f".join(v if isinstance(v, bytes) else str(v).encode() for v in row)
                    scanned += len(body)
                    for needle in needles:
                        count = body.count(needle)
                        hits += count
                        if count:
                            found.add(needle)
        return Scan(hits, scanned, frozenset(found))

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()


_POST = """
INSERT INTO posting(term, doc, tf)
SELECT lexeme, ?, greatest(coalesce(array_length(positions, 1), 1), 1)
FROM unnest(to_tsvector('english', ?))
ON CONFLICT (term, doc) DO UPDATE SET tf = posting.tf + excluded.tf
"""

_BM25 = """
WITH wanted AS (SELECT DISTINCT lexeme AS term FROM unnest(to_tsvector('english', ?))),
     size AS (SELECT count(*)::float8 AS docs, greatest(avg(len), 1)::float8 AS mean FROM doc),
     seen AS (SELECT p.term, count(*)::float8 AS docs FROM posting p JOIN wanted USING (term) GROUP BY p.term)
SELECT d.doc, sum(
    ln(1 + (size.docs - seen.docs + 0.5) / (seen.docs + 0.5))
    * p.tf * 2.2 / (p.tf + 1.2 * (0.25 + 0.75 * d.len / size.mean))) AS score
FROM wanted JOIN seen USING (term) JOIN posting p USING (term) JOIN doc d ON d.doc = p.doc, size
WHERE {clause}
GROUP BY d.doc ORDER BY score DESC, d.doc LIMIT ?
"""
_PART_CHARS = 200_000
"""A tsvector holds at most 1 MiB; a text is indexed in parts."""


def _parts(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PART_CHARS):
        yield text[start : start + _PART_CHARS]


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.Error as exc:
        raise _translate(exc) from exc
    except (OverflowError, UnicodeEncodeError) as exc:
        raise unstorable(exc) from exc


def _translate(exc: psycopg.Error) -> TorporError:
    from psycopg import errors

    said = str(exc).strip().partition("\n")[0]
    if isinstance(
        exc, (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure)
    ):
        return Busy("another writer holds the memory", hint="try again")
    if isinstance(exc, (errors.DiskFull, errors.OutOfMemory)):
        return InsufficientResources(f"the server has no room; nothing was written: {said}")
    if isinstance(exc, (errors.DataCorrupted, errors.IndexCorrupted)):
        return DataDamaged(f"the memory is damaged: {said}", hint="restore a backup")
    if isinstance(exc, errors.IntegrityError):
        return Conflict(f"the memory does not take the row: {said}")
    if isinstance(exc, errors.DataError):
        return InvalidRequest(f"a number or text cannot be kept: {said}")
    if isinstance(exc, errors.OperationalError):
        return HostNotReady(f"the database does not answer: {said}", hint="check the address")
    return TorporError(f"the memory's database failed: {said}")
