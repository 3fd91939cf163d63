"""Housekeeping: what is done now and then while the daemon lives, so that logs stay small and listings short."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from torpor.errors import TorporError
from torpor.model import SandboxId, SandboxState
from torpor.sandboxes import folder as files
from torpor.sandboxes.needs import Needs
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.retention import superseded
from torpor.sandboxes.room import keep_room
from torpor.sandboxes.task import SandboxTask

_log = logging.getLogger(__name__)

_UPKEEP_S = 30.0
_DELETED_KEPT = timedelta(days=1)


async def upkeep(
    parts: Parts, turn: Callable[[], Awaitable[None]], *, every_s: float = _UPKEEP_S
) -> None:
    """Take a turn of housekeeping now and then, for as long as the daemon lives."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await turn()
        except Exception as exc:  # noqa: BLE001 - a full disk, say: the next turn may do better
            parts.report("upkeep", exc)


class Housekeeping:
    """Looks after the sandboxes, and removes what is over."""

    def __init__(
        self,
        parts: Parts,
        tasks: Mapping[SandboxId, SandboxTask],
        needs: Needs,
        forget: Callable[[SandboxTask], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._tasks = tasks
        self._needs = needs
        self._forget = forget

    async def turn(self) -> None:
        """Do all of it once."""
        for task in list(self._tasks.values()):
            await self._look_after(task)
        await self._remove_superseded()
        await self._needs.collect()
        await self._parts.memory_moves.follow_rollbacks()
        await keep_room(self._parts)
        before = self._parts.clock.now() - _DELETED_KEPT
        await asyncio.to_thread(self._parts.rows.forget_deleted, before)

    async def _look_after(self, task: SandboxTask) -> None:
        if task.info.state is SandboxState.DELETED:  # by its TTL
            await self._forget(task)
            await self._parts.memory_moves.withdraw(task.info.id)
        else:
            await self._watch_folder(task)
        if task.info.state is SandboxState.RUNNING and not task.is_busy:
            with contextlib.suppress(TorporError):  # at the next turn again
                await task.go_on()

    async def _watch_folder(self, task: SandboxTask) -> None:
        """Keep a machine's logs short, and end a VMM that fills the disk."""
        folder = files.folder_of(self._parts.home, task.info.id)
        await asyncio.to_thread(files.trim_logs, folder, self._parts.driver.console(folder))
        vmm = task.machine.vmm
        if vmm is not None and await asyncio.to_thread(
            files.is_overfull, folder, task.info.ram_mib
        ):
            _log.error(
                "%s: its VMM fills %s, as none of ours does; it is ended", task.info.id, folder
            )
            await vmm.kill()

    async def _remove_superseded(self) -> None:
        parts = self._parts
        snapshots = [parts.seen(m) for m in parts.layers.snapshots()]
        last_good = {info.id for info in parts.good.last(snapshots).values()}
        living = [t.info for t in self._tasks.values()]
        for snapshot_id in superseded(snapshots, living, parts.clock.now(), last_good=last_good):
            if self._needs.is_free(
                snapshot_id
            ):  # what was so before the last removal may be no more
                await self._needs.remove(snapshot_id)
