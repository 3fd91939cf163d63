"""What every SQL store does alike; a subclass brings the connection, the text index and the scrubbing."""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from torpor.errors import InvalidRequest, LimitExceeded, TorporError
from torpor.memory import sql
from torpor.memory.rows import TABLES, DocRow, columns
from torpor.memory.store import Scope, Where

R = TypeVar("R", bound=tuple[Any, ...])


class SqlStore(ABC):
    """Rows over one connection, held by a lock for the length of a transaction."""

    order = "rowid"
    """The column that numbers rows as they are written."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._bound = _Bound()

    @abstractmethod
    def _run(self, query: str, values: Sequence[object] = ()) -> Any:
        """Run one statement and return its cursor."""

    @abstractmethod
    def _run_many(self, query: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run one statement for each row."""

    @abstractmethod
    def _typed(self) -> AbstractContextManager[None]:
        """Turn the driver's errors into ours."""

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a write transaction, or a part of the one that this thread is in."""
        with self._lock, self._typed():
            if self._depth:
                yield
                return
            self._begin()
            self._depth = 1
            try:
                yield
                self._run("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            finally:
                self._depth = 0

    @abstractmethod
    def _begin(self) -> None:
        """Begin a transaction as the only writer."""

    @abstractmethod
    def _roll_back(self) -> None:
        """Undo the transaction, if there still is one."""

    def insert(self, row: tuple[Any, ...]) -> None:
        """Add a row inside a transaction."""
        with self._lock, self._typed():
            self._run(sql.insert(type(row)), row)

    def select(self, table: type[R], where: Where, *, limit: int | None = None) -> list[R]:
        """Return the rows that match, in the order they were written."""
        make = table._make  # type: ignore[attr-defined]  # every table is a NamedTuple
        found: list[R] = []
        with self._lock, self._typed():
            for clause, values in sql.conditions(where):
                rows = self._run(sql.select(table, clause, self.order, limit), values)
                found.extend(map(make, self._bound.within(rows)))
        return found if limit is None else found[:limit]

    @contextlib.contextmanager
    def reading_at_most(self, limit_bytes: int) -> Iterator[None]:
        """Enter with a bound on the text that this thread selects."""
        self._bound.left, self._bound.limit = limit_bytes, limit_bytes
        try:
            yield
        finally:
            self._bound.left = None

    def trim_log(self, agent: str, keep: int) -> None:
        """Remove an agent's recalls from the log, but for the last `keep`."""
        mine = f"FROM recall_log WHERE agent = ? AND {self.order} <= ?"
        with self._lock, self._typed():
            last = self._run(
                f"SELECT {self.order} FROM recall_log WHERE agent = ? ORDER BY {self.order} DESC LIMIT 1 OFFSET ?",  # noqa: S608  # only placeholders
                (agent, keep),
            ).fetchone()
            if last is None:
                return
            with self.transaction():
                self._run(
                    f"DELETE FROM recall_item WHERE recall IN (SELECT id {mine})",  # noqa: S608  # only placeholders
                    (agent, last[0]),
                )
                self._run(f"DELETE {mine}", (agent, last[0]))

    def newest(self, table: type[R], where: Where) -> R | None:
        """Return the row written last of those that match."""
        make = table._make  # type: ignore[attr-defined]  # every table is a NamedTuple
        with self._lock, self._typed():
            for clause, values in sql.conditions(where):
                row = self._run(
                    sql.select(table, clause, f"{self.order} DESC", 1), values
                ).fetchone()
                if row is not None:
                    result: R = make(row)
                    return result
        return None

    def stream(self, table: type[R]) -> Iterator[R]:
        """Yield all rows in the order they were written, a batch at a time."""
        make = table._make  # type: ignore[attr-defined]  # every table is a NamedTuple
        last = -1
        query = f"SELECT {self.order}, {sql.names(table)} FROM {TABLES[table]} WHERE {self.order} > ? ORDER BY {self.order} LIMIT 1000"  # noqa: S608  # names come from rows.py
        while True:
            with self._lock, self._typed():
                rows = self._run(query, (last,)).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            for row in rows:
                yield make(row[1:])

    def count(self, table: type[tuple[Any, ...]], where: Where) -> int:
        """Return how many rows match."""
        total = 0
        with self._lock, self._typed():
            for clause, values in sql.conditions(where):
                query = f"SELECT count(*) FROM {TABLES[table]}{clause}"  # noqa: S608  # names come from rows.py
                total += self._run(query, values).fetchone()[0]
        return total

    def delete(self, table: type[tuple[Any, ...]], column: str, values: Sequence[str]) -> int:
        """Delete rows inside a transaction."""
        if column not in columns(table):
            raise TorporError(f"table {TABLES[table]} has no column {column}")
        gone = 0
        with self._lock, self._typed():
            for clause, part in sql.conditions({column: list(values)}):
                gone += self._run(f"DELETE FROM {TABLES[table]}{clause}", part).rowcount  # noqa: S608  # names come from rows.py
        return gone

    def blank_reason(self, tx: int) -> None:
        """Remove a transaction's reason and salt."""
        with self._lock, self._typed():
            self._run("UPDATE txn SET reason = NULL, salt = NULL WHERE tx = ?", (tx,))

    def last_tx(self) -> int:
        """Return the number of the last transaction."""
        with self._lock, self._typed():
            return int(self._run("SELECT coalesce(max(tx), 0) FROM txn").fetchone()[0])

    def documents(self, scopes: Sequence[Scope], after: int) -> list[DocRow]:
        """Return documents above number `after` in `scopes`."""
        clause, values = sql.scoped(scopes)
        query = sql.select(DocRow, f" WHERE doc > ? AND ({clause})", "doc", None)
        with self._lock, self._typed():
            return [DocRow._make(row) for row in self._run(query, (after, *values))]

    def vectors(self, model: str, owners: Sequence[str]) -> dict[str, bytes]:
        """Return the vectors of `owners` made by `model`."""
        found: dict[str, bytes] = {}
        with self._lock, self._typed():
            for clause, values in sql.conditions({"owner": list(owners)}):
                query = f"SELECT owner, blob FROM embedding{clause} AND model = ?"  # noqa: S608  # only placeholders
                found.update(self._run(query, (*values, model)).fetchall())
        return found

    def meta(self, key: str) -> str | None:
        """Return a setting."""
        with self._lock, self._typed():
            row = self._run("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def _insert_many(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for table, group in itertools.groupby(rows, type):
            self._run_many(sql.insert(table), group)


class _Bound(threading.local):
    """How much text a thread may still select; None: any."""

    left: int | None = None
    limit = 0

    def within(self, rows: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        """Return the rows, counted if there is a bound."""
        return rows if self.left is None else self._counted(rows)

    def _counted(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            assert self.left is not None
            self.left -= sum(len(v) for v in row if isinstance(v, (str, bytes)))
            if self.left < 0:
                raise LimitExceeded(
                    f"over {self.limit} bytes would have to be read for it",
                    hint="ask for less: one subject, one session",
                    limit_bytes=self.limit,
                )
            yield row


def unstorable(exc: Exception) -> InvalidRequest:
    """Return the error for a number or text, such as an id that nobody made, which no row can have."""
    why = "is over 64 bits" if isinstance(exc, OverflowError) else "is not valid Unicode"
    return InvalidRequest(f"a number or id {why}")
