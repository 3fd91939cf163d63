"""The engine: all sandboxes of one host. See `EnginePort` for what each call promises."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torpor.base import tracing
from torpor.base.aio import Supervisor, finish
from torpor.base.clock import SystemClock
from torpor.base.home import Home
from torpor.base.ids import check_id, is_id, new_id
from torpor.db.database import Database
from torpor.db.good_snapshots import GoodRows
from torpor.db.memory_moves import MemoryMoves
from torpor.db.protections import Protection, ProtectionRows
from torpor.db.sandboxes import MachineLayers, SandboxRow, SandboxRows
from torpor.db.volumes import VolumeRows
from torpor.doctor import collect
from torpor.errors import (
    Conflict,
    DataDamaged,
    HostNotReady,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    TorporError,
)
from torpor.guest.client import connect
from torpor.guest.port import Guest
from torpor.layers.manifest import Manifest
from torpor.layers.store import LayerStore, LayerUse, Needed
from torpor.layers.verify import Damage
from torpor.memory.service import MemoryService, choose_embedder
from torpor.model import (
    BuildEvent,
    Consistency,
    Goodness,
    MemoryChoice,
    OnTimeout,
    RestoreSpec,
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxPage,
    SandboxSpec,
    SandboxState,
    SnapshotId,
    SnapshotInfo,
    Stillness,
    TemplateInfo,
)
from torpor.model_events import StateEvent
from torpor.model_inventory import Inventory
from torpor.model_memory import Policy
from torpor.model_quiesce import QuiesceReport, QuiesceSpec, quiesce_spec
from torpor.model_volumes import VolumeMount, VolumesMode
from torpor.sandboxes import folder as files
from torpor.sandboxes.admission import Sizes, check_memory, check_room, choose_sizes, is_default
from torpor.sandboxes.birth import RenewalReason
from torpor.sandboxes.boot import TemplateBooter
from torpor.sandboxes.capture import Wish
from torpor.sandboxes.claims import Claim
from torpor.sandboxes.comeback import SLEEP, layers_at
from torpor.sandboxes.fit import check_fits, misfit
from torpor.sandboxes.goodness import GoodSnapshots
from torpor.sandboxes.lifecycle import WITH_MACHINE
from torpor.sandboxes.memories import AgentMemories
from torpor.sandboxes.memory_moves import FollowingMemory
from torpor.sandboxes.memory_relay import MemoryRelay, quota_of
from torpor.sandboxes.merging import Merger
from torpor.sandboxes.missing import no_sandbox
from torpor.sandboxes.parts import ConnectGuest, Parts, TakeInventory
from torpor.sandboxes.presence import check_files
from torpor.sandboxes.protect import Protections
from torpor.sandboxes.quota import Quota
from torpor.sandboxes.recover import recover
from torpor.sandboxes.requests import (
    FORKS_MOST,
    check_idle,
    check_lease,
    check_memory_choice,
    check_quiesce,
    check_restore,
    check_snapshot,
    check_snapshot_id,
    check_spec,
)
from torpor.sandboxes.retention import superseded
from torpor.sandboxes.room import (
    WORK_MARGIN_BYTES,
    check_capture,
    check_start,
    image_of,
    keep_room,
    make_room,
)
from torpor.sandboxes.task import SandboxTask
from torpor.sandboxes.template_users import template_users
from torpor.sandboxes.traced import traced_connect, traced_driver
from torpor.sandboxes.volume_attach import release_all
from torpor.sandboxes.volume_capture import check_mode
from torpor.sandboxes.volume_engine import EngineVolumes
from torpor.sandboxes.volume_restore import check_points, cold_mounts
from torpor.sandboxes.warm import WarmTemplates
from torpor.templates import TemplateStore
from torpor.vmm.base import Driver
from torpor.vmm.qemu import QemuDriver
from torpor.volumes.desk import VolumeDesk
from torpor.volumes.quota import VolumeQuota
from torpor.volumes.shelf import VolumeShelf

log = logging.getLogger(__name__)

_UPKEEP_S = 30.0
_DELETED_KEPT = timedelta(days=1)
_CONSOLE_CHUNK = 64 << 10
_CONSOLE_POLL_S = 0.5
"""QEMU appends to a file and tells nobody; a log that is followed is looked at this often."""
_STANDS_ON_SNAPSHOT = frozenset(
    {
        SandboxState.CREATING,
        SandboxState.HIBERNATING,
        SandboxState.HIBERNATED,
        SandboxState.WAKING,
        SandboxState.RESTORING,
    }
)
"""States in which a sandbox is nothing without the snapshot that it comes from, or goes to."""
_LIVES_BY_ITS_PROCESS = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})
"""States in which a sandbox whose process has ended is about to be `failed`."""
_IMAGE_SHARE = 0.9
"""Of a template's build: the image; the rest is its snapshot."""


