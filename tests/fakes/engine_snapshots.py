"""The fake engine's snapshots, forks, sleep and layers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from tests.fakes.engine_volumes import FakeVolumes
from torpor.base.ids import new_id
from torpor.errors import (
    Conflict,
    DataDamaged,
    GenerationChanged,
    GuestFailed,
    InsufficientResources,
    InvalidRequest,
    LastGoodSnapshot,
    NotFound,
    QuiesceFailed,
    SnapshotUnusable,
    TorporError,
    WrongState,
)
from torpor.layers.store import LayerUse
from torpor.layers.verify import Damage
from torpor.model import (
    BootMode,
    Consistency,
    Goodness,
    MemoryChoice,
    RestoreSpec,
    SandboxId,
    SandboxInfo,
    SandboxState,
    SnapshotId,
    SnapshotInfo,
    SnapshotReason,
)
from torpor.model_inventory import Inventory
from torpor.model_memory import Policy
from torpor.model_quiesce import HookResult, QuiesceReport, QuiesceSpec
from torpor.model_volumes import VolumesMode
from torpor.sandboxes.claims import Claim, Claims
from torpor.sandboxes.events import EventLog
from torpor.sandboxes.memories import AgentMemories
from torpor.sandboxes.missing import no_snapshot

if TYPE_CHECKING:
    from tests.fakes.engine import FakeGuest, FakeSandbox

S = SandboxState
LAYER_BYTES = 1 << 20
"""Of a snapshot; a sandbox's own has twice as many."""


@dataclass(slots=True)
class FakeSnapshot:
    """A point of a fake sandbox."""

    info: SnapshotInfo
    guest: FakeGuest
    layers: tuple[str, ...]
    inventory: Inventory | None = None


