"""Keeps apart the lives of a machine, which a rollback or a wake begins anew under the same id.

A stream that broke may be taken up again only in the life that it began in, and a command that a client
sends twice for fear that it was lost is started in one life only.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator

from torpor.errors import GenerationChanged
from torpor.guest.port import Guest
from torpor.model import ExecId, SandboxId, SandboxInfo, SandboxState
from torpor.sandboxes.port import EnginePort

_REMEMBERED_STARTS = 65536
_LEAVING = frozenset(
    {
        SandboxState.HIBERNATING,
        SandboxState.HIBERNATED,
        SandboxState.WAKING,
        SandboxState.RESTORING,
    }
)
"""States in which the life that a client followed is over, or about to be."""


class Lives:
    """Enters guests and tells which life of their machine it is."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._started: OrderedDict[str, int] = OrderedDict()

    @contextlib.asynccontextmanager
    async def enter(
        self, sandbox_id: SandboxId, generation: int | None = None
    ) -> AsyncIterator[tuple[Guest, int]]:
        """Enter with the guest and its generation; with `generation` only that one, and nothing is woken.

        Raises:
            GenerationChanged: it is another, or it ended while the context was held.
        """
        if generation is not None:
            _check(await self._engine.get(sandbox_id), generation)
        async with self._engine.guest(sandbox_id) as guest:
            now = await self._engine.get(sandbox_id)
            if generation is not None:
                _check(now, generation)
            yield guest, now.generation

    def note_start(self, sandbox_id: SandboxId, exec_id: ExecId, generation: int) -> None:
        """Note in which life a command is started.

        Raises:
            GenerationChanged: it was started in another one before.
        """
        key = f"{sandbox_id}/{exec_id}"
        before = self._started.setdefault(key, generation)
        if before != generation:
            raise GenerationChanged(
                f"{exec_id} was started before sandbox {sandbox_id} was put back or slept; "
                "it is not started a second time",
                hint="run the command again if that is wanted",
                exec_id=exec_id,
                generation=generation,
            )
        if len(self._started) > _REMEMBERED_STARTS:
            self._started.popitem(last=False)


def _check(info: SandboxInfo, generation: int) -> None:
    if info.generation != generation or info.state in _LEAVING:
        raise GenerationChanged(
            f"sandbox {info.id} was put back or slept meanwhile; what was asked of it is void",
            hint="ask again: it is another point of its life now",
            sandbox_id=info.id,
            generation=info.generation,
        )
