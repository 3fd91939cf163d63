"""Promises of memory and disk: one machine at a time is let in, and what it was promised is counted from then on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial

from torpor.errors import InsufficientResources
from torpor.model import SandboxId, SandboxInfo
from torpor.sandboxes.admission import Sizes, check_memory, check_room
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.room import make_room
from torpor.sandboxes.task import SandboxTask


class Promises:
    """What this host has promised to machines; `turn` is held by whoever adds to it."""

    def __init__(self, parts: Parts, tasks: Mapping[SandboxId, SandboxTask]) -> None:
        self._parts = parts
        self._tasks = tasks
        self._boots_mib: list[int] = []
        """Memory of the templates' machines that run now."""
        self.turn = asyncio.Lock()

    async def check_room(self, sizes: Sizes) -> None:
        """Raise `InsufficientResources` unless the host has room for one sandbox more; images give way to it."""
        living = [task.info for task in self._tasks.values()]
        check = partial(
            check_room, sizes, living, self._parts.home.root, boots_mib=tuple(self._boots_mib)
        )
        try:
            await asyncio.to_thread(check)
        except InsufficientResources as exc:
            need = exc.facts.get("needed_bytes")
            if not isinstance(need, int) or not await make_room(self._parts, need):
                raise
            await asyncio.to_thread(check)

    @contextlib.asynccontextmanager
    async def memory_for(self, info: SandboxInfo) -> AsyncIterator[None]:
        """Hold the turn while a machine that slept or had ended is promised its memory again."""
        async with self.turn:
            others = [task.info for task in self._tasks.values() if task.info.id != info.id]
            await asyncio.to_thread(
                check_memory, info.ram_mib, others, boots_mib=tuple(self._boots_mib)
            )
            yield

    @contextlib.asynccontextmanager
    async def memory_for_boot(self, ram_mib: int) -> AsyncIterator[None]:
        """Hold the memory of a machine that is no sandbox's, a template that boots, until it has ended."""
        async with self.turn:
            living = [task.info for task in self._tasks.values()]
            await asyncio.to_thread(check_memory, ram_mib, living, boots_mib=tuple(self._boots_mib))
            self._boots_mib.append(ram_mib)
        try:
            yield
        finally:
            self._boots_mib.remove(ram_mib)