class FakeSnapshots:
    """The part of `FakeEngine` that keeps points of sandboxes."""

    sandboxes: dict[SandboxId, FakeSandbox]
    volumes: FakeVolumes
    _memories: AgentMemories | None

    @property
    def memories(self) -> AgentMemories:
        raise NotImplementedError

    log: EventLog

    def forget_snapshots(self) -> None:
        self.points: dict[SnapshotId, FakeSnapshot] = {}
        self.own_layers: dict[SandboxId, tuple[str, ...]] = {}
        self.damaged: set[str] = set()
        self.foreign: set[SnapshotId] = set()
        """Whose RAM belongs to another driver."""
        self.volumes_modes: list[VolumesMode | None] = []
        """What each snapshot, restore and rollback was told about volumes."""
        self.will_not_freeze = False
        self.claims = Claims()
        self.disk_is_full = False
        self.needs: dict[tuple[SnapshotId, str], str] = {}
        self.good: dict[SnapshotId, Goodness] = {}
        self.room: int | None = None
        """How many more sandboxes fit."""

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
        self.volumes_modes.append(volumes)
        report = self._quiesced(sandbox_id, consistency, quiesce)
        if any(p.info.label == label for p in self._of(sandbox_id)) and label is not None:
            raise Conflict(f"sandbox {sandbox_id} has a snapshot with the label {label!r} already")
        return await self._take(
            sandbox_id, "snapshot", label, consistency, metadata or {}, report, snapshot_id
        )

    def _quiesced(
        self, sandbox_id: SandboxId, consistency: Consistency, quiesce: QuiesceSpec | None
    ) -> QuiesceReport | None:
        """Say what comes of quiescing: a hook whose `hold` is `false` fails; nothing else does."""
        if consistency != "application":
            if quiesce is not None:
                raise InvalidRequest("quiesce is for consistency 'application'")
            return None
        self._need(sandbox_id, S.RUNNING)
        spec = quiesce or QuiesceSpec()
        report = _rehearsed(spec)
        if not report.held and spec.on_failure == "refuse":
            raise QuiesceFailed(f"no snapshot was taken: {report.reason}", hook="app")
        return report

    async def test_quiesce(
        self, sandbox_id: SandboxId, quiesce: QuiesceSpec | None = None
    ) -> QuiesceReport:
        self._need(sandbox_id, S.RUNNING)
        return _rehearsed(quiesce or QuiesceSpec())

    async def _take(
        self,
        sandbox_id: SandboxId,
        reason: SnapshotReason,
        label: str | None = None,
        consistency: Consistency = "filesystem",
        metadata: Mapping[str, str] | None = None,
        report: QuiesceReport | None = None,
        snapshot_id: SnapshotId | None = None,
    ) -> SnapshotInfo:
        if report is not None and not report.held:
            consistency = "filesystem"
        self._need(sandbox_id, S.RUNNING, S.PAUSED, S.HIBERNATED)
        if self.will_not_freeze:
            raise GuestFailed("the file systems could not be frozen", hint="look into its log")
        found = self._found(sandbox_id)
        info = SnapshotInfo(
            id=snapshot_id or SnapshotId(new_id("snap")),
            label=label,
            sandbox_id=sandbox_id,
            parent=found.info.parent_snapshot,
            reason=reason,
            template=found.info.template,
            template_digest=found.info.template_digest,
            created_at=datetime.now(UTC),
            consistency=consistency,
            vcpus=found.info.vcpus,
            ram_mib=found.info.ram_mib,
            disk_gib=found.info.disk_gib,
            network=found.info.network,
            driver="qemu",
            driver_version="10.0.2",
            cpu="max",
            accel="tcg",
            size_bytes=LAYER_BYTES,
            pause_ms=12.5,
            metadata=dict(metadata or {}),
            volumes=self.volumes.at(sandbox_id),
            inventory=_noted(found.guest, reason),
            quiesce=report,
            env_names=found.info.env_names,
            workspace=found.info.workspace,
        )
        if self._memories is not None:
            await self.memories.moves.follow(sandbox_id)
            mark = await self.memories.moves.mark(found.info)
            info = replace(info, watermark=replace(mark, snapshot=info.id))
        layers = (*self.own_layers.get(sandbox_id, ()), new_id("lyr"))
        self.own_layers[sandbox_id] = layers
        self.points[info.id] = FakeSnapshot(
            info,
            _copy(found.guest),
            layers,
            found.guest.as_of_now() if _noted(found.guest, reason) == "taken" else None,
        )
        self.log.snapshot(info, True)
        found.info = replace(found.info, parent_snapshot=info.id)
        return info

    def _of(self, sandbox_id: SandboxId | None) -> list[FakeSnapshot]:
        wanted = (None, sandbox_id) if sandbox_id is None else (sandbox_id,)
        return [
            p
            for p in reversed(self.points.values())
            if sandbox_id is None or p.info.sandbox_id in wanted
        ]

    async def snapshots(self, sandbox_id: SandboxId | None = None) -> tuple[SnapshotInfo, ...]:
        return tuple(self._seen(p.info) for p in self._of(sandbox_id))

    async def get_snapshot(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        return self._seen(self._point(snapshot_id).info)

    async def mark_good(self, snapshot_id: SnapshotId, found_by: str, reason: str) -> None:
        self._point(snapshot_id)
        mark = Goodness(found_by=found_by, reason=reason, found_at=datetime.now(UTC))
        self.good[snapshot_id] = mark

    async def unmark_good(self, snapshot_id: SnapshotId) -> None:
        self.good.pop(snapshot_id, None)

    async def last_good(self, sandbox_id: SandboxId) -> SnapshotInfo | None:
        found = [p.info for p in self._of(sandbox_id) if p.info.id in self.good]
        return self._seen(found[0]) if found else None

    async def note_health(self, sandbox_id: SandboxId, note: str | None, state: str) -> None:
        sandbox = self.sandboxes[sandbox_id]
        sandbox.info = replace(sandbox.info, health_note=note)
        self.log.record("watch", sandbox_id, state, sandbox.info.workspace, note=note)

    async def delete_snapshot(self, snapshot_id: SnapshotId, *, force: bool = False) -> int:
        info = self._point(snapshot_id).info
        last = await self.last_good(info.sandbox_id) if info.sandbox_id else None
        if last is not None and last.id == snapshot_id and not force:
            raise LastGoodSnapshot(
                f"snapshot {snapshot_id} is the last one that is known to be good",
                hint=f"force it: torpor snapshot rm {snapshot_id} --force",
            )
        reasons = self._seen(self._point(snapshot_id).info).protected
        if reasons:
            raise Conflict(f"snapshot {snapshot_id} is needed: {'; '.join(reasons)}")
        asleep = [
            s.info.id
            for s in self.sandboxes.values()
            if s.info.state is S.HIBERNATED and s.info.parent_snapshot == snapshot_id
        ]
        if asleep:
            raise Conflict(
                f"snapshot {snapshot_id} is needed: sandbox {asleep[0]} sleeps at it",
                hint=f"wake it (torpor wake {asleep[0]}) or delete it first",
                sandboxes=asleep,
            )
        before = {use.id for use in await self.layers()}
        self.log.snapshot(self.points.pop(snapshot_id).info, False)
        return (len(before) - len({use.id for use in await self.layers()})) * LAYER_BYTES

    async def verify_snapshot(self, snapshot_id: SnapshotId) -> tuple[Damage, ...]:
        return tuple(
            Damage(
                layer,
                "its content is not what was written",
                tuple(p.info.id for p in self.points.values() if layer in p.layers),
            )
            for layer in self._point(snapshot_id).layers
            if layer in self.damaged
        )

    async def snapshot_inventory(self, snapshot_id: SnapshotId) -> Inventory:
        point = self._point(snapshot_id)
        if point.inventory is None:
            raise NotFound(f"snapshot {snapshot_id} has no inventory: {point.info.inventory}")
        return point.inventory

    async def layers(self) -> tuple[LayerUse, ...]:
        owners = {
            sandbox_id: (*layers, f"lyr_{sandbox_id[4:]}")
            for sandbox_id, layers in self.own_layers.items()
            if self.sandboxes[sandbox_id].info.state is not S.DELETED
        }
        known = [layer for p in self.points.values() for layer in p.layers]
        known += [layer for layers in owners.values() for layer in layers]
        return tuple(
            LayerUse(
                layer,
                LAYER_BYTES,
                tuple(p.info.id for p in self.points.values() if layer in p.layers),
                tuple(sandbox_id for sandbox_id, layers in owners.items() if layer in layers),
            )
            for layer in sorted(set(known))
        )

    async def restore(
        self,
        snapshot_id: SnapshotId,
        spec: RestoreSpec,
        *,
        reason: Literal["restore", "fork"] = "restore",
    ) -> SandboxInfo:
        point = self._point(snapshot_id)
        self.volumes_modes.append(spec.volumes)
        boot_mode: BootMode = "restore" if spec.memory == "ram" else "cold"
        if snapshot_id in self.foreign and spec.memory == "ram":
            if not spec.allow_cold:
                raise SnapshotUnusable(
                    f"snapshot {snapshot_id} is of another CPU", hint="allow_cold starts it cold"
                )
            boot_mode = "cold"
        if self.damaged & set(point.layers):
            raise DataDamaged(f"a layer of snapshot {snapshot_id} is damaged")
        if self.room is not None:
            if self.room == 0:
                raise InsufficientResources("512 MiB of memory are wanted, 0 MiB are free")
            self.room -= 1
        origin, ttl = point.info, spec.ttl_seconds
        now = datetime.now(UTC)
        info = SandboxInfo(
            id=spec.sandbox_id or SandboxId(new_id("sbx")),
            state=S.RUNNING,
            template=origin.template,
            template_digest=origin.template_digest,
            vcpus=origin.vcpus,
            ram_mib=origin.ram_mib,
            disk_gib=origin.disk_gib,
            network=spec.network or origin.network,
            env_names=tuple(sorted({*origin.env_names, *spec.env})),
            metadata=dict(spec.metadata),
            ttl_seconds=ttl,
            on_timeout=spec.on_timeout,
            created_at=now,
            expires_at=None if ttl is None else now + timedelta(seconds=ttl),
            boot_mode=boot_mode,
            boot_ms=7,
            accel="tcg",
            idle_seconds=spec.idle_seconds,
            parent_snapshot=snapshot_id,
            workspace=spec.workspace or origin.workspace,
        )
        if self._memories is not None:
            await self.memories.moves.intend_new(
                info,
                origin.watermark,
                is_fork=reason == "fork",
                policy=spec.agent_memory,
                others=[s.info.id for s in self.sandboxes.values() if s.info.agent == info.agent],
            )
        guest = _copy(point.guest)
        guest.env = {**guest.env, **spec.env}
        if boot_mode == "cold":
            guest.execs.clear()
        if spec.still is not None:
            guest.held_still.append(spec.still)
        self.add(info, guest)
        self.own_layers[info.id] = point.layers
        return info

    async def fork(
        self,
        source: SandboxId | SnapshotId,
        spec: RestoreSpec,
        *,
        count: int = 1,
        snapshot_id: SnapshotId | None = None,
        ids: Sequence[SandboxId] = (),
    ) -> tuple[SandboxInfo | TorporError, ...]:
        if not 1 <= count <= 100:
            raise InvalidRequest(f"count is {count}; 1 to 100 is wanted")
        if source.startswith("snap_"):
            origin = self._point(SnapshotId(source)).info.id
        else:
            origin = (await self._take(SandboxId(source), "fork", snapshot_id=snapshot_id)).id
        found: list[SandboxInfo | TorporError] = []
        for own in [replace(spec, sandbox_id=made) for made in ids] or [spec] * count:
            try:
                found.append(await self.restore(origin, own, reason="fork"))
            except TorporError as error:
                found.append(error)
        return tuple(found)

    async def hibernate(
        self,
        sandbox_id: SandboxId,
        *,
        consistency: Consistency = "filesystem",
        quiesce: QuiesceSpec | None = None,
    ) -> SnapshotInfo:
        self.claims.check(sandbox_id, "hibernate")
        found = self._found(sandbox_id)
        if found.info.state is not S.HIBERNATED:
            self._need(sandbox_id, S.RUNNING, S.PAUSED)
            report = self._quiesced(sandbox_id, consistency, quiesce)
            await self._take(sandbox_id, "hibernate", None, consistency, None, report)
            ends = found.info.expires_at
            left = None if ends is None else (ends - datetime.now(UTC)).total_seconds()
            found.info = replace(
                found.info, state=S.HIBERNATED, expires_at=None, ttl_left_seconds=left
            )
            found.guest = found.guest.cut()
            self.log.sandbox(found.info)
        assert found.info.parent_snapshot is not None
        return self._point(found.info.parent_snapshot).info

    async def wake(self, sandbox_id: SandboxId) -> SandboxInfo:
        found = self._found(sandbox_id)
        if found.info.state is not S.RUNNING:
            self._need(sandbox_id, S.HIBERNATED)
            left = found.info.ttl_left_seconds
            ends = None if left is None else datetime.now(UTC) + timedelta(seconds=left)
            found.info = replace(
                found.info,
                state=S.RUNNING,
                expires_at=ends,
                ttl_left_seconds=None,
                boot_mode="resume",
                boot_ms=5,
                generation=found.info.generation + 1,
            )
            self.log.sandbox(found.info)
        return found.info

    async def check_room(self, sandbox_id: SandboxId) -> None:
        self._found(sandbox_id)
        if self.disk_is_full:
            raise InsufficientResources("a snapshot may write 512 MiB and 1 MiB are free")

    async def claim(self, sandbox_id: SandboxId, claim: Claim | None, holder: str) -> None:
        if claim is None:
            self.claims.drop(sandbox_id, holder)
        else:
            self.claims.put(sandbox_id, claim)

    async def protect(self, snapshot_id: SnapshotId, holder: str, reason: str) -> None:
        self._point(snapshot_id)
        self.needs[snapshot_id, holder] = reason

    async def unprotect(self, snapshot_id: SnapshotId | None, holder: str) -> None:
        for key in list(self.needs):
            if key[1] == holder and snapshot_id in (None, key[0]):
                del self.needs[key]

    def _seen(self, info: SnapshotInfo) -> SnapshotInfo:
        reasons = tuple(why for (of, _), why in sorted(self.needs.items()) if of == info.id)
        return replace(info, protected=reasons, good=self.good.get(info.id))

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
        self.claims.check(sandbox_id, "rollback", holder)
        self.volumes_modes.append(volumes)
        found, point = self._found(sandbox_id), self._point(snapshot_id)
        if (
            since_generation is not None
            and found.info.generation > since_generation
            and (found.info.state, found.info.parent_snapshot) == (S.RUNNING, snapshot_id)
        ):
            return found.info
        self._need(sandbox_id, S.RUNNING, S.PAUSED, S.HIBERNATED, S.STOPPED, S.FAILED)
        if point.info.template_digest != found.info.template_digest:
            raise WrongState(f"snapshot {snapshot_id} is of another template")
        if self.damaged & set(point.layers):
            raise DataDamaged(f"a layer of snapshot {snapshot_id} is damaged")
        async with contextlib.AsyncExitStack() as stack:
            if self._memories is not None:
                intended = self.memories.moves.rollback_intended(
                    found.info, point.info.watermark, agent_memory
                )
                await stack.enter_async_context(intended)
            self._put_back(found, point, memory)
        if self._memories is not None:
            await self.memories.moves.follow_quietly(sandbox_id)
        return await self.get(sandbox_id)

    def _put_back(self, found: FakeSandbox, point: FakeSnapshot, memory: MemoryChoice) -> None:
        kept = point.guest.execs
        for exec_id, running in found.guest.execs.items():
            if exec_id not in kept:
                running.kill(9)
        found.guest.cut()
        found.guest = _copy(point.guest)
        if memory == "cold":
            found.guest.execs.clear()
        self.own_layers[found.info.id] = point.layers
        found.info = replace(
            found.info,
            state=S.RUNNING,
            boot_mode="restore" if memory == "ram" else "cold",
            boot_ms=6,
            error=None,
            parent_snapshot=point.info.id,
            generation=found.info.generation + 1,
        )

    async def get(self, sandbox_id: SandboxId) -> SandboxInfo:
        raise NotImplementedError

    async def set_idle(self, sandbox_id: SandboxId, idle_seconds: int | None) -> SandboxInfo:
        if idle_seconds is not None and idle_seconds < 1:
            raise InvalidRequest(f"idle_seconds is {idle_seconds}; 1 or more is wanted")
        found = self._found(sandbox_id)
        found.info = replace(found.info, idle_seconds=idle_seconds)
        return found.info

    def _point(self, snapshot_id: SnapshotId) -> FakeSnapshot:
        if snapshot_id not in self.points:
            raise no_snapshot(snapshot_id)
        return self.points[snapshot_id]

    def add(self, info: SandboxInfo, guest: FakeGuest) -> None:
        raise NotImplementedError

    def _found(self, sandbox_id: SandboxId) -> FakeSandbox:
        raise NotImplementedError

    def _need(self, sandbox_id: SandboxId, *states: SandboxState) -> None:
        raise NotImplementedError


def void(info: SandboxInfo) -> GenerationChanged:
    """Return what callers of a machine get that was put back or slept meanwhile."""
    return GenerationChanged(
        f"sandbox {info.id} was put back or slept meanwhile; what was asked of it is void",
        sandbox_id=info.id,
        generation=info.generation,
    )


def _noted(guest: FakeGuest, reason: SnapshotReason) -> str:
    """Return what a snapshot says of its inventory."""
    if reason == "fork":
        return "not taken: a snapshot for a fork has none"
    lost = guest.inventory_error
    return "taken" if lost is None else f"not taken: {lost.message}"


def _copy(guest: FakeGuest) -> FakeGuest:
    """Return a guest with the same files; its commands are the same ones, which run on."""
    fresh = guest.twin()
    fresh.files = copy.deepcopy(guest.files)
    fresh.execs = dict(guest.execs)
    return fresh


def _rehearsed(spec: QuiesceSpec) -> QuiesceReport:
    hooks = [
        HookResult(
            name=hook.name,
            kind=hook.kind,
            required=hook.required,
            state="failed" if hook.hold == "false" else "held",
            failed_phase="hold" if hook.hold == "false" else "",
            message="hold ended with status 1" if hook.hold == "false" else "",
            hold_ms=2.0,
            held_ms=12.0,
        )
        for hook in spec.hooks
    ]
    hooks.append(HookResult(name="sqlite", kind="sqlite", required=True, state="held"))
    bad = next((hook for hook in hooks if hook.required and hook.state == "failed"), None)
    return QuiesceReport(
        held=bad is None,
        reason=f"hook {bad.name}: {bad.message}" if bad else "",
        confirmed="no" if bad else "after",
        hooks=tuple(hooks),
        versions=dict.fromkeys(spec.versions, "1.0"),
        cursor="42" if spec.cursor else None,
    )
