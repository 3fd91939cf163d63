"""`EngineVolumes`: what may be asked about volumes, from all sides; see `VolumesPort` for what each call promises.

A volume that a machine writes to is worked on by its sandbox's task alone; one that no machine writes to, here, in
its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torpor.base.fsio import free_bytes
from torpor.base.ids import check_name
from torpor.base.units import format_bytes
from torpor.db.volumes import VolumeRow
from torpor.errors import (
    Conflict,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    TorporError,
    VolumeHeld,
    WrongState,
)
from torpor.model import SandboxId, SandboxState
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_volumes import (
    VolumeHolder,
    VolumeInfo,
    VolumeMount,
    VolumeSnapshotId,
    VolumeSnapshotInfo,
)
from torpor.sandboxes import volume_attach
from torpor.sandboxes.admission import DISK_RESERVE_BYTES
from torpor.sandboxes.lifecycle import WITH_MACHINE
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.room import make_room
from torpor.volumes.desk import Point
from torpor.volumes.lease import check_free_path, check_path, check_readable, held
from torpor.volumes.quota import size_of_gib

S = SandboxState
_USAGE_S = 5.0
_LABEL_MOST = 128


class Holder(Protocol):
    """A sandbox's task, as far as volumes are concerned."""

    @property
    def machine(self) -> SandboxMachine:
        """What it is made of."""
        ...

    async def with_machine(
        self, name: str, work: Callable[[SandboxMachine], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Do `work` when it is its turn."""
        ...


class EngineVolumes:
    """All volumes of one host."""

    def __init__(
        self,
        parts: Parts,
        task_of: Callable[[SandboxId], Coroutine[Any, Any, Holder]],
        collect: Callable[[], Coroutine[Any, Any, int]],
    ) -> None:
        self._parts = parts
        self._task_of = task_of
        self._collect = collect
        self._making = asyncio.Lock()

    async def create(
        self, name: str, size_gib: float = 1, *, workspace: str = DEFAULT_WORKSPACE
    ) -> VolumeInfo:
        """Make a volume with an empty file system."""
        size = size_of_gib(size_gib)
        desk = self._parts.volumes
        async with self._making:
            desk.check_new(name, size, workspace)
            await self._check_room(size)
            return await desk.info(await desk.create(name, size, workspace))

    async def check_new(
        self, name: str, size_gib: float, *, workspace: str = DEFAULT_WORKSPACE
    ) -> None:
        """Raise what forbids a new volume of that name and size."""
        size = size_of_gib(size_gib)
        self._parts.volumes.check_new(name, size, workspace)
        await self._check_room(size)

    async def list(self) -> tuple[VolumeInfo, ...]:
        """Return all volumes, by name."""
        desk = self._parts.volumes
        return tuple([await desk.info(row) for row in desk.shelf.all()])

    async def get(self, name: str) -> VolumeInfo:
        """Return a volume; one that a running machine has mounted is asked how full it is."""
        row = self._parts.volumes.shelf.get(name)
        for holder in row.holders:
            with contextlib.suppress(TorporError, TimeoutError):
                row = await self._used(row, holder)
                break
        return await self._parts.volumes.info(row)

    async def _used(self, row: VolumeRow, holder: VolumeHolder) -> VolumeRow:
        m = (await self._task_of(SandboxId(holder.sandbox_id))).machine
        if m.info.state is not S.RUNNING or holder.state != "attached":
            raise WrongState(f"sandbox {m.info.id} is {m.info.state}")
        async with asyncio.timeout(_USAGE_S):
            usage = await (await m.guest()).volume_usage(holder.path)
        now = self._parts.clock.now()
        return await self._parts.volumes.shelf.change(
            row.id, lambda r: replace(r, used_bytes=usage.used_bytes, used_at=now)
        )

    async def delete(self, name: str, *, snapshots: bool = False) -> int:
        """Delete a volume that nobody has and no snapshot needs; with `snapshots` its own ones too."""
        desk = self._parts.volumes
        row = desk.shelf.get(name)

        def check(now: VolumeRow) -> None:
            self._check_unneeded(now)
            own = desk.shelf.snapshots(now.id)
            if own and not snapshots:
                raise Conflict(
                    f"volume {now.name} has snapshots of its own: {len(own)}",
                    hint=f"delete them with it: torpor volume rm {now.name} --snapshots",
                    snapshots=[s.info.id for s in own],
                )

        async with desk.shelf.turn(row.id):
            await desk.shelf.remove(row.id, check)
        return await self._collect()

    def _check_unneeded(self, row: VolumeRow) -> None:
        if row.holders:
            raise held(row, row.holders, "deleted")
        needed = [
            m.info.id
            for m in self._parts.layers.snapshots()
            if any(p.volume_id == row.id and p.mode != "detach" for p in m.volumes)
        ]
        if needed:
            many = f"{len(needed)} snapshots of machines, such as" if needed[1:] else "snapshot"
            raise Conflict(
                f"volume {row.name} is needed by {many} {needed[0]}",
                hint=f"delete what you need no more of: torpor snapshot rm {' '.join(needed[:20])}",
                snapshots=needed[:20],
            )

    async def grow(self, name: str, size_gib: float) -> VolumeInfo:
        """Make a volume larger, also while a machine uses it."""
        desk, size = self._parts.volumes, size_of_gib(size_gib)
        row = desk.shelf.get(name)
        desk.check_grow(row, size)
        await self._check_room(size - row.size_bytes)
        writer = next((h for h in row.holders if not h.read_only), None)
        if writer is not None:
            task = await self._task_of(SandboxId(writer.sandbox_id))
            if task.machine.info.state in WITH_MACHINE or task.machine.info.state is S.HIBERNATED:
                await task.with_machine(
                    "volume grow", lambda m: volume_attach.grow(m, row.id, size)
                )
                return await desk.info(desk.shelf.get(row.id))
        async with desk.shelf.turn(row.id):
            await volume_attach.break_dead(self._parts, row.id, "")
            now = desk.shelf.get(row.id)
            if now.holders:
                raise held(now, now.holders, "made larger")
            return await desk.info(await desk.grow(row.id, size))

    async def snapshot(
        self,
        name: str,
        *,
        label: str | None = None,
        snapshot_id: VolumeSnapshotId | None = None,
    ) -> VolumeSnapshotInfo:
        """Take a snapshot of a volume, attached or not."""
        _check_label(label)
        desk = self._parts.volumes
        row = desk.shelf.get(name)
        desk.shelf.check_label(row.id, label)  # before its file systems are frozen for nothing
        point = await self._point(row)
        return (await desk.snapshot(row.id, point, label=label, snapshot_id=snapshot_id)).info

    async def snapshots(self, name: str) -> tuple[VolumeSnapshotInfo, ...]:
        """Return a volume's own snapshots, the newest first."""
        shelf = self._parts.volumes.shelf
        return tuple(s.info for s in shelf.snapshots(shelf.get(name).id))

    async def delete_snapshot(self, name: str, snapshot: str) -> int:
        """Delete a volume's snapshot, by id or label; return the bytes freed."""
        shelf = self._parts.volumes.shelf
        await shelf.remove_snapshot(self._find_snapshot(name, snapshot))
        return await self._collect()

    async def clone(self, name: str, new_name: str, *, snapshot: str | None = None) -> VolumeInfo:
        """Make a volume that begins as another is now, or was at its snapshot; copy-on-write."""
        desk = self._parts.volumes
        row = desk.shelf.get(name)
        desk.check_new(new_name, row.size_bytes, row.workspace)
        if snapshot is not None:
            kept = desk.shelf.get_snapshot(self._find_snapshot(name, snapshot))
            point = Point(kept.disk, kept.info.size_bytes, kept.info.clean)
        else:
            point = await self._point(row)
        with self._parts.pins.held(*(ref.id for ref in point.disk)):
            made = await desk.clone(point, new_name, parent=row.id, workspace=row.workspace)
        return await desk.info(made)

    async def keep(self, name: str, *, new_name: str | None = None) -> VolumeInfo:
        """Let a volume that was made for a fork outlive it, under another name if one is given."""
        desk = self._parts.volumes
        row = desk.shelf.get(name)
        if new_name is not None:
            check_name(new_name, "volume")

        def edit(found: VolumeRow) -> VolumeRow:
            named = found.name if new_name is None else new_name
            other = desk.shelf.find(named, found.workspace)
            if other is not None and other.id != found.id:
                raise Conflict(f"there is a volume {named} already", hint="choose another name")
            return replace(found, bound_to=None, name=named)

        return await desk.info(await desk.shelf.change(row.id, edit))

    async def attach(
        self, sandbox_id: SandboxId, mount: VolumeMount, *, repair: bool = False
    ) -> VolumeHolder:
        """Attach a volume to a running sandbox; one that sleeps is woken."""
        check_path(mount.path)
        task = await self._awake(sandbox_id)
        found: VolumeHolder = await task.with_machine(
            "attach volume", lambda m: volume_attach.attach(m, mount, repair=repair)
        )
        return found

    async def detach(self, sandbox_id: SandboxId, path: str) -> None:
        """Detach the volume at a path (or by its name) from a sandbox."""
        task = await self._awake(sandbox_id)
        await task.with_machine("detach volume", lambda m: volume_attach.detach(m, path))

    async def of_sandbox(self, sandbox_id: SandboxId) -> tuple[VolumeInfo, ...]:
        """Return the volumes that a sandbox has."""
        desk = self._parts.volumes
        return tuple([await desk.info(row) for row, _ in desk.shelf.held_by(sandbox_id)])

    def check_mounts(self, mounts: Sequence[VolumeMount]) -> None:
        """Raise what forbids a new sandbox with these volumes, before anything of it is made."""
        shelf, taken = self._parts.volumes.shelf, list[VolumeHolder]()
        for mount in mounts:
            row = shelf.get(mount.volume)
            check_path(mount.path)
            check_free_path(mount.path, taken, "to be made")
            if any(t.sandbox_id == row.id for t in taken):
                raise InvalidRequest(f"volume {row.name} is wanted twice", hint="attach it once")
            others = [h for h in row.holders if not (mount.read_only and h.read_only)]
            alive = [h for h in others if not self._looks_dead(h.sandbox_id)]
            if alive:
                raise held(row, alive, "read" if mount.read_only else "written")
            if mount.read_only:
                check_readable(row)
            taken.append(
                VolumeHolder(sandbox_id=row.id, path=mount.path, read_only=True, slot=0, serial="")
            )

    # ---- inside ----

    def _looks_dead(self, sandbox_id: str) -> bool:
        return self._parts.state_of(sandbox_id) in (None, S.FAILED, S.STOPPED)

    async def _awake(self, sandbox_id: SandboxId) -> Holder:
        task = await self._task_of(sandbox_id)
        if task.machine.info.state is S.HIBERNATED:
            await self._parts.wake(sandbox_id)
        return task

    async def _point(self, row: VolumeRow) -> Point:
        """Return what a volume is now: asked of its writer's task, or made in its turn."""
        desk = self._parts.volumes
        writer = next((h for h in row.holders if not h.read_only), None)
        if writer is not None:
            with contextlib.suppress(NotFound):
                task = await self._task_of(SandboxId(writer.sandbox_id))
                if task.machine.info.state in WITH_MACHINE:
                    found: Point = await task.with_machine(
                        "volume snapshot", lambda m: volume_attach.point(m, row.id)
                    )
                    return found
        async with desk.shelf.turn(row.id):
            await volume_attach.break_dead(self._parts, row.id, "")
            now = desk.shelf.get(row.id)
            writer = next((h for h in now.holders if not h.read_only), None)
            if writer is not None and self._parts.state_of(writer.sandbox_id) is not S.HIBERNATED:
                raise VolumeHeld(
                    f"volume {row.name} was taken by {writer.sandbox_id} meanwhile",
                    hint="try again",
                )
            return await desk.point(row.id)

    def _find_snapshot(self, name: str, snapshot: str) -> VolumeSnapshotId:
        shelf = self._parts.volumes.shelf
        row = shelf.get(name)
        for found in shelf.snapshots(row.id):
            if snapshot in (found.info.id, found.info.label):
                return found.info.id
        raise NotFound(
            f"volume {row.name} has no snapshot {snapshot}",
            hint=f"list them: torpor volume snapshots {row.name}",
        )

    async def _check_room(self, size_bytes: int) -> None:
        """Raise `InsufficientResources`, with the numbers, unless that much and the reserve are free."""
        root = self._parts.home.root
        need = size_bytes + DISK_RESERVE_BYTES
        free = await asyncio.to_thread(free_bytes, root)
        if free < need:
            await make_room(self._parts, need)
            free = await asyncio.to_thread(free_bytes, root)
        if free < need:
            raise InsufficientResources(
                f"the host has no disk for it: {format_bytes(need)} with the reserve are wanted and "
                f"{format_bytes(free)} are free at {root}",
                hint="free disk space, or ask for less",
                needed_bytes=need,
                free_bytes=free,
            )


def _check_label(label: str | None) -> None:
    if label is not None and not (
        0 < len(label) <= _LABEL_MOST and label.isprintable() and label == label.strip()
    ):
        raise InvalidRequest(
            f"the label {label[:80]!r} cannot be used", hint="use 1 to 128 printable characters"
        )
