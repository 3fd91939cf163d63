"""All documents of a branch as arrays, kept in memory and brought up to date before each search.

A cache that can always be made again from the store: it follows new documents by their number and starts
over when something was erased or embedded anew (the store's `generation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torpor.memory.embed.base import Embedder
from torpor.memory.rows import Branch, DocRow, FactRow, StateRow
from torpor.memory.store import Range, Store
from torpor.memory.view import View
from torpor.model_memory import STANDING_KINDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EPISODE, FACT = 0, 1
GENERATION = "generation"


class Corpus:
    """The searchable documents of one branch. Not safe for threads; its owner locks it."""

    def __init__(self, store: Store, branch: Branch, embedder: Embedder | None) -> None:
        self._store = store
        self._view = View(store, branch, None)
        self._embedder = embedder
        self._generation: str | None = ""
        self.recalls = 0
        """How many were served from it."""
        self._reset()

    def _reset(self) -> None:
        import numpy as np

        dim = self._embedder.dim if self._embedder is not None else 0
        self.size = 0
        self.owners: list[str] = []
        self.position: dict[str, int] = {}
        self._last_doc = 0
        self._seen_tx = 0
        self._standing: dict[str, None] = {}
        self._ends: dict[tuple[str, str], int] = {}
        self._docs: NDArray[np.int64] = np.zeros(256, np.int64)
        self._kinds: NDArray[np.int8] = np.zeros(256, np.int8)
        self._txs: NDArray[np.int64] = np.zeros(256, np.int64)
        self._before: NDArray[np.int64] = np.full(256, -1, np.int64)
        self._after: NDArray[np.int64] = np.full(256, -1, np.int64)
        self._vectors: NDArray[np.float32] = np.zeros((256, dim), np.float32)

    @property
    def docs(self) -> NDArray[np.int64]:
        """Document numbers, rising."""
        return self._docs[: self.size]

    @property
    def kinds(self) -> NDArray[np.int8]:
        """`EPISODE` or `FACT`."""
        return self._kinds[: self.size]

    @property
    def txs(self) -> NDArray[np.int64]:
        """The transaction from which on each can be found."""
        return self._txs[: self.size]

    @property
    def before(self) -> NDArray[np.int64]:
        """Position of the episode before it in its session, -1 for none."""
        return self._before[: self.size]

    @property
    def after(self) -> NDArray[np.int64]:
        """Position of the episode after it in its session, -1 for none."""
        return self._after[: self.size]

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Unit vectors; a row of zeros has not been embedded."""
        return self._vectors[: self.size]

    def standing(self) -> list[str]:
        """Facts that are, or once were, of a standing kind or pinned; newest last."""
        return list(self._standing)

    def refresh(self) -> None:
        """Take in what was written since the last call, by whatever process."""
        generation = self._store.meta(GENERATION)
        if generation != self._generation:
            self._reset()
            self._generation = generation
        last = self._store.last_tx()
        if last == self._seen_tx:
            return
        docs = self._store.documents(self._view.scopes, self._last_doc)
        if docs:
            self._extend(docs)
        self._find_standing()
        self._seen_tx = last

    def _extend(self, docs: list[DocRow]) -> None:
        import numpy as np

        self._grow(self.size + len(docs))
        for row in docs:
            at = self.size
            self.size += 1
            self.owners.append(row.owner)
            self.position[row.owner] = at
            self._docs[at] = row.doc
            self._txs[at] = row.tx
            is_fact = row.kind == "fact"
            self._kinds[at] = FACT if is_fact else EPISODE
            self._before[at] = self._after[at] = -1
            if not is_fact:
                self._join(at, (row.branch, row.session))
        self._last_doc = docs[-1].doc
        if self._embedder is not None:
            blobs = self._store.vectors(self._embedder.model, [d.owner for d in docs])
            start = self.size - len(docs)
            for n, row in enumerate(docs):
                blob = blobs.get(row.owner)
                if blob is not None:
                    self._vectors[start + n] = np.frombuffer(blob, np.float16)

    def _join(self, at: int, session: tuple[str, str]) -> None:
        earlier = self._ends.get(session)
        if earlier is not None:
            self._before[at] = earlier
            self._after[earlier] = at
        self._ends[session] = at

    def _grow(self, size: int) -> None:
        import numpy as np

        have = len(self._docs)
        if size <= have:
            return
        more = max(size, have * 2) - have
        for name in ("_docs", "_kinds", "_txs", "_before", "_after", "_vectors"):
            old = getattr(self, name)
            pad = np.zeros((more, *old.shape[1:]), old.dtype)
            setattr(self, name, np.concatenate([old, pad]))

    def _find_standing(self) -> None:
        since = Range(low=self._seen_tx + 1)
        kinds = [str(k) for k in STANDING_KINDS]
        rows = self._store.select(FactRow, {"kind": kinds, "tx": since})
        pinned = self._store.select(StateRow, {"pinned": 1, "tx": since})
        found = [r.id for r in rows if r.key.startswith(self._view.branch.family)]
        for owner in (*found, *(s.object for s in pinned)):
            self._standing[owner] = None
