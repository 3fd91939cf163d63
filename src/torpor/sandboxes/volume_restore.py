"""Volumes of a machine that comes back: woken, rolled back, or begun from a snapshot.

A snapshot that was taken with `include` has its volumes' devices in RAM, so they must be there when it is loaded,
with exactly the content of that instant. Whose files these are depends on who comes back:

    wake                      the volume itself, with a new overlay over that point
    rollback                  the volume itself, put back; what was in it is kept as a snapshot of the volume
    restore, fork             a clone of the volume
    what was read-only        the volume itself if it still is that, else a clone; for all but wake, where it is
    `detach`, `keep-current`  an overlay to throw away: the guest unmounts, and the device is taken out again

So RAM and volume never disagree, and a volume never gets a second writer.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Literal

from torpor.base.faults import reach
from torpor.base.ids import new_id
from torpor.db.volumes import VolumeRow
from torpor.errors import Conflict, GuestFailed, InvalidRequest, NotFound, VmmFailed, VolumeHeld
from torpor.layers.manifest import Manifest, VolumePoint
from torpor.model import SandboxInfo, SandboxState
from torpor.model_volumes import VolumeHolder, VolumeId, VolumeMount, VolumesMode
from torpor.sandboxes import volume_attach
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.volume_attach import disk_of, serial_of
from torpor.vmm.base import Vmm, VolumeDisk
from torpor.volumes.desk import Point
from torpor.volumes.lease import held, taken

Way = Literal["asleep", "itself", "clone", "throw-away"]
_NAME_MOST = 50


@dataclass(slots=True)
class Plan:
    """What becomes of a snapshot's volumes when a machine comes back from it."""

    m: SandboxMachine
    in_ram: list[tuple[VolumePoint, Way]] = field(default_factory=list)
    attach: list[VolumeMount] = field(default_factory=list)
    """What is attached when the machine runs."""
    counts: bool = True
    """Whether a clone is refused when a quota is full: behind a rollback's point it cannot be."""
    _mount_all: bool = False
    _pins: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def points(self, *, in_ram: bool) -> tuple[VolumePoint, ...]:
        """Return the points whose layers the machine is given; without `in_ram` it boots."""
        return tuple(p for p, way in self.in_ram if in_ram or way != "throw-away")

    async def start(self, manifest: Manifest) -> Vmm:
        """Start the machine with its volumes, paused; see `SandboxMachine.start_restored`."""
        try:
            self.m.volumes = await self.ready()
            return await self.m.start_restored(manifest)
        finally:
            self._pins.close()  # what the machine has opened by now stays, whatever is collected

    async def ready_to_boot(self) -> tuple[VolumeDisk, ...]:
        """Do what `ready` does for a machine whose memory begins anew: it has nothing to take off, and mounts."""
        self.in_ram = self._placed()
        self._mount_all = True
        return await self.ready()

    def check_places(self) -> None:
        """Raise `LimitExceeded` unless a machine whose memory begins anew has a place for each volume."""
        self._placed()

    def _placed(self) -> list[tuple[VolumePoint, Way]]:
        taken: set[int] = set()
        found: list[tuple[VolumePoint, Way]] = []
        for point, way in self.in_ram:
            if way != "throw-away":  # another driver's machine may have had other places
                slot = volume_attach.place_for(
                    self.m.parts, taken, self.m.info.id, read_only=point.read_only
                )
                taken.add(slot)
                found.append((replace(point, slot=slot), way))
        return found

    async def ready(self) -> tuple[VolumeDisk, ...]:
        """Make the files of the devices that the RAM knows, and take the leases; the old machine is gone.

        What the sandbox had and the snapshot did not is let go of.
        """
        m = self.m
        own = {p.volume_id for p, way in self.in_ram if way in ("asleep", "itself")}
        for row, holder in m.parts.volumes.shelf.held_by(m.info.id):
            if row.id not in own:
                await volume_attach.release(m.parts, row.id, m.info.id)
                await _drop_view(m.parts, row, holder)
        disks = []
        for point, way in self.in_ram:
            match way:
                case "asleep" | "itself":
                    disks.append(await _itself(m, point, keep=way == "itself"))
                case "clone":
                    disks.append(await _cloned(m, point, counts=self.counts))
                case "throw-away":
                    disks.append(await self._thrown_away(point))
        return tuple(disks)

    async def _thrown_away(self, point: VolumePoint) -> VolumeDisk:
        desk, overlay = self.m.parts.volumes, new_id("lyr")
        disk = [ref.id for ref in point.disk]
        self._pins.enter_context(self.m.parts.pins.held(overlay, *disk))
        active = await desk.new_overlay(overlay, point.size_bytes)
        layers = tuple(self.m.parts.layers.disk_path(layer) for layer in disk)
        return VolumeDisk(
            slot=point.slot,
            serial=point.serial,
            layers=layers,
            active=None if point.read_only else active,
        )

    async def settle(self) -> None:
        """When the machine runs: take off what was to be thrown away, and attach what it is to have.

        Raises:
            Busy: processes in the machine use a volume that it is not to have; the message names them.
            TorporError: a volume could not be attached.
        """
        m = self.m
        for point, way in self.in_ram:
            if way == "throw-away":
                try:
                    guest = await m.guest()
                    await m.until_end(guest.unmount_volume(point.path, slot=point.slot))
                except GuestFailed as exc:
                    raise GuestFailed(
                        f"volume {point.name} cannot be taken off: {exc.message}", hint=exc.hint
                    ) from exc
                await m.running_vmm().detach_volume(point.slot)
        for row, holder in m.parts.volumes.shelf.held_by(m.info.id) if self._mount_all else ():
            await volume_attach.mount(m, row, holder)
        for mount in self.attach:
            await volume_attach.attach_running(m, mount)
        if self.in_ram or self.attach:
            reach("volumes.settled")


