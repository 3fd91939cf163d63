"""The synchronous faces of `torpor.sdk.memory`, method for method; calls may be made from any thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from typing_extensions import override

from torpor.model_memory import SpaceInfo
from torpor.sdk.client import Client
from torpor.sdk.daemon_memory import AsyncDaemonMemory
from torpor.sdk.loop import loop_thread
from torpor.sdk.memory import AsyncMemorySpace
from torpor.sdk.memory_files import AsyncMemoryFiles

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class _Face:
    """Holds the asynchronous object."""

    def __init__(self, beneath: Any) -> None:
        self._beneath = beneath

    @override
    def __repr__(self) -> str:
        return repr(self._beneath).replace("<Async", "<")


def _same(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return the method of the face that runs `method` of the object beneath and waits for it."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return loop_thread.run(method(self._beneath, *args, **kwargs))

    return call


class MemoryFiles(_Face):
    """The commands of a file-based memory tool on one space; every edit is a transaction."""

    files = _same(AsyncMemoryFiles.files)
    view = _same(AsyncMemoryFiles.view)
    create = _same(AsyncMemoryFiles.create)
    str_replace = _same(AsyncMemoryFiles.str_replace)
    insert = _same(AsyncMemoryFiles.insert)
    delete = _same(AsyncMemoryFiles.delete)
    rename = _same(AsyncMemoryFiles.rename)


class MemorySpace(_Face):
    """The memory of one agent, in the daemon's keeping; see `torpor.sdk.memory.AsyncMemorySpace`."""

    info = _same(AsyncMemorySpace.info)
    ask = _same(AsyncMemorySpace.ask)
    record = _same(AsyncMemorySpace.record)
    record_many = _same(AsyncMemorySpace.record_many)
    remember = _same(AsyncMemorySpace.remember)
    remember_many = _same(AsyncMemorySpace.remember_many)
    recall = _same(AsyncMemorySpace.recall)
    explain = _same(AsyncMemorySpace.explain)
    why_not = _same(AsyncMemorySpace.why_not)
    facts = _same(AsyncMemorySpace.facts)
    fact = _same(AsyncMemorySpace.fact)
    episode = _same(AsyncMemorySpace.episode)
    episodes = _same(AsyncMemorySpace.episodes)
    unread = _same(AsyncMemorySpace.unread)
    history = _same(AsyncMemorySpace.history)
    timeline = _same(AsyncMemorySpace.timeline)
    diff = _same(AsyncMemorySpace.diff)
    conflicts = _same(AsyncMemorySpace.conflicts)
    supersede = _same(AsyncMemorySpace.supersede)
    correct = _same(AsyncMemorySpace.correct)
    retract = _same(AsyncMemorySpace.retract)
    restore = _same(AsyncMemorySpace.restore)
    pin = _same(AsyncMemorySpace.pin)
    expire = _same(AsyncMemorySpace.expire)
    resolve = _same(AsyncMemorySpace.resolve)
    revert = _same(AsyncMemorySpace.revert)
    consolidate = _same(AsyncMemorySpace.consolidate)
    apply = _same(AsyncMemorySpace.apply)
    erase = _same(AsyncMemorySpace.erase)
    verify_erasure = _same(AsyncMemorySpace.verify_erasure)
    watermark = _same(AsyncMemorySpace.watermark)
    on_restore = _same(AsyncMemorySpace.on_restore)
    switch = _same(AsyncMemorySpace.switch)
    plan_merge = _same(AsyncMemorySpace.plan_merge)
    merge = _same(AsyncMemorySpace.merge)
    effect = _same(AsyncMemorySpace.effect)
    finish_effect = _same(AsyncMemorySpace.finish_effect)
    effects = _same(AsyncMemorySpace.effects)

    @property
    def files(self) -> MemoryFiles:
        """The memory as files under `/memories`, for an agent with a file-based memory tool."""
        return MemoryFiles(self._beneath.files)

    def fork(self, agent: str, *, snapshot_id: str | None = None, reason: str = "") -> MemorySpace:
        """Give a new agent a child branch of this memory, as it is or as it was at a watermark."""
        made: Coroutine[Any, Any, AsyncMemorySpace] = self._beneath.fork(
            agent, snapshot_id=snapshot_id, reason=reason
        )
        return MemorySpace(loop_thread.run(made))

    @property
    def agent(self) -> str:
        """Whose memory this is."""
        return self._info().agent

    @property
    def branch(self) -> str:
        """The branch that is read and written now."""
        return self._info().branch

    @property
    def epoch(self) -> int:
        """The epoch of the agent's machine now."""
        return self._info().epoch

    @property
    def tx(self) -> int:
        """The number of the last transaction; as `known_at` it means now."""
        return self._info().tx

    def _info(self) -> SpaceInfo:
        return self.info()


class DaemonMemory(_Face):
    """All spaces in the daemon's keeping; `Memory.open` opens a file of your own instead."""

    def __init__(self, *, client: Client | None = None) -> None:
        super().__init__(AsyncDaemonMemory(client=client))

    def space(
        self,
        agent: str,
        *,
        branch: str | None = None,
        epoch: int | None = None,
        actor: str | None = None,
    ) -> MemorySpace:
        """Return the memory of one agent; see `AsyncDaemonMemory.space`."""
        return MemorySpace(self._beneath.space(agent, branch=branch, epoch=epoch, actor=actor))

    spaces = _same(AsyncDaemonMemory.spaces)
    agents = _same(AsyncDaemonMemory.agents)
    verify_chain = _same(AsyncDaemonMemory.verify_chain)
    embed_missing = _same(AsyncDaemonMemory.embed_missing)
    export = _same(AsyncDaemonMemory.export)
    import_ = _same(AsyncDaemonMemory.import_)
