"""The line that a space reads and writes: agent, branch, epoch. Every write passes its fence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from torpor.base.clock import Clock
from torpor.base.ids import new_id
from torpor.errors import HostNotReady, InvalidRequest, NotFound, WrongState
from torpor.memory import support
from torpor.memory.beliefs import Beliefs
from torpor.memory.embed.base import Embedder
from torpor.memory.rows import Branch, Head, Txn, VectorRow
from torpor.memory.store import Range, Store
from torpor.memory.times import to_us
from torpor.memory.unit import Unit, unit
from torpor.memory.view import NOW, View, load_branch


@dataclass(frozen=True, slots=True)
class Line:
    """What a space is bound to. A branch of None follows the agent's head; an epoch of None is the host."""

    store: Store
    clock: Clock
    embedder: Embedder | None
    agent: str
    actor: str
    fixed_branch: str | None = None
    known_at: int | None = None
    epoch: int | None = None
    fence: Callable[[], None] | None = None
    """Called in each write's transaction; raises to refuse it."""

    def now_us(self) -> int:
        """Return the time of day in microseconds."""
        return to_us(self.clock.now())

    def head(self) -> Head:
        """Return the agent's newest head."""
        found = self.store.newest(Head, {"agent": self.agent})
        if found is None:
            raise NotFound(f"there is no memory of agent {self.agent}", agent=self.agent)
        return found

    def branch(self) -> Branch:
        """Return the branch that is read and written now."""
        return load_branch(self.store, self.fixed_branch or self.head().branch)

    def view(self, known_at: int | datetime | None = None) -> View:
        """Return what is seen now, or was seen at `known_at`."""
        cutoff = self.cutoff(known_at)
        if self.known_at is not None:
            cutoff = self.known_at if cutoff is None else min(cutoff, self.known_at)
        return View(self.store, self.branch(), cutoff)

    def cutoff(self, known_at: int | datetime | None) -> int | None:
        """Return the transaction that a moment stands for: the last one that was committed by then."""
        if known_at is None or isinstance(known_at, int):
            if known_at is not None and known_at < 0:
                raise InvalidRequest(f"known_at must not be negative, got {known_at}")
            return None if known_at is None else min(known_at, NOW)
        found = self.store.select(Txn, {"at": Range(high=to_us(known_at))})
        return max((txn.tx for txn in found), default=0)

    @contextlib.contextmanager
    def write(self, kind: str, reason: str = "") -> Iterator[tuple[Unit, View]]:
        """Open a write on this line; at its end what lost its support is suspended.

        Raises:
            WrongState: the space looks at the past, or the machine was put back since it was opened.
        """
        if self.known_at is not None:
            raise WrongState(
                f"this space shows memory as known at {self.known_at} and cannot be written",
                hint="open one without known_at",
            )
        with self.store.transaction():
            branch = self.branch()
            self._check_epoch()
            with unit(
                self.store,
                self.clock,
                branch=branch.id,
                actor=self.actor,
                kind=kind,
                reason=reason,
            ) as work:
                view = View(self.store, branch, None)
                yield work, view
                support.recheck(work, view)

    def _check_epoch(self) -> None:
        if self.fence is not None:
            self.fence()
        if self.epoch is None:
            return
        now = self.head().epoch
        if now != self.epoch:
            raise WrongState(
                f"the machine of {self.agent} is at epoch {now}; this writer is from epoch {self.epoch}",
                hint="the machine was put back or woken elsewhere: open the space again",
                epoch=now,
                given=self.epoch,
            )

    def beliefs(self, known_at: int | datetime | None = None) -> Beliefs:
        """Return the facts of the view."""
        return Beliefs(self.view(known_at))

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return the vectors of texts as they are stored. Never in a transaction.

        Nothing without an embedder, or while its endpoint is away: then texts are found by their words, until they are
        embedded later.
        """
        try:
            return self.meaning_of(texts)
        except HostNotReady as exc:
            if not exc.facts.get("is_away"):
                raise
            return []

    def meaning_of(self, texts: Sequence[str]) -> list[bytes]:
        """Return the vectors of texts; nothing without an embedder. Raises `HostNotReady`."""
        return self.embedder.embed(texts) if self.embedder is not None and texts else []

    def put_vectors(self, owners: Sequence[str], blobs: Sequence[bytes]) -> None:
        """Keep vectors beside their owners."""
        if self.embedder is None:
            return
        for owner, blob in zip(owners, blobs, strict=True):
            self.store.put_vector(
                VectorRow(owner, self.embedder.model, self.embedder.dim, "float16", blob)
            )


def ensure_agent(store: Store, clock: Clock, agent: str, actor: str) -> None:
    """Give an agent its first branch, if it has none."""
    if store.newest(Head, {"agent": agent}) is not None:
        return
    with store.transaction():
        if store.newest(Head, {"agent": agent}) is not None:
            return
        name = new_id("br")
        with unit(store, clock, branch=name, actor=actor, kind="create", reason="") as work:
            work.put(Branch(name, work.tx, name, agent, name, None, 0, None, "", work.salt()))
            work.put(Head(new_id("head"), work.tx, name, agent, 1, work.salt()))