def plan_wake(m: SandboxMachine, manifest: Manifest) -> Plan:
    """Return the plan of a sandbox that goes on where it slept. Raises `VmmFailed` if a lease is not there."""
    plan = Plan(m)
    for point in manifest.volumes:
        if point.mode != "include":
            continue
        row = m.parts.volumes.shelf.find(point.volume_id)
        if row is None or row.held_by(m.info.id) is None:
            raise VmmFailed(
                f"sandbox {m.info.id} slept with volume {point.name} and does not hold it any more",
                hint=f"roll it back with volumes=detach: torpor rollback {m.info.id} {manifest.info.id}",
            )
        plan.in_ram.append((point, "asleep"))
    return plan


async def plan_return(
    m: SandboxMachine, manifest: Manifest, mode: VolumesMode | None, *, is_rollback: bool
) -> Plan:
    """Return the plan of a rollback, or of a sandbox that begins from a snapshot; nothing is changed.

    Args:
        m: the sandbox.
        manifest: where it comes back to.
        mode: None: as the snapshot was taken.
        is_rollback: the sandbox has been there before, so that the volumes themselves may be put back.

    Raises:
        InvalidRequest: the snapshot has no point of a volume that is to be included.
        VolumeHeld: another has a volume that is to be put back or to be attached.
        LimitExceeded: a quota has no room for the clones that a rollback needs.
    """
    check_points(manifest, mode)
    plan, mine = Plan(m), is_rollback and manifest.info.sandbox_id == m.info.id
    plan.counts = not is_rollback and not m.info.is_clone_of_drill
    for point in manifest.volumes:
        had = point.mode == "include"
        want = mode or point.mode
        if had:
            writes_again = mine and not point.read_only  # one that reads may read a clone as well
            way: Way = (
                "throw-away" if want != "include" else ("itself" if writes_again else "clone")
            )
            plan.in_ram.append((point, way))
            if way == "itself":
                await _check_mine(m.parts, m.info.id, point, to_write=True)
        if want == "keep-current":
            if mine or mode is not None:
                await _check_mine(m.parts, m.info.id, point, to_write=not point.read_only)
                plan.attach.append(_mount(point))
            elif await _is_free(m.parts, m.info.id, point):
                plan.attach.append(_mount(point))
    if is_rollback and m.info.state is not SandboxState.RESTORING:  # else it goes on
        clones = (point for point, way in plan.in_ram if way == "clone")
        fresh = [
            p.size_bytes for p in clones if not _is_read_as_it_is(m.parts, p, m.info.workspace)
        ]
        m.parts.volumes.check_clones(fresh)
    return plan


