"""The memory of a daemon: one store, opened when it is first needed, called from a loop without blocking it.

A memory that cannot be opened is an error of those who ask for it, and of nobody else; the next call tries again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from torpor.base.clock import Clock
from torpor.errors import InvalidRequest, NotFound, TorporError
from torpor.memory import following, machine
from torpor.memory.embed.base import Embedder
from torpor.memory.memory import Memory, open_store
from torpor.memory.space import Space
from torpor.memory.store import Store
from torpor.model_memory import (
    ChainReport,
    Exported,
    Followed,
    MachineMove,
    SpaceInfo,
    Watermark,
)

T = TypeVar("T")

_THREADS = 4
"""Calls under way at once; the store lets one write, and SQLite's single connection one read, at a time."""
MARK_LIMIT_S = 2.0
"""How long a snapshot waits, its machine standing still, to learn where memory stands."""
_BUSY_S = 30.0
"""How long another program may hold the store until a call is refused as busy."""


class MemoryService:
    """Serves spaces. Every coroutine may be cancelled; a transaction that was begun is done or not, never half."""

    def __init__(
        self,
        where: str | Path,
        *,
        embedder: Callable[[], Embedder | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """Name the store: a file, or a `postgresql://` address. Nothing is opened yet.

        Args:
            embedder: makes the embedder, in a thread, when the store is opened.
            clock: the host's by default.
        """
        self._where = where
        self._make_embedder = embedder
        self._clock = clock
        self._opening = threading.Lock()
        self._memory: Memory | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="memory")
        # a connection and a thread of their own: a machine stands still while it is marked
        self._reader: Store | None = None
        self._marker = ThreadPoolExecutor(1, thread_name_prefix="memory-mark")

    async def aclose(self) -> None:
        """Wait for the calls under way, and release the store."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.shutdown()
        self._marker.shutdown()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    async def run(self, work: Callable[[Memory], T]) -> T:
        """Return what `work` returns, which may block.

        Raises:
            DataDamaged, HostNotReady, Busy, InsufficientResources: the store cannot be used now.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: work(self._opened())
        )

    def _opened(self) -> Memory:
        with self._opening:
            if self._memory is None:
                self._memory = Memory.open(
                    self._where,
                    embedder=self._make_embedder(),
                    clock=self._clock,
                    busy_timeout_s=_BUSY_S,
                )
            return self._memory

    async def position(self, agent: str) -> Watermark:
        """Return where an agent's memory stands, within `MARK_LIMIT_S` and whatever else memory does meanwhile.

        It never raises: a memory that cannot be read gives a watermark with a `problem`. Nothing is written,
        and a memory that nobody has used yet is not made.
        """
        try:
            async with asyncio.timeout(MARK_LIMIT_S):
                return await asyncio.get_running_loop().run_in_executor(
                    self._marker, self._position, agent
                )
        except TorporError as exc:
            problem = exc.message
        except TimeoutError:
            problem = f"it did not answer within {MARK_LIMIT_S:g} s"
        return Watermark("", "", 0, 0, agent=agent, problem=problem)

    def _position(self, agent: str) -> Watermark:
        if self._reader is None:
            if isinstance(self._where, Path) and not self._where.exists():
                return Watermark("", "", 0, 0, agent=agent)
            self._reader = open_store(self._where, busy_timeout_s=MARK_LIMIT_S)
        return machine.here(self._reader, agent)

    async def follow(self, move: MachineMove) -> Followed:
        """Bring an agent's memory in line with its machine; see `torpor.memory.following`."""
        return await self.run(lambda memory: following.follow(memory, move))

    async def spaces(self) -> list[SpaceInfo]:
        """Return what is so about every agent's memory, by name."""

        def work(memory: Memory) -> list[SpaceInfo]:
            return [memory.space(agent).info() for agent in sorted(memory.agents())]

        return await self.run(work)

    async def verify_chain(self, *, expect: str | None = None) -> ChainReport:
        """Compare every row with the hash chain; `expect` is a head hash that was kept elsewhere."""
        return await self.run(lambda memory: memory.verify_chain(expect=expect))

    async def export(self, path: Path) -> Exported:
        """Write the whole memory to `path` as JSON lines, atomically."""
        return await self.run(lambda memory: memory.export(path))

    async def import_(self, path: Path, *, verify: bool = True) -> Exported:
        """Read an export into this memory, which must be empty. Raises `Conflict` if it is not, `DataDamaged`."""
        return await self.run(lambda memory: memory.import_(path, verify=verify))

    async def embed_missing(self) -> int:
        """Embed what the embedder has not embedded yet; return how many texts that were."""
        return await self.run(lambda memory: memory.embed_missing())


def open_space(
    memory: Memory,
    agent: str,
    *,
    branch: str | None,
    epoch: int | None,
    actor: str | None,
    make: bool,
) -> Space:
    """Return an agent's space; a new agent gets one only if `make`.

    Raises:
        NotFound: the agent has no memory, or there is no such branch.
    """
    if not make and not memory.has(agent):
        raise NotFound(
            f"there is no memory of agent {agent!r}",
            hint="it begins with the first record or remember; list: torpor memory spaces",
            agent=agent,
        )
    return memory.space(agent, branch=branch, epoch=epoch, actor=actor)


def choose_embedder(setting: str) -> Embedder | None:
    """Return the embedder that a setting names.

    Args:
        setting: `none`; `minilm`; `auto`, which is MiniLM where its extra is installed; or
            `URL MODEL DIMENSIONS` of an endpoint in the OpenAI form.

    Raises:
        InvalidRequest: the setting is none of these.
    """
    words = setting.split()
    if words == ["none"]:
        return None
    if words in (["auto"], ["minilm"]):
        from torpor.memory.embed.minilm import MiniLM

        return MiniLM() if words == ["minilm"] or MiniLM.is_installed() else None
    if len(words) == 3 and words[2].isdecimal():
        from torpor.memory.embed.endpoint import Endpoint

        return Endpoint(words[0], words[1], int(words[2]))
    raise InvalidRequest(
        f"TORPOR_MEMORY_EMBEDDER is {setting!r}",
        hint="it is one of: none, auto, minilm, `URL MODEL DIMENSIONS`",
    )
