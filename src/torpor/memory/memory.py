"""`Memory`: one file of memory, and the spaces of the agents in it."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType

from torpor.base.clock import Clock, SystemClock
from torpor.errors import NotFound
from torpor.memory import chain, checks, jsonl, proving
from torpor.memory.corpus import GENERATION, Corpus
from torpor.memory.embed.base import Embedder
from torpor.memory.line import Line, ensure_agent
from torpor.memory.rows import Branch, DocRow, EpisodeRow, FactRow, Head, VectorRow
from torpor.memory.salvage import salvage
from torpor.memory.space import Space
from torpor.memory.sqlite import SqliteStore
from torpor.memory.store import Store
from torpor.memory.view import load_branch
from torpor.model_memory import ChainReport, Exported


class Memory:
    """What agents know, in one file outside their machines. Close it, or use it in a `with`."""

    def __init__(
        self, store: Store, *, embedder: Embedder | None = None, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._corpora: dict[str, Corpus] = {}
        self._unproven: proving.Unproven = {}
        if store.meta("id_key") is None:
            with store.transaction():
                if store.meta("id_key") is None:
                    store.set_meta("id_key", secrets.token_hex(32))
        proving.finish(store)

    @staticmethod
    def open(
        path: str | Path,
        *,
        embedder: Embedder | None = None,
        clock: Clock | None = None,
        busy_timeout_s: float = 5.0,
    ) -> Memory:
        """Open the memory in the file `path`, or at a `postgresql://` address; make it if it is not there.

        Raises:
            DataDamaged: the file is damaged; it was not changed.
            Conflict: it is a database of something else.
            HostNotReady: it is newer than this Torpor, or cannot be written.
            Busy: another writer held it for longer than `busy_timeout_s`.
        """
        store = open_store(path, busy_timeout_s=busy_timeout_s)
        try:
            return Memory(store, embedder=embedder, clock=clock)
        except BaseException:
            store.close()
            raise

    @staticmethod
    def salvage(path: str | Path, *, to: str | Path) -> Exported:
        """Write what can be read of a damaged file to an export; the file is not touched."""
        return salvage(Path(path), Path(to))

    def space(
        self,
        agent: str,
        *,
        branch: str | None = None,
        known_at: int | datetime | None = None,
        epoch: int | None = None,
        actor: str | None = None,
        fence: Callable[[], None] | None = None,
    ) -> Space:
        """Return the memory of one agent, made if it is new.

        Args:
            branch: stay on this branch; by default the space follows the agent's head.
            known_at: show memory as it was at a transaction or time; such a space cannot be written.
            epoch: the epoch of the machine that writes; writes are refused once the machine was put back.
            actor: who writes, for the log; `agent:NAME` by default.
            fence: called in each write's transaction; raises to refuse it.

        Raises:
            NotFound: there is no such branch, or it is of another family than the agent's.
        """
        line = self.line(agent, branch=branch, epoch=epoch, actor=actor)
        ensure_agent(self._store, self._clock, line.agent, line.actor)
        if branch is not None:
            self._check_kin(line, branch)
        bound = replace(line, known_at=line.cutoff(known_at), fence=fence)
        return Space(bound, self._corpus, self._unproven)

    def _check_kin(self, line: Line, branch: str) -> None:
        own = load_branch(self._store, line.head().branch)
        if load_branch(self._store, branch).family != own.family:
            raise NotFound(f"agent {line.agent} has no branch {branch}", branch=branch)

    @property
    def store(self) -> Store:
        """The rows beneath."""
        return self._store

    def line(
        self,
        agent: str,
        *,
        branch: str | None = None,
        epoch: int | None = None,
        actor: str | None = None,
    ) -> Line:
        """Return what a space of that agent is bound to; nothing is made."""
        name = checks.name(agent, "agent")
        writer = checks.name(actor, "actor") if actor is not None else f"agent:{name}"
        return Line(self._store, self._clock, self._embedder, name, writer, branch, None, epoch)

    def agents(self) -> tuple[str, ...]:
        """Return the agents that have a memory here."""
        return tuple(dict.fromkeys(h.agent for h in self._store.select(Head, {})))

    def has(self, agent: str) -> bool:
        """Return whether an agent has a memory here."""
        return self._store.newest(Head, {"agent": checks.name(agent, "agent")}) is not None

    @contextlib.contextmanager
    def _corpus(self, branch: Branch) -> Iterator[Corpus]:
        """Lend the up-to-date search arrays of a branch; one caller at a time."""
        with self._lock:
            found = self._corpora.get(branch.id)
            if found is None:
                found = self._corpora[branch.id] = Corpus(self._store, branch, self._embedder)
            found.refresh()
            yield found

    def verify_chain(self, *, expect: str | None = None) -> ChainReport:
        """Compare every row with the hash chain; `expect` is a head hash that was kept elsewhere."""
        return chain.verify(self._store, expect)

    def export(self, path: str | Path) -> Exported:
        """Write the whole memory as JSON lines, atomically."""
        return jsonl.export(self._store, Path(path))

    def import_(self, path: str | Path, *, verify: bool = True) -> Exported:
        """Read an export into this memory, which must be empty; without `verify` also a salvaged one.

        Raises:
            Conflict: the memory is not empty.
            DataDamaged: the file was changed, or has rows that no memory can have; nothing was written.
        """
        done = jsonl.import_(self._store, Path(path), verify=verify)
        with self._lock:
            self._corpora.clear()
        return done

    def embed_missing(self, *, batch: int = 64) -> int:
        """Embed what this memory's embedder has not embedded yet; return how many."""
        if self._embedder is None:
            return 0
        done = 0
        indexed = {d.owner for d in self._store.stream(DocRow)}
        texts = itertools.chain(
            ((r.id, r.content) for r in self._store.stream(EpisodeRow) if r.id in indexed),
            ((r.id, r.text) for r in self._store.stream(FactRow) if r.id in indexed),
        )
        while pending := list(itertools.islice(texts, batch)):
            done += self._embed(pending)
        with self._store.transaction():
            self._store.set_meta(GENERATION, secrets.token_hex(8))
        return done

    def _embed(self, pending: list[tuple[str, str]]) -> int:
        embedder = self._embedder
        assert embedder is not None
        known = self._store.vectors(embedder.model, [owner for owner, _ in pending])
        missing = [(owner, text) for owner, text in pending if owner not in known]
        if not missing:
            return 0
        blobs = embedder.embed([text for _, text in missing])
        with self._store.transaction():
            for (owner, _), blob in zip(missing, blobs, strict=True):
                self._store.put_vector(
                    VectorRow(owner, embedder.model, embedder.dim, "float16", blob)
                )
        return len(missing)

    def close(self) -> None:
        """Release the file."""
        self._store.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_store(path: str | Path, *, busy_timeout_s: float) -> Store:
    """Open the rows of a memory alone. Raises as `Memory.open`."""
    if isinstance(path, str) and path.startswith(("postgresql://", "postgres://")):
        from torpor.memory.postgres import PostgresStore

        return PostgresStore(path, busy_timeout_s=busy_timeout_s)
    return SqliteStore(Path(path), busy_timeout_s=busy_timeout_s)