def clones_of(
    parts: Parts, manifest: Manifest, workspace: str, mode: VolumesMode | None, *, is_cold: bool
) -> list[int]:
    """Return the sizes of the clones that a sandbox which begins from a snapshot gets."""
    return [
        point.size_bytes
        for point in manifest.volumes
        if point.mode == "include" == (mode or point.mode)
        and (is_cold or not _is_read_as_it_is(parts, point, workspace))
    ]


def _is_read_as_it_is(parts: Parts, point: VolumePoint, workspace: str) -> bool:
    """Return whether a machine reads a volume itself, not a clone: it is as it was, and nobody writes to it."""
    row = parts.volumes.shelf.find(point.volume_id)
    return (
        point.read_only
        and row is not None
        and row.workspace == workspace
        and all(holder.read_only for holder in row.holders)
        and parts.volumes.same_point(row, [ref.id for ref in point.disk])
    )


def check_points(manifest: Manifest, mode: VolumesMode | None) -> None:
    """Raise `InvalidRequest` when volumes are to be included of which the snapshot has no point."""
    for point in manifest.volumes:
        if mode == "include" and point.mode != "include":
            raise InvalidRequest(
                f"snapshot {manifest.info.id} has no point of volume {point.name}: it was taken with volumes={point.mode}",
                hint="leave volumes out, or choose detach or keep-current",
            )


async def check_free(
    parts: Parts, manifest: Manifest, sandbox_id: str, mode: VolumesMode | None
) -> None:
    """Raise what `plan_return` would of a new sandbox that is to have volumes as they are now; nothing is made."""
    if mode == "keep-current":
        for point in manifest.volumes:
            await _check_mine(parts, sandbox_id, point, to_write=not point.read_only)


async def cold_mounts(
    parts: Parts, manifest: Manifest, info: SandboxInfo, mode: VolumesMode | None
) -> list[VolumeMount]:
    """Return what is attached to a sandbox that is started cold from a snapshot: clones of its volumes' points."""
    check_points(manifest, mode)
    found = []
    for point in manifest.volumes:
        if (mode or point.mode) == "include":
            counts = not info.is_clone_of_drill
            made = await _clone(parts, point, info.id, (), info.workspace, counts=counts)
            found.append(VolumeMount(volume=made.id, path=point.path, read_only=point.read_only))
        elif (mode or point.mode) == "keep-current" and (
            mode is not None or await _is_free(parts, info.id, point)
        ):
            found.append(_mount(point))
    return found


def _mount(point: VolumePoint) -> VolumeMount:
    return VolumeMount(volume=point.volume_id, path=point.path, read_only=point.read_only)


async def _check_mine(parts: Parts, sandbox_id: str, point: VolumePoint, *, to_write: bool) -> None:
    """Raise unless the sandbox has the volume, or can have it."""
    shelf = parts.volumes.shelf
    row = shelf.find(point.volume_id)
    if row is None:
        raise NotFound(
            f"volume {point.name} of the snapshot is gone",
            hint="leave it out: volumes=detach",
            volume=point.name,
        )
    async with shelf.turn(row.id):
        await volume_attach.break_dead(parts, row.id, sandbox_id)
    row = shelf.get(row.id)
    others = [
        h for h in row.holders if h.sandbox_id != sandbox_id and (to_write or not h.read_only)
    ]
    if others:
        raise held(row, others, "put back")


async def _is_free(parts: Parts, sandbox_id: str, point: VolumePoint) -> bool:
    try:
        await _check_mine(parts, sandbox_id, point, to_write=not point.read_only)
    except VolumeHeld:  # by the sandbox that the snapshot is of, as a rule
        parts.report(
            f"volume {point.name}", VmmFailed(f"{sandbox_id} begins without it: another has it")
        )
        return False
    return True