def open_engine(home: Home, *, take_inventory: TakeInventory | None = None) -> Engine:
    """Return the engine of `home`, with the QEMU driver; `start` it before use. Blocks.

    `take_inventory` is asked before each snapshot that somebody may want to compare later; None: there are none.

    Raises:
        DataDamaged, InsufficientResources: the home's database cannot be used.
        InvalidRequest: the environment names a quota that is none.
    """
    quota, volume_quota = Quota.of(os.environ), VolumeQuota.of(os.environ)
    home.prepare()
    database = Database.open(home.database)
    driver: Driver = QemuDriver()
    connecting: ConnectGuest = connect
    if tracing.is_enabled():
        driver, connecting = traced_driver(driver), traced_connect(connect)
    layers, clock, shelf = LayerStore(home), SystemClock(), VolumeShelf(VolumeRows(database))
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


class Engine:
    """Owns the sandboxes' tasks."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        parts.images_in_use = self._images_in_use
        parts.rows.on_write = parts.events.sandbox
        parts.layers.tell(parts.events.snapshot)
        parts.memory_for = self._memory_for
        parts.memory_for_boot = self._memory_for_boot
        parts.state_of = self._state_of
        parts.machine_is_gone = self._machine_is_gone
        parts.wake = self.wake
        self._tasks: dict[SandboxId, SandboxTask] = {}
        self._volumes = EngineVolumes(parts, self._task, self.collect)
        self._admission = asyncio.Lock()
        self._boots_mib: list[int] = []
        """Memory of the templates' machines that run now."""
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
                    self._parts.templates.collect, self._template_users().keys()
                )
            await self._warm.drop_stale()
            await self.collect()
        except (TorporError, OSError) as exc:  # such as a damaged template: the rest is served
            self._parts.report("collection", exc)
        self._supervisor.launch(self._moves.follow_rollbacks(), name="memory follows")
        self._supervisor.launch(self._upkeep(), name="upkeep")
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

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox and return it running."""
        check_spec(spec)
        self._volumes.check_mounts(spec.volumes)
        await self._look_at_host()
        template = await asyncio.to_thread(self._parts.templates.get, spec.template)
        sizes = choose_sizes(spec, template.info)
        origin = self._warm.find(template, sizes)
        if origin is None and is_default(sizes, template.info):
            await self._check_room(sizes)
            origin = await self._warm.take(template)
        if origin is None:
            task = await self._admit(self._row(spec, sizes, template.info))
            return await task.create_cold(template, spec.env, spec.volumes)
        origin = self._parts.layers.shortened(origin)
        return await self._create_from(
            origin, self._row(spec, sizes, template.info, origin), spec.env, "create", spec.volumes
        )

    async def restore(
        self,
        snapshot_id: SnapshotId,
        spec: RestoreSpec,
        *,
        reason: Literal["restore", "fork"] = "restore",
    ) -> SandboxInfo:
        """Make a new sandbox that goes on from a snapshot, with an identity of its own."""
        check_restore(spec)
        check_mode(spec.volumes)
        self._volumes.check_mounts(spec.mounts)
        await self._look_at_host()
        store = self._parts.layers
        origin = store.shortened(self._parts.origin(check_snapshot_id(snapshot_id)))
        row = self._row_of(origin, spec)
        info = row.info
        with self._parts.pins.held(origin.info.id, *origin.layer_ids):
            await check_files(self._parts, origin, (), devices=False)
            if not info.is_clone_of_drill:
                await self._moves.intend_new(
                    info,
                    origin.info.watermark,
                    is_fork=reason == "fork",
                    policy=spec.agent_memory,
                    others=[t.info.id for t in self._tasks.values() if t.info.agent == info.agent],
                )
            try:
                await self._begin(origin, row, spec, reason)
            except Exception:
                if info.id not in self._tasks:
                    await self._moves.withdraw(info.id)
                raise
        return await self.get(info.id)  # memory follows when it is first asked for

    async def _begin(
        self, origin: Manifest, row: SandboxRow, spec: RestoreSpec, reason: RenewalReason
    ) -> None:
        """Make the sandbox of `row` go on from a snapshot, or boot from its disk if that is wanted or needed."""
        is_cold = spec.memory == "cold"
        why = None if is_cold else misfit(origin.info, self._parts.host)
        if (
            not is_cold
            and why is None
            and not (spec.allow_cold and await self._lost_its_ram(origin))
        ):
            check_points(origin, spec.volumes)
            await self._create_from(
                origin, row, spec.env, reason, spec.mounts, spec.volumes, spec.still
            )
            return
        if not (is_cold or spec.allow_cold):
            check_fits(origin.info, self._parts.host)
        template = await asyncio.to_thread(
            self._parts.templates.by_digest, origin.info.template_digest
        )
        # its memory begins empty: no RAM layer is part of it
        row = replace(row, layers=replace(row.layers, image=None, ram=()))
        with self._parts.pins.held(*origin.layer_ids):
            try:
                mounts = await cold_mounts(self._parts, origin, row.info.id, spec.volumes)
                task = await self._admit(row)
            except BaseException:
                await finish(release_all(self._parts, row.info.id), within_s=60.0)
                raise
        await task.create_cold(template, spec.env, (*mounts, *spec.mounts), spec.still)

    async def fork(
        self,
        source: SandboxId | SnapshotId,
        spec: RestoreSpec,
        *,
        count: int = 1,
        snapshot_id: SnapshotId | None = None,
        ids: Sequence[SandboxId] = (),
    ) -> tuple[SandboxInfo | TorporError, ...]:
        """Make `count` sandboxes from a running sandbox or a snapshot; each is a sandbox or its own error."""
        if not 1 <= count <= FORKS_MOST:
            raise InvalidRequest(
                f"count is {count}; 1 to {FORKS_MOST} is wanted",
                hint="fork in several calls" if count > 0 else "leave it out to get one fork",
            )
        check_restore(spec)
        if is_id(source, "snap"):
            origin = self._parts.layers.get(SnapshotId(source)).info.id
        else:
            wish = Wish(reason="fork", snapshot_id=snapshot_id)
            origin = (await (await self._task(SandboxId(source))).snapshot(wish)).info.id

        async def one(own: RestoreSpec) -> SandboxInfo | TorporError:
            try:
                return await self.restore(origin, own, reason="fork")
            except TorporError as exc:
                return exc

        specs = [replace(spec, sandbox_id=made) for made in ids] or [spec] * count
        return tuple(await asyncio.gather(*map(one, specs)))

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
        return self._seen(self._parts.layers.get(info.parent_snapshot))

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
            await check_start(self._parts, more_bytes=more)

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

    async def console(self, sandbox_id: SandboxId, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the console log; with `follow`, go on until the machine ends."""
        info = await self.get(sandbox_id)
        path = self._parts.driver.console(files.folder_of(self._parts.home, sandbox_id))
        offset = 0
        while True:
            lives = info.state in WITH_MACHINE
            data, offset = await asyncio.to_thread(files.read_console, path, offset, _CONSOLE_CHUNK)
            if data:
                yield data
            elif not (follow and lives):
                return
            else:
                await asyncio.sleep(_CONSOLE_POLL_S)
                info = await self.get(sandbox_id)

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

    # ---- snapshots ----

    async def snapshot(
        self,
        sandbox_id: SandboxId,
        *,
        label: str | None = None,
        consistency: Consistency = "filesystem",
        metadata: Mapping[str, str] | None = None,
        quiesce: QuiesceSpec | None = None,
        snapshot_id: SnapshotId | None = None,
        volumes: VolumesMode = "include",
    ) -> SnapshotInfo:
        """Take a snapshot; the sandbox goes on."""
        check_mode(volumes)
        wish = Wish(
            reason="snapshot",
            label=label,
            consistency=consistency,
            metadata=metadata or {},
            quiesce=check_quiesce(consistency, quiesce),
            snapshot_id=snapshot_id,
            volumes=volumes,
        )
        check_snapshot(wish)
        task = await self._task(sandbox_id)
        return self._seen(await task.snapshot(wish))

    async def test_quiesce(
        self, sandbox_id: SandboxId, quiesce: QuiesceSpec | None = None
    ) -> QuiesceReport:
        """Bring a sandbox's programs to rest and let them go on, without a snapshot."""
        return await (await self._task(sandbox_id)).test_quiesce(quiesce_spec(quiesce))

    async def snapshots(self, sandbox_id: SandboxId | None = None) -> tuple[SnapshotInfo, ...]:
        """Return the snapshots, newest first; of one sandbox, or all."""
        return tuple(self._seen(m) for m in self._parts.layers.snapshots(sandbox_id))

    async def get_snapshot(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Return one snapshot."""
        return self._seen(self._parts.layers.get(check_snapshot_id(snapshot_id)))

    async def protect(self, snapshot_id: SnapshotId, holder: str, reason: str) -> None:
        """Keep a snapshot from being deleted until `holder` lets go."""
        self._parts.origin(check_snapshot_id(snapshot_id))
        wanted = Protection(snapshot_id, holder, reason)
        await self._parts.protections.put(wanted, self._parts.clock.now())

    async def unprotect(self, snapshot_id: SnapshotId | None, holder: str) -> None:
        """Let go of a snapshot, or of all that `holder` protects."""
        await self._parts.protections.drop(snapshot_id, holder)

    async def mark_good(self, snapshot_id: SnapshotId, found_by: str, reason: str) -> None:
        """Note that a snapshot is known to be good."""
        self._parts.origin(check_snapshot_id(snapshot_id))
        mark = Goodness(found_by=found_by, reason=reason, found_at=self._parts.clock.now())
        await self._parts.good.mark(snapshot_id, mark)

    async def unmark_good(self, snapshot_id: SnapshotId) -> None:
        """Note that a snapshot is not known to be good any more."""
        await self._parts.good.forget(snapshot_id)

    async def last_good(self, sandbox_id: SandboxId) -> SnapshotInfo | None:
        """Return the newest snapshot of a sandbox that is known to be good."""
        infos = [self._seen(m) for m in self._parts.layers.snapshots(sandbox_id)]
        return self._parts.good.last(infos).get(sandbox_id)

    async def note_health(self, sandbox_id: SandboxId, note: str | None, state: str) -> None:
        """Show what a watch found with the sandbox, and tell those who follow events."""
        info = await self.get(sandbox_id)
        if note is None:
            self._parts.health.pop(sandbox_id, None)
        else:
            self._parts.health[sandbox_id] = note
        self._parts.events.record("watch", sandbox_id, state, info.workspace, note=note)

    def _seen(self, manifest: Manifest) -> SnapshotInfo:
        return self._parts.good.seen(self._parts.protections.seen(manifest.info))

    async def delete_snapshot(self, snapshot_id: SnapshotId, *, force: bool = False) -> int:
        """Remove a snapshot; return the bytes that this freed."""
        manifest = self._parts.layers.get(check_snapshot_id(snapshot_id))
        asleep = self._stand_on(manifest.info.id)
        if asleep:
            raise Conflict(
                f"snapshot {snapshot_id} is needed: sandbox {asleep[0]} sleeps at it or is made from it",
                hint=f"wake it (torpor wake {asleep[0]}) or delete it first",
                sandboxes=asleep,
            )
        if manifest.info.id in self._parts.pins.now:
            raise Conflict(
                f"snapshot {snapshot_id} is needed: a sandbox is being made from it",
                hint="try again in a moment",
            )
        self._parts.protections.check_free(manifest.info.id)
        if not force and manifest.info.sandbox_id in self._tasks:
            infos = [m.info for m in self._parts.layers.snapshots(manifest.info.sandbox_id)]
            self._parts.good.check_not_last(manifest.info, infos)
        await self._remove_snapshot(manifest.info.id)
        return await self.collect()

    async def verify_snapshot(self, snapshot_id: SnapshotId) -> tuple[Damage, ...]:
        """Read all that a snapshot needs and compare it with its digests; return what is damaged."""
        store, mapped = self._parts.layers, self._mapped()
        check_snapshot_id(snapshot_id)
        return tuple(await asyncio.to_thread(store.verify, snapshot_id, mapped=mapped))

    async def snapshot_inventory(self, snapshot_id: SnapshotId) -> Inventory:
        """Return what a snapshot's machine held when it was taken."""
        check_snapshot_id(snapshot_id)
        return await asyncio.to_thread(self._parts.layers.inventory, snapshot_id)

    async def layers(self) -> tuple[LayerUse, ...]:
        """Return every layer and RAM image with its size and who needs it."""
        store, rows = self._parts.layers, self._awake()
        layers: list[tuple[str, Collection[str]]] = [(r.info.id, r.layers.ids) for r in rows]
        layers += self._parts.volumes.shelf.layer_uses(store.merges)
        images = [(row.info.id, row.layers.image) for row in rows]
        return (
            *await asyncio.to_thread(store.uses, layers),
            *await asyncio.to_thread(store.image_uses, images),
        )

    async def collect(self) -> int:
        """Remove what nothing needs; return the bytes freed."""

        def needed() -> Needed:
            volumes = self._parts.volumes.shelf.layer_uses(self._parts.layers.merges)
            layers = self._parts.pins.now.union(
                *(ids for _, ids in volumes), *(row.layers.ids for row in self._awake())
            )
            return Needed(layers, self._mapped())

        return await asyncio.to_thread(self._parts.layers.collect, needed)

    # ---- templates ----

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the built templates, by name."""
        return await asyncio.to_thread(self._parts.templates.list)

    async def template(self, name: str) -> TemplateInfo:
        """Return one built template."""
        return (await asyncio.to_thread(self._parts.templates.get, name)).info

    async def build_template(
        self, name_or_recipe: str | Path, *, force: bool = False
    ) -> AsyncIterator[BuildEvent]:
        """Build a template and take its snapshot; yields the steps."""
        async for event in self._parts.templates.build(name_or_recipe, force=force):
            if event.template is None:
                yield replace(event, fraction=event.fraction * _IMAGE_SHARE)
                continue
            await self._look_at_host()
            yield BuildEvent(
                step="snapshot",
                message="booting for the template's snapshot",
                fraction=_IMAGE_SHARE,
            )
            await self._warm.take(
                await asyncio.to_thread(self._parts.templates.get, event.template.name)
            )
            self._parts.events.record("template", event.template.name, "built", None)
            yield event

    async def delete_template(self, name: str) -> None:
        """Forget a template that no sandbox needs."""
        async with self._admission:  # no create may begin on it meanwhile
            await asyncio.to_thread(
                self._parts.templates.delete, name, needed=self._template_users()
            )
            await self._warm.drop_stale()
        self._parts.events.record("template", name, "deleted", None)

    async def doctor(self) -> dict[str, object]:
        """Return what `torpor doctor --json` prints."""
        return await collect(self._parts.home)

    # ---- inside ----

    def _template_users(self) -> Mapping[str, Sequence[str]]:
        """Return who needs a template, by its digest."""
        living = [task.info for task in self._tasks.values()]
        store = self._parts.layers
        return template_users(living, store.snapshots(), store.damaged)

    def _stand_on(self, snapshot_id: SnapshotId) -> tuple[SandboxId, ...]:
        """Return the sandboxes that are nothing without a snapshot: they come from it, or sleep at it."""
        return tuple(
            t.info.id
            for t in self._tasks.values()
            if snapshot_id in (t.info.parent_snapshot, t.machine.row.layers.taking)
            and t.info.state in _STANDS_ON_SNAPSHOT
        )

    def _is_free(self, snapshot_id: SnapshotId) -> bool:
        """Return whether a snapshot is there, and nobody stands on it, begins from it or protects it."""
        return (
            self._parts.layers.has(snapshot_id)
            and snapshot_id not in self._parts.going
            and not self._stand_on(snapshot_id)
            and snapshot_id not in self._parts.pins.now
            and snapshot_id not in self._parts.protections
        )

    async def _remove_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Remove a snapshot that nothing stands on; nothing begins from it any more from now on."""
        self._parts.going.add(snapshot_id)
        try:
            await asyncio.to_thread(self._parts.layers.remove, snapshot_id)
            await self._parts.good.forget(snapshot_id)
        finally:
            self._parts.going.discard(snapshot_id)

    def _mapped(self) -> frozenset[SnapshotId]:
        """Return the snapshots whose RAM images machines map, or are about to."""
        images = (row.layers.image for row in self._awake())
        return frozenset(image for image in images if image is not None)

    def _awake(self) -> tuple[SandboxRow, ...]:
        """Return the rows whose layers are needed; one that sleeps needs those of its snapshot, and no others."""
        rows = [task.machine.row for task in list(self._tasks.values())]
        return tuple(row for row in rows if row.info.state is not SandboxState.HIBERNATED)

    def _images_in_use(self) -> tuple[frozenset[SnapshotId], frozenset[SnapshotId]]:
        """Return the snapshots whose RAM images machines map or are about to, and those at which sandboxes sleep."""
        asleep = (
            task.info.parent_snapshot
            for task in list(self._tasks.values())
            if task.info.state is SandboxState.HIBERNATED
        )
        begun = frozenset(SnapshotId(p) for p in self._parts.pins.now if is_id(p, "snap"))
        return self._mapped() | begun, frozenset(found for found in asleep if found is not None)

    async def _look_at_host(self) -> None:
        self._parts.host = await self._parts.driver.probe()
        if not self._parts.host.usable:
            raise HostNotReady(self._parts.host.reason, hint=self._parts.host.fix)

    async def _check_room(self, sizes: Sizes) -> None:
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
    async def _memory_for(self, info: SandboxInfo) -> AsyncIterator[None]:
        """Hold the admission while a machine that slept or had ended is promised its memory again."""
        async with self._admission:
            others = [task.info for task in self._tasks.values() if task.info.id != info.id]
            await asyncio.to_thread(
                check_memory, info.ram_mib, others, boots_mib=tuple(self._boots_mib)
            )
            yield

    @contextlib.asynccontextmanager
    async def _memory_for_boot(self, ram_mib: int) -> AsyncIterator[None]:
        """Hold the memory of a machine that is no sandbox's, a template that boots, until it has ended."""
        async with self._admission:
            living = [task.info for task in self._tasks.values()]
            await asyncio.to_thread(check_memory, ram_mib, living, boots_mib=tuple(self._boots_mib))
            self._boots_mib.append(ram_mib)
        try:
            yield
        finally:
            self._boots_mib.remove(ram_mib)

    async def _admit(self, row: SandboxRow) -> SandboxTask:
        """Write the row of a sandbox that the host has room for, and start its task."""
        info = row.info
        async with self._admission:
            await self._check_room(Sizes(info.vcpus, info.ram_mib, info.disk_gib))
            # it may have been deleted while we waited
            await asyncio.to_thread(self._parts.templates.by_digest, info.template_digest)
            await asyncio.to_thread(self._parts.rows.insert, row)
            task = self._tasks[info.id] = SandboxTask(self._parts, row)
        task.start()
        return task

    async def _lost_its_ram(self, origin: Manifest) -> bool:
        """Return whether a snapshot's RAM cannot be put together any more, so that only its disk is left."""
        with self._parts.pins.held(origin.info.id, *origin.layer_ids):
            try:
                await image_of(self._parts, origin)
            except DataDamaged as exc:
                self._parts.report(f"RAM of {origin.info.id}", exc)
                return True
        return False

    async def _create_from(
        self,
        origin: Manifest,
        row: SandboxRow,
        env: Mapping[str, str],
        reason: RenewalReason,
        mounts: Sequence[VolumeMount] = (),
        volumes: VolumesMode | None = None,
        still: Stillness | None = None,
    ) -> SandboxInfo:
        with self._parts.pins.held(origin.info.id, *origin.layer_ids):
            task = await self._admit(row)
            return await task.create_from(origin, env, reason, mounts, volumes, still)

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

    def _row(
        self,
        spec: SandboxSpec,
        sizes: Sizes,
        template: TemplateInfo,
        origin: Manifest | None = None,
    ) -> SandboxRow:
        info = SandboxInfo(
            id=spec.sandbox_id or SandboxId(new_id("sbx")),
            state=SandboxState.CREATING,
            template=template.name,
            template_digest=template.digest,
            vcpus=sizes.vcpus,
            ram_mib=sizes.ram_mib,
            disk_gib=sizes.disk_gib,
            network=spec.network,
            env_names=tuple(
                sorted({*spec.env, *(() if origin is None else origin.info.env_names)})
            ),
            metadata=dict(spec.metadata),
            ttl_seconds=spec.ttl_seconds,
            on_timeout=spec.on_timeout,
            created_at=self._parts.clock.now(),
            expires_at=None,
            driver=self._parts.driver.name,
            accel=self._parts.host.accel,
            idle_seconds=spec.idle_seconds,
            parent_snapshot=None if origin is None else origin.info.id,
            workspace=spec.workspace,
        )
        left = None if spec.ttl_seconds is None else timedelta(seconds=spec.ttl_seconds)
        layers = MachineLayers() if origin is None else layers_at(origin)
        return SandboxRow(
            info,
            epoch=0 if origin is None else origin.epoch,
            ttl_left=left,
            layers=replace(layers, active=new_id("lyr")),
        )

    def _row_of(self, origin: Manifest, spec: RestoreSpec) -> SandboxRow:
        info = origin.info
        template = TemplateInfo(
            name=info.template,
            digest=info.template_digest,
            created_at=info.created_at,
            vcpus=info.vcpus,
            ram_mib=info.ram_mib,
            disk_gib=info.disk_gib,
            size_bytes=0,
            default_user="",
            default_cwd="",
            env={},
        )
        made = SandboxSpec(
            template=info.template,
            network=spec.network or info.network,
            env=spec.env,
            metadata=spec.metadata,
            ttl_seconds=spec.ttl_seconds,
            on_timeout=spec.on_timeout,
            idle_seconds=spec.idle_seconds,
            workspace=spec.workspace or info.workspace,
            sandbox_id=spec.sandbox_id,
        )
        return self._row(made, Sizes(info.vcpus, info.ram_mib, info.disk_gib), template, origin)

    def _noted(self, info: SandboxInfo) -> SandboxInfo:
        """Return `info` with what is wrong with its agent's memory, and what its watch found, if anything is."""
        note, health = self._moves.note(info.id), self._parts.health.get(info.id)
        if note is None and health is None:
            return info
        return replace(info, memory_note=note, health_note=health)

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

    async def _upkeep(self) -> None:
        """Keep logs small and listings short, for as long as the daemon lives."""
        while True:
            await asyncio.sleep(_UPKEEP_S)
            try:
                await self.keep_house()
            except Exception as exc:  # noqa: BLE001 - a full disk, say: the next turn may do better
                self._parts.report("upkeep", exc)

    async def _watch_folder(self, task: SandboxTask) -> None:
        """Keep a machine's logs short, and end a VMM that fills the disk."""
        folder = files.folder_of(self._parts.home, task.info.id)
        await asyncio.to_thread(files.trim_logs, folder, self._parts.driver.console(folder))
        vmm = task.machine.vmm
        if vmm is not None and await asyncio.to_thread(
            files.is_overfull, folder, task.info.ram_mib
        ):
            log.error(
                "%s: its VMM fills %s, as none of ours does; it is ended", task.info.id, folder
            )
            await vmm.kill()

    async def keep_house(self) -> None:
        """Do one turn of upkeep."""
        for task in list(self._tasks.values()):
            if task.info.state is SandboxState.DELETED:  # by its TTL
                await self._forget(task)
                await self._moves.withdraw(task.info.id)
            else:
                await self._watch_folder(task)
            if task.info.state is SandboxState.RUNNING and not task.is_busy:
                with contextlib.suppress(TorporError):  # at the next turn again
                    await task.go_on()
        now = self._parts.clock.now()
        snapshots = [self._seen(m) for m in self._parts.layers.snapshots()]
        last_good = {info.id for info in self._parts.good.last(snapshots).values()}
        living = [t.info for t in self._tasks.values()]
        for snapshot_id in superseded(snapshots, living, now, last_good=last_good):
            if self._is_free(snapshot_id):  # what was so before the last removal may be so no more
                await self._remove_snapshot(snapshot_id)
        await self.collect()
        await self._moves.follow_rollbacks()
        await keep_room(self._parts)
        await asyncio.to_thread(self._parts.rows.forget_deleted, now - _DELETED_KEPT)
