"""The engine: all sandboxes of one host. See `EnginePort` for what each call promises."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

from typing_extensions import override

from torpor.base import tracing
from torpor.base.aio import Supervisor
from torpor.base.clock import SystemClock
from torpor.base.home import Home
from torpor.base.ids import check_id
from torpor.db.database import Database
from torpor.db.good_snapshots import GoodRows
from torpor.db.memory_moves import MemoryMoves
from torpor.db.protections import ProtectionRows
from torpor.db.sandboxes import SandboxRows
from torpor.db.volumes import VolumeRows
from torpor.doctor import collect
from torpor.errors import InvalidRequest, NotFound, TorporError
from torpor.guest.client import connect
from torpor.guest.port import Guest
from torpor.layers.store import LayerStore
from torpor.memory.service import MemoryService, choose_embedder
from torpor.model import (
    Consistency,
    MemoryChoice,
    OnTimeout,
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxPage,
    SandboxState,
    SnapshotId,
    SnapshotInfo,
)
from torpor.model_events import StateEvent
from torpor.model_memory import Policy
from torpor.model_quiesce import QuiesceSpec
from torpor.model_usage import MachineUsage
from torpor.model_volumes import VolumesMode
from torpor.sandboxes import folder as files
from torpor.sandboxes.boot import TemplateBooter
from torpor.sandboxes.claims import Claim
from torpor.sandboxes.comeback import SLEEP
from torpor.sandboxes.console import console
from torpor.sandboxes.creation_calls import CreationCalls
from torpor.sandboxes.goodness import GoodSnapshots
from torpor.sandboxes.housekeeping import Housekeeping, upkeep
from torpor.sandboxes.memories import AgentMemories
from torpor.sandboxes.memory_moves import FollowingMemory
from torpor.sandboxes.memory_relay import MemoryRelay, quota_of
from torpor.sandboxes.merging import Merger
from torpor.sandboxes.missing import no_sandbox
from torpor.sandboxes.needs import Needs
from torpor.sandboxes.parts import ConnectGuest, Parts, TakeInventory
from torpor.sandboxes.promises import Promises
from torpor.sandboxes.protect import Protections
from torpor.sandboxes.quota import Quota
from torpor.sandboxes.recover import recover
from torpor.sandboxes.requests import (
    check_idle,
    check_lease,
    check_memory_choice,
    check_quiesce,
    check_snapshot,
    check_snapshot_id,
)
from torpor.sandboxes.room import WORK_MARGIN_BYTES, check_capture, check_start
from torpor.sandboxes.snapshot_calls import SnapshotCalls
from torpor.sandboxes.task import SandboxTask
from torpor.sandboxes.template_calls import TemplateCalls
from torpor.sandboxes.traced import traced_connect, traced_driver
from torpor.sandboxes.usage import usage_of
from torpor.sandboxes.volume_capture import check_mode
from torpor.sandboxes.volume_engine import EngineVolumes
from torpor.sandboxes.warm import WarmTemplates
from torpor.templates import TemplateStore
from torpor.vmm.choose import choose_driver, remember
from torpor.volumes.desk import VolumeDesk
from torpor.volumes.quota import VolumeQuota
from torpor.volumes.shelf import VolumeShelf

log = logging.getLogger(__name__)

_LIVES_BY_ITS_PROCESS = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})
"""States in which a sandbox whose process has ended is about to be `failed`."""


def open_engine(home: Home, *, take_inventory: TakeInventory | None = None) -> Engine:
    """Return the engine of `home`, with the driver that `choose_driver` names; `start` it before use. Blocks.

    `take_inventory` is asked before each snapshot that somebody may want to compare later; None: there are none.

    Raises:
        DataDamaged, InsufficientResources: the home's database cannot be used.
        HostNotReady: the environment names another driver than that of machines that run, or a limit that the driver
            cannot hold them to.
        InvalidRequest: the environment names a quota, a limit or a driver that is none.
    """
    quota, volume_quota = Quota.of(os.environ), VolumeQuota.of(os.environ)
    home.prepare()
    choice = choose_driver(home)
    database = Database.open(home.database)
    remember(home, choice)
    driver = choice.driver
    log.info("machines have the driver %s: %s", driver.name, choice.reason)
    connecting: ConnectGuest = connect
    if tracing.is_enabled():
        driver, connecting = traced_driver(driver), traced_connect(connect)
    layers = LayerStore(home, disk_suffix=driver.disk_suffix)
    clock, shelf = SystemClock(), VolumeShelf(VolumeRows(database))
    setting = os.environ.get("TORPOR_MEMORY_EMBEDDER", "auto")
    booter = TemplateBooter(driver, connect)
    parts = Parts(
        memory=MemoryService(
            os.environ.get("TORPOR_MEMORY_URL") or home.memory,
            embedder=lambda: choose_embedder(setting),
        ),
        home=home,
        rows=SandboxRows(database),
        move_rows=MemoryMoves(database),
        layers=layers,
        driver=driver,
        volumes=VolumeDesk(shelf, layers, driver, clock, volume_quota),
        templates=TemplateStore(home, booter),
        connect_guest=connecting,
        clock=clock,
        quota=quota,
        protections=Protections(ProtectionRows(database)),
        good=GoodSnapshots(GoodRows(database)),
        take_inventory=take_inventory,
        report=lambda name, exc: log.error("%s: %s", name, exc, exc_info=exc),
    )
    engine = Engine(parts)
    booter.memory_for_boot = parts.memory_for_boot
    return engine


class Engine(CreationCalls, SnapshotCalls, TemplateCalls):
    """Owns the sandboxes' tasks."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tasks: dict[SandboxId, SandboxTask] = {}
        self._needs = Needs(parts, self._tasks)
        self._promises = Promises(parts, self._tasks)
        self._housekeeping = Housekeeping(parts, self._tasks, self._needs, self._forget)
        parts.images_in_use = self._needs.images_in_use
        parts.rows.on_write = parts.events.sandbox
        parts.layers.tell(parts.events.snapshot)
        parts.memory_for = self._promises.memory_for
        parts.memory_for_boot = self._promises.memory_for_boot
        parts.state_of = self._state_of
        parts.machine_is_gone = self._machine_is_gone
        parts.wake = self.wake
        self._volumes = EngineVolumes(parts, self._task, self.collect)
        self._supervisor = Supervisor(parts.report)
        self._warm = WarmTemplates(parts)
        self._moves = parts.memory_moves = FollowingMemory(
            parts.memory, parts.move_rows, find=self.get, report=parts.report
        )
        self._memories = AgentMemories(
            parts.memory, self._moves, find=self.get, scratch=parts.home.tmp
        )
        parts.attend = MemoryRelay(
            self._memories,
            clock=parts.clock,
            report=parts.report,
            quota_bytes=quota_of(os.environ.get("TORPOR_MEMORY_MAX_MIB_PER_AGENT")),
        ).attend

    def attend_too(self, attend: Callable[[Any, Guest], Coroutine[Any, Any, None]]) -> None:
        """Have `attend` called, before anything else, with each machine whose guest was connected, and the guest."""
        first = self._parts.attend

        async def both(machine: Any, guest: Guest) -> None:
            await attend(machine, guest)
            if first is not None:
                await first(machine, guest)

        self._parts.attend = both

    async def start(self) -> None:
        """Adopt what an earlier daemon left, and begin."""
        self._parts.host = await self._parts.driver.probe()
        for problem in await asyncio.to_thread(self._parts.layers.load):
            self._parts.report("a snapshot", problem)
        await self._parts.protections.load()
        await self._parts.good.load(m.info.id for m in self._parts.layers.snapshots())
        await self._parts.volumes.shelf.load()
        await self._parts.templates.clean()
        await asyncio.to_thread(self._memories.clean)
        living = await asyncio.to_thread(self._parts.rows.living)
        self._parts.events.know(row.info for row in living)
        recovered = await recover(self._parts)
        await self._moves.load([found.task.info for found in recovered])
        for found in recovered:
            self._tasks[found.task.info.id] = found.task
            found.task.start()
            if found.task.info.state is SandboxState.RUNNING:
                found.task.connect()
            if found.rollback_to is not None:
                self._supervisor.launch(
                    found.task.rollback_again(found.rollback_to, found.memory, found.volumes),
                    name="rollback again",
                )
        try:
            if not self._parts.layers.damaged:  # else: who knows what they stand on
                await asyncio.to_thread(
                    self._parts.templates.collect, self._needs.template_users().keys()
                )
            await self._warm.drop_stale()
            await self.collect()
        except (TorporError, OSError) as exc:  # such as a damaged template: the rest is served
            self._parts.report("collection", exc)
        self._supervisor.launch(self._moves.follow_rollbacks(), name="memory follows")
        self._supervisor.launch(upkeep(self._parts, self.keep_house), name="upkeep")
        self._supervisor.launch(Merger(self._parts).run(), name="merging layers")

    async def aclose(self) -> None:
        """Stop; machines run on for the next daemon."""
        await self._supervisor.aclose()
        await self._warm.aclose()
        await self._parts.templates.aclose()
        await asyncio.gather(*(task.aclose() for task in self._tasks.values()))
        await self._parts.memory.aclose()
        await asyncio.to_thread(self._parts.rows.close)

    @property
    def volumes(self) -> EngineVolumes:
        """All that may be asked about volumes."""
        return self._volumes

    # ---- sandboxes ----

    @override
    async def get(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Return a sandbox, also one deleted within a day."""
        check_id(sandbox_id, "sbx", "sandbox")
        task = self._tasks.get(sandbox_id)
        if task is not None:
            return self._noted(task.info)
        row = await asyncio.to_thread(self._parts.rows.get, sandbox_id)
        if row is None:
            raise no_sandbox(sandbox_id)
        return row.info

    async def list(self, query: SandboxFilter) -> SandboxPage:
        """Return a page of sandboxes, newest first."""
        if not 1 <= query.limit <= 1000:
            raise InvalidRequest(f"limit is {query.limit}; 1 to 1000 is wanted")
        page = await asyncio.to_thread(self._parts.rows.page, query)
        return replace(page, items=tuple(self._noted(info) for info in page.items))

    async def delete(self, sandbox_id: SandboxId) -> SandboxInfo:
        """End and remove a sandbox from any state; its snapshots stay."""
        task = self._tasks.get(sandbox_id)
        if task is None:
            return await self.get(sandbox_id)  # deleted already, or never there
        info = await task.delete()
        await self._forget(task)
        await self._moves.withdraw(sandbox_id)
        self._supervisor.launch(self.collect(), name="collect")
        return info

    async def pause(self, sandbox_id: SandboxId, *, holder: str | None = None) -> SandboxInfo:
        """Stop a sandbox's vCPUs."""
        self._parts.claims.check(sandbox_id, "pause", holder)
        return await (await self._task(sandbox_id)).pause()

    async def resume(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Let a paused sandbox run on."""
        return await (await self._task(sandbox_id)).resume()

    async def hibernate(
        self,
        sandbox_id: SandboxId,
        *,
        consistency: Consistency = "filesystem",
        quiesce: QuiesceSpec | None = None,
    ) -> SnapshotInfo:
        """Put a sandbox to sleep; return the snapshot at which it sleeps."""
        self._parts.claims.check(sandbox_id, "hibernate")
        wish = replace(SLEEP, consistency=consistency, quiesce=check_quiesce(consistency, quiesce))
        check_snapshot(wish)
        info = await (await self._task(sandbox_id)).hibernate(wish)
        assert info.parent_snapshot is not None
        return self._parts.seen(self._parts.layers.get(info.parent_snapshot))

    async def wake(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Let a hibernated sandbox go on."""
        await self._look_at_host()
        return await (await self._task(sandbox_id)).wake()

    async def rollback(
        self,
        sandbox_id: SandboxId,
        snapshot_id: SnapshotId,
        *,
        memory: MemoryChoice = "ram",
        agent_memory: Policy = Policy.RECONCILE,
        volumes: VolumesMode | None = None,
        holder: str | None = None,
        since_generation: int | None = None,
    ) -> SandboxInfo:
        """Put a sandbox back to a snapshot."""
        check_memory_choice(memory)
        check_mode(volumes)
        self._parts.claims.check(sandbox_id, "rollback", holder)
        await self._look_at_host()
        manifest = self._parts.layers.get(check_snapshot_id(snapshot_id))
        task = await self._task(sandbox_id)
        self._parts.claims.check(sandbox_id, "rollback", holder)  # somebody may have come meanwhile
        await task.rollback(
            manifest,
            memory,
            volumes,
            agent_memory=agent_memory,
            since_generation=since_generation,
        )
        await self._moves.follow_quietly(sandbox_id)
        return await self.get(sandbox_id)

    async def check_room(self, sandbox_id: SandboxId) -> None:
        """Refuse what needs a snapshot of a sandbox, and work in it, where there is no room for them."""
        machine = (await self._task(sandbox_id)).machine
        self._parts.quota.check(self._parts.layers, sandbox_id)
        vmm, more = machine.vmm, WORK_MARGIN_BYTES
        if vmm is not None:
            await check_capture(self._parts, vmm, machine.info.ram_mib, more_bytes=more)
        else:
            layers = map(self._parts.layers.disk_path, machine.row.layers.disk)
            await check_start(self._parts, tuple(layers), more_bytes=more)

    async def claim(self, sandbox_id: SandboxId, claim: Claim | None, holder: str) -> None:
        """Claim a sandbox for `holder`, or with None end its claim."""
        if claim is None:
            self._parts.claims.drop(sandbox_id, holder)
        else:
            self._parts.claims.put(sandbox_id, claim)

    async def set_ttl(
        self, sandbox_id: SandboxId, ttl_seconds: int | None, *, on_timeout: OnTimeout | None = None
    ) -> SandboxInfo:
        """Set the time to live, counted from now."""
        check_lease(ttl_seconds, on_timeout)
        return await (await self._task(sandbox_id)).set_ttl(ttl_seconds, on_timeout)

    async def set_idle(self, sandbox_id: SandboxId, idle_seconds: int | None) -> SandboxInfo:
        """Set after how long without work a sandbox hibernates by itself."""
        check_idle(idle_seconds)
        return await (await self._task(sandbox_id)).set_idle(idle_seconds)

    async def usage(self, sandbox_id: SandboxId) -> MachineUsage:
        """Return what a sandbox's machine has used since its VMM was started."""
        return await usage_of((await self._task(sandbox_id)).machine)

    def console(self, sandbox_id: SandboxId, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the console log; with `follow`, go on until the machine ends."""
        return console(self._parts, sandbox_id, self.get, follow=follow)

    @contextlib.asynccontextmanager
    async def guest(self, sandbox_id: SandboxId) -> AsyncIterator[Guest]:
        """Enter with the connected guest of a sandbox; a hibernated one is woken."""
        async with (await self._task(sandbox_id)).guest() as guest:
            yield guest

    @property
    def memories(self) -> AgentMemories:
        """What the agents in the sandboxes know."""
        return self._memories

    def events(self, *, after: str | None = None) -> AsyncIterator[StateEvent]:
        """Yield changes of state as they happen."""
        return self._parts.events.follow(after)

    async def note_health(self, sandbox_id: SandboxId, note: str | None, state: str) -> None:
        """Show what a watch found with the sandbox, and tell those who follow events."""
        info = await self.get(sandbox_id)
        if note is None:
            self._parts.health.pop(sandbox_id, None)
        else:
            self._parts.health[sandbox_id] = note
        self._parts.events.record("watch", sandbox_id, state, info.workspace, note=note)

    async def doctor(self) -> dict[str, object]:
        """Return what `torpor doctor --json` prints."""
        return await collect(self._parts.home)

    # ---- inside ----

    @override
    async def _look_at_host(self) -> None:
        await self._parts.look_at_host()

    def _state_of(self, sandbox_id: str) -> SandboxState | None:
        task = self._tasks.get(SandboxId(sandbox_id))
        return None if task is None else task.info.state

    async def _machine_is_gone(self, sandbox_id: str) -> bool:
        """Return whether a sandbox has no machine and gets none by itself; its process is looked for."""
        state = self._state_of(sandbox_id)
        if state in _LIVES_BY_ITS_PROCESS:  # whose death the task has not noted yet
            vmm = self._tasks[SandboxId(sandbox_id)].machine.vmm
            return vmm is not None and not vmm.process.alive()
        if state not in (None, SandboxState.FAILED, SandboxState.STOPPED):
            return False
        folder = files.folder_of(self._parts.home, SandboxId(sandbox_id))
        vmm = await self._parts.driver.adopt(folder)
        if vmm is None:
            return True
        is_gone = await vmm.status() == "ended"
        await vmm.aclose()
        return is_gone

    def _noted(self, info: SandboxInfo) -> SandboxInfo:
        """Return `info` with what is wrong with its agent's memory, and what its watch found, if anything is."""
        note, health = self._moves.note(info.id), self._parts.health.get(info.id)
        if note is None and health is None:
            return info
        return replace(info, memory_note=note, health_note=health)

    @override
    async def _task(self, sandbox_id: SandboxId) -> SandboxTask:
        task = self._tasks.get(sandbox_id)
        if task is None:
            info = await self.get(sandbox_id)
            raise NotFound(
                f"sandbox {sandbox_id} is {info.state}",
                hint="create a new one",
                sandbox_id=sandbox_id,
            )
        return task

    async def _forget(self, task: SandboxTask) -> None:
        if self._tasks.get(task.info.id) is task:
            del self._tasks[task.info.id]
            await task.aclose()

    async def keep_house(self) -> None:
        """Do one turn of upkeep."""
        await self._housekeeping.turn()