async def _itself(m: SandboxMachine, point: VolumePoint, *, keep: bool) -> VolumeDisk:
    """Put the volume back to the point; keep what was in it, unless a wake that failed wrote it."""
    desk, disk = m.parts.volumes, [ref.id for ref in point.disk]
    volume_id = VolumeId(point.volume_id)
    holder = _holder(m, point)
    async with desk.shelf.turn(volume_id):
        taken(desk.shelf.get(volume_id), holder)  # or nothing of it is touched: another has it
        await volume_attach.resolve_switch(m.parts, volume_id, None)
        row = desk.shelf.get(volume_id)
        if not point.read_only:
            if keep and not desk.same_point(row, disk):
                await desk.keep(volume_id)
                reach("volumes.kept")
            await desk.stand_on(volume_id, disk, point.size_bytes, clean=point.clean)
        row = await desk.shelf.change(volume_id, lambda r: taken(r, holder))
        row = await desk.hand_out(row)
    reach("volumes.back")
    if (
        point.read_only
    ):  # a point that was read is never changed: the volume may have moved on meanwhile
        layers = tuple(m.parts.layers.disk_path(ref.id) for ref in point.disk)
        return replace(disk_of(m.parts, row, holder), layers=layers, active=None)
    return disk_of(m.parts, row, holder)


async def _drop_view(parts: Parts, row: VolumeRow, holder: VolumeHolder) -> None:
    """Delete a clone that a sandbox which goes back read from, and nobody ever wrote to, unless something needs it."""
    came_along = row.bound_to == holder.sandbox_id and holder.serial != serial_of(row.id)
    if not (came_along and holder.read_only):
        return
    for manifest in parts.layers.snapshots():
        if any(p.volume_id == row.id and p.mode != "detach" for p in manifest.volumes):
            return
    shelf = parts.volumes.shelf

    def check(now: VolumeRow) -> None:
        if now.bound_to != holder.sandbox_id or now.holders or shelf.snapshots(now.id):
            raise Conflict(f"volume {now.name} is to stay")

    async with shelf.turn(row.id):
        with contextlib.suppress(Conflict):
            await shelf.remove(row.id, check)


async def _cloned(m: SandboxMachine, point: VolumePoint, *, counts: bool) -> VolumeDisk:
    """Give the machine a clone of the point, which goes with it; a view of the volume, if it was read-only."""
    desk, disk = m.parts.volumes, [ref.id for ref in point.disk]
    holder = _holder(m, point)
    row = desk.shelf.find(point.volume_id)
    if point.read_only and row is not None and row.workspace == m.info.workspace:
        with contextlib.suppress(VolumeHeld):
            async with desk.shelf.turn(row.id):
                now = desk.shelf.get(row.id)
                if desk.same_point(now, disk):
                    row = await desk.shelf.change(row.id, lambda r: taken(r, holder))
                    return disk_of(m.parts, await desk.hand_out(row), holder)
    made = await _clone(m.parts, point, m.info.id, (holder,), m.info.workspace, counts=counts)
    reach("volumes.cloned")
    return disk_of(m.parts, await desk.hand_out(made), holder)


async def _clone(
    parts: Parts,
    point: VolumePoint,
    sandbox_id: str,
    holders: tuple[VolumeHolder, ...],
    workspace: str,
    *,
    counts: bool,
) -> VolumeRow:
    desk = parts.volumes
    name = desk.shelf.free_name(f"{point.name[:_NAME_MOST]}-{sandbox_id[4:10]}", workspace)
    with parts.pins.held(*(ref.id for ref in point.disk)):
        return await desk.clone(
            Point(point.disk, point.size_bytes, point.clean),
            name,
            parent=point.volume_id,
            workspace=workspace,
            bound_to=sandbox_id,
            holders=holders,
            counts=counts,
        )


def _holder(m: SandboxMachine, point: VolumePoint) -> VolumeHolder:
    return VolumeHolder(
        sandbox_id=m.info.id,
        path=point.path,
        read_only=point.read_only,
        slot=point.slot,
        serial=point.serial,
    )
