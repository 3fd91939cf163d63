"""The store: tables, a text index and vectors behind one protocol, so that a second one can be held to the same suite.

A store knows nothing of facts being true. It keeps rows (see `rows.py`), finds them by equality, lists
and ranges, ranks documents by BM25, hands out vectors, and can make deleted bytes really go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from torpor.memory.rows import DocRow, VectorRow

R = TypeVar("R", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Range:
    """A condition on a column: `low <= column <= high`; None leaves an end open. Text by code points."""

    low: int | str | None = None
    high: int | str | None = None


@dataclass(frozen=True, slots=True)
class Contains:
    """A condition on a text column: it has `text` in it, whatever the case of ASCII letters."""

    text: str


class Scope(NamedTuple):
    """A branch and the last transaction of it that a view sees."""

    branch: str
    cutoff: int


class Scan(NamedTuple):
    """What a search for bytes found."""

    hits: int
    scanned_bytes: int
    found: frozenset[bytes]


Where = Mapping[str, object]
"""Column → value, None, a list or set of values, a `Range` or `Contains`; all must hold."""


class Store(Protocol):
    """Rows, search and vectors of one memory. Calls may come from any thread; one writes at a time."""

    def transaction(self) -> AbstractContextManager[None]:
        """Open a write transaction: on leaving it all is durable, on an exception nothing happened.

        Raises:
            Busy: another writer held the store for too long.
            InsufficientResources: the disk is full.
        """
        ...

    def insert(self, row: tuple[Any, ...]) -> None:
        """Add a row inside a transaction."""
        ...

    def select(self, table: type[R], where: Where, *, limit: int | None = None) -> list[R]:
        """Return the rows of `table` that match, in the order they were written."""
        ...

    def newest(self, table: type[R], where: Where) -> R | None:
        """Return the row written last of those that match."""
        ...

    def stream(self, table: type[R]) -> Iterator[R]:
        """Yield all rows of `table` in the order they were written, with bounded memory."""
        ...

    def count(self, table: type[tuple[Any, ...]], where: Where) -> int:
        """Return how many rows match."""
        ...

    def delete(self, table: type[tuple[Any, ...]], column: str, values: Sequence[str]) -> int:
        """Delete the rows with `column` among `values` inside a transaction; only erasure does this."""
        ...

    def blank_reason(self, tx: int) -> None:
        """Remove a transaction's reason and its salt, leaving the digest; only erasure does this."""
        ...

    def last_tx(self) -> int:
        """Return the number of the last transaction, 0 if there is none."""
        ...

    def index(self, owner: str, kind: str, branch: str, session: str, tx: int, text: str) -> None:
        """Make `text` findable on `branch` from `tx` on."""
        ...

    def unindex(self, owner: str, text: str) -> int:
        """Take `owner` out of the index again; `text` is what was indexed. Return the documents removed."""
        ...

    def documents(self, scopes: Sequence[Scope], after: int) -> list[DocRow]:
        """Return documents above number `after` that lie in `scopes`, by number."""
        ...

    def bm25(
        self, terms: Sequence[str], scopes: Sequence[Scope], limit: int
    ) -> list[tuple[int, float]]:
        """Return (document, score) of the best matches of any term; higher is better."""
        ...

    def put_vector(self, row: VectorRow) -> None:
        """Keep an embedding, in place of an earlier one of the same owner and model."""
        ...

    def vectors(self, model: str, owners: Sequence[str]) -> dict[str, bytes]:
        """Return the vectors of `owners` made by `model`; owners without one are left out."""
        ...

    def log(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write log rows outside any transaction; a power cut may lose the last ones."""
        ...

    def trim_log(self, agent: str, keep: int) -> None:
        """Remove an agent's recalls from the log, but for the last `keep`."""
        ...

    def reading_at_most(self, limit_bytes: int) -> AbstractContextManager[None]:
        """Enter with a bound on the text that this thread selects in the block.

        Raises:
            LimitExceeded: there is more.
        """
        ...

    def meta(self, key: str) -> str | None:
        """Return a setting of this memory."""
        ...

    def set_meta(self, key: str, value: str) -> None:
        """Keep a setting inside a transaction."""
        ...

    def scrub(self) -> None:
        """Make deleted content leave the files: index merged, log folded into the database."""
        ...

    def rebuild(self) -> None:
        """Write the whole database anew: the last resort when `scrub` left traces."""
        ...

    def size_bytes(self) -> int:
        """Return about how much a `scan` has to read."""
        ...

    def scan(self, needles: Sequence[bytes]) -> Scan:
        """Look for bytes in every file of the store."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...
