"""Volumes and a running machine: attach, detach, grow and snapshot while it runs, and the end of all of it.

The lease comes first and goes last. It is a row of the volume, so it outlives daemon and machine; a lease whose
machine is gone is broken when another wants the volume (see `break_dead`). Each act is a row that says what is
meant, the act, and a row that says what is so; `settle` finishes or undoes what a dead daemon left in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace

from torpor.base.aio import finish
from torpor.base.faults import reach
from torpor.base.ids import new_id
from torpor.db.volumes import VolumeRow
from torpor.errors import (
    Busy,
    Conflict,
    GuestFailed,
    InvalidRequest,
    NotFound,
    TorporError,
    VmmFailed,
)
from torpor.guest.port import Guest
from torpor.model import SandboxState
from torpor.model_volumes import VolumeHolder, VolumeId, VolumeMount, VolumeUsage
from torpor.sandboxes.lifecycle import WITH_MACHINE, require_running
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.standstill import through_standstills
from torpor.vmm.base import VolumeDisk
from torpor.volumes.desk import Point
from torpor.volumes.lease import (
    check_free_path,
    check_path,
    check_readable,
    free_slot,
    in_state,
    released,
    taken,
)

S = SandboxState
_CAPABILITY = "volumes"
_NOT_ASKED = VolumeUsage(total_bytes=0, used_bytes=0)
_FROZEN_S = 30.0
"""For a switch, which takes milliseconds; after this the guest thaws itself."""


async def attach(m: SandboxMachine, mount: VolumeMount, *, repair: bool = False) -> VolumeHolder:
    """Give a running machine a volume and mount it. After a failure it has none of it, and no lease.

    Raises:
        WrongState: the sandbox is not running.
        NotFound: there is no such volume.
        VolumeHeld: another holds it in a way that forbids this.
        Conflict: the path is taken, or it is to be mounted read-only and its journal is to be replayed first.
        GuestFailed: it cannot be mounted; the hint says what to do.
    """
    require_running(m.info.id, m.info.state)
    return await attach_running(m, mount, repair=repair)


async def attach_running(
    m: SandboxMachine, mount: VolumeMount, *, repair: bool = False
) -> VolumeHolder:
    """Do what `attach` does in a machine that runs, whatever its sandbox is becoming."""
    guest = await m.guest()
    check_guest(m, guest)
    row, holder = await lease(m, mount)
    reach("attach.intent")
    try:
        usage = await plug(m, guest, row, holder, repair=repair)
    except BaseException:
        await finish(_undo(m, row.id), within_s=120.0)
        raise
    await _attached(m, row.id, usage)
    reach("attach.outcome")
    return replace(holder, state="attached")


async def attach_all(m: SandboxMachine, mounts: Sequence[VolumeMount]) -> None:
    """Attach what a sandbox that begins is to have."""
    for mount in mounts:
        await attach_running(m, mount)


def check_guest(m: SandboxMachine, guest: Guest) -> None:
    """Raise `InvalidRequest` when the machine's agent knows nothing of volumes."""
    if _CAPABILITY not in guest.info.capabilities:
        raise InvalidRequest(
            f"sandbox {m.info.id} is of a template that was built before there were volumes",
            hint=f"build it anew (torpor template build {m.info.template}) and create a new sandbox",
        )


async def lease(m: SandboxMachine, mount: VolumeMount) -> tuple[VolumeRow, VolumeHolder]:
    """Take a volume for a sandbox: from here on nobody else can have it in a way that forbids this."""
    desk, parts, me = m.parts.volumes, m.parts, m.info.id
    row = desk.shelf.get(mount.volume)
    if row.workspace != m.info.workspace:
        raise NotFound(
            f"there is no volume {mount.volume} in the workspace {m.info.workspace} of {me}",
            hint="a volume is attached to sandboxes of its own workspace",
            volume=mount.volume,
        )
    mine = desk.shelf.held_by(me)
    if row.held_by(me) is not None:
        raise Conflict(
            f"volume {row.name} is attached to sandbox {me} already",
            hint="detach it first",
            volume=row.name,
        )
    check_free_path(check_path(mount.path), (h for _, h in mine), me)
    holder = VolumeHolder(
        sandbox_id=me,
        path=mount.path,
        read_only=mount.read_only,
        slot=place_for(parts, {h.slot for _, h in mine}, me, read_only=mount.read_only),
        serial=serial_of(row.id),
        state="attaching",
    )
    async with desk.shelf.turn(row.id):
        await break_dead(parts, row.id, me)
        row = await desk.shelf.change(row.id, lambda r: taken(r, holder))
        try:
            if mount.read_only:
                check_readable(row)
                row = await parts.volumes.seal(row.id) if row.layers.written else row
            return await desk.hand_out(row), holder
        except BaseException:
            await finish(_release(parts, row.id, me), within_s=60.0)
            raise


def place_for(
    parts: Parts, taken_slots: Collection[int], sandbox_id: str, *, read_only: bool
) -> int:
    """Return a free place in a sandbox's machine for one more volume. Raises `LimitExceeded`."""
    driver = parts.driver
    slots = driver.read_only_slots if read_only else driver.volume_slots
    return free_slot(taken_slots, slots, sandbox_id, "read" if read_only else "write")


async def break_dead(parts: Parts, volume_id: VolumeId, me: str) -> None:
    """Take a volume from those whose machine is proven gone; one that sleeps holds on."""
    for holder in parts.volumes.shelf.get(volume_id).holders:
        if holder.sandbox_id != me and await parts.machine_is_gone(holder.sandbox_id):
            await _release(parts, volume_id, holder.sandbox_id)


def disk_of(parts: Parts, row: VolumeRow, holder: VolumeHolder) -> VolumeDisk:
    """Return a volume as a disk of its holder's machine."""
    store = parts.layers
    return VolumeDisk(
        slot=holder.slot,
        serial=holder.serial,
        layers=tuple(store.disk_path(layer) for layer in row.layers.disk),
        active=None if holder.read_only else store.disk_path(row.layers.active),
    )


def serial_of(volume_id: str) -> str:
    """Return what a guest knows a volume by."""
    return volume_id.partition("_")[2]


async def plug(
    m: SandboxMachine, guest: Guest, row: VolumeRow, holder: VolumeHolder, *, repair: bool = False
) -> VolumeUsage:
    """Give the machine a volume that it has the lease of, and mount it."""
    await m.running_vmm().attach_volume(disk_of(m.parts, row, holder))
    reach("attach.plugged")
    usage = await through_standstills(
        m,
        guest.mount_volume(
            holder.path,
            slot=holder.slot,
            serial=holder.serial,
            read_only=holder.read_only,
            repair=repair,
        ),
    )
    reach("attach.mounted")
    return usage


async def mount(m: SandboxMachine, row: VolumeRow, holder: VolumeHolder) -> None:
    """Mount a volume that the machine was started with."""
    guest = await m.guest()
    check_guest(m, guest)
    usage = await m.until_end(
        guest.mount_volume(
            holder.path, slot=holder.slot, serial=holder.serial, read_only=holder.read_only
        )
    )
    await _attached(m, row.id, usage)


async def mount_again(m: SandboxMachine) -> None:
    """Mount the volumes of a machine that may have booted by itself; one that cannot be mounted is reported."""
    if m.info.state is not S.RUNNING:
        return
    guest = await m.guest()
    for row, holder in m.parts.volumes.shelf.held_by(m.info.id):
        try:
            if holder.state == "attached":
                await mount(m, row, holder)
        except TorporError as exc:
            m.parts.report(f"volume {row.name} of {m.info.id}", exc)
    m.boot = guest.info.instance


async def detach(m: SandboxMachine, path: str) -> None:
    """Unmount a volume and take it from the machine. After a failure the machine has it as before.

    A sandbox whose machine has ended just lets go of it.

    Raises:
        NotFound: no volume is there.
        Busy: processes use it; the message names them.
    """
    row, holder = find_at(m, path)
    if m.info.state not in WITH_MACHINE and m.info.state is not S.HIBERNATED:
        if not await m.parts.machine_is_gone(m.info.id):
            raise VmmFailed(f"the machine of sandbox {m.info.id} has not ended")
        await release(m.parts, row.id, m.info.id, unbind=True)
        return
    require_running(m.info.id, m.info.state)
    guest = await m.guest()
    await _state(m, row.id, "detaching")
    reach("detach.intent")
    usage = await part(m, guest, row.id, holder)
    reach("detach.unplugged")
    await release(m.parts, row.id, m.info.id, clean=usage, unbind=True)
    reach("detach.outcome")


async def part(
    m: SandboxMachine, guest: Guest, volume_id: VolumeId, holder: VolumeHolder
) -> VolumeUsage | None:
    """Unmount a volume and unplug it; the lease stays. After a failure it is attached as before."""
    try:
        usage = await through_standstills(m, guest.unmount_volume(holder.path, slot=holder.slot))
    except Conflict as exc:
        await _state(m, volume_id, "attached")
        raise Busy(
            f"the volume at {holder.path} of sandbox {m.info.id} cannot be let go: {exc.message}",
            hint=exc.hint,
            path=holder.path,
            holders=str(exc.facts.get("holders", "")),
        ) from exc
    except TorporError:
        await _state(m, volume_id, "attached")
        raise
    reach("detach.unmounted")
    await m.running_vmm().detach_volume(holder.slot)
    return usage


def find_at(m: SandboxMachine, path_or_name: str) -> tuple[VolumeRow, VolumeHolder]:
    """Return a sandbox's volume by its path, name or id. Raises `NotFound`."""
    for row, holder in m.parts.volumes.shelf.held_by(m.info.id):
        if path_or_name in (holder.path, row.name, row.id):
            return row, holder
    raise NotFound(
        f"sandbox {m.info.id} has no volume at {path_or_name}",
        hint="see what it has: torpor volume ls",
        sandbox_id=m.info.id,
    )


async def release(
    parts: Parts,
    volume_id: VolumeId,
    sandbox_id: str,
    *,
    clean: VolumeUsage | None = None,
    unbind: bool = False,
) -> None:
    """Let a sandbox hold a volume no more; its machine has no file of it open. `clean`: as it was when unmounted."""
    async with parts.volumes.shelf.turn(volume_id):
        await _release(parts, volume_id, sandbox_id, clean=clean, unbind=unbind)


async def _release(
    parts: Parts,
    volume_id: VolumeId,
    sandbox_id: str,
    *,
    clean: VolumeUsage | None = None,
    unbind: bool = False,
) -> None:
    now = parts.clock.now()

    def edit(row: VolumeRow) -> VolumeRow:
        mine = row.held_by(sandbox_id)
        row = released(row, sandbox_id)
        if clean is not None:
            if clean.total_bytes:
                row = replace(row, used_bytes=clean.used_bytes, used_at=now)
            if mine is not None and not mine.read_only:
                row = replace(row, layers=replace(row.layers, clean=True))
        return replace(row, bound_to=None) if unbind else row

    shelf = parts.volumes.shelf
    holder = shelf.get(volume_id).held_by(sandbox_id)
    if holder is not None and not holder.read_only:
        await resolve_switch(parts, volume_id, None)
        await parts.volumes.reclaim(shelf.get(volume_id))
    await shelf.change(volume_id, edit)


async def release_all(parts: Parts, sandbox_id: str, *, clean: bool = False) -> None:
    """Let go of all that a sandbox has; its machine is gone. What was made for it alone is deleted.

    Args:
        clean: what it had mounted is as if it had unmounted it.
    """
    for row, holder in parts.volumes.shelf.held_by(sandbox_id):
        as_unmounted = _NOT_ASKED if clean and holder.state == "attached" else None
        await release(parts, row.id, sandbox_id, clean=as_unmounted)
    shelf = parts.volumes.shelf
    for row in shelf.bound_to(sandbox_id):
        async with shelf.turn(row.id):
            if shelf.get(row.id).holders:  # another took it meanwhile
                await shelf.change(row.id, lambda r: replace(r, bound_to=None))
                continue
            with contextlib.suppress(Conflict):
                await shelf.remove(row.id, lambda r: _check_bound(r, sandbox_id))


def _check_bound(row: VolumeRow, sandbox_id: str) -> None:
    if row.bound_to != sandbox_id:
        raise Conflict(f"volume {row.name} is to stay")


async def resolve_switch(parts: Parts, volume_id: VolumeId, newest: str | None) -> None:
    """Write down which overlay a volume's writes go to, after a switch that may or may not have happened.

    Args:
        newest: what the machine says; None when it is gone. Then both overlays are the volume's: the newer one, if
            nothing was switched to it, is empty.
    """
    store = parts.layers

    def edit(row: VolumeRow) -> VolumeRow:
        layers = row.layers
        if layers.next_active is None:
            return row
        is_switched = newest == layers.next_active or (
            newest is None and store.disk_path(layers.next_active).exists()
        )
        if not is_switched:
            return replace(row, layers=replace(layers, next_active=None))
        disk = (*layers.disk, layers.active)
        return replace(
            row, layers=replace(layers, disk=disk, active=layers.next_active, next_active=None)
        )

    await parts.volumes.shelf.change(volume_id, edit)


async def noted(m: SandboxMachine, row: VolumeRow, holder: VolumeHolder) -> VolumeRow:
    """Write down an earlier switch that a full disk or a daemon's death left unsaid; return the volume as it is."""
    if row.layers.next_active is None:
        return row
    newest = (await m.running_vmm().volumes()).get(holder.slot)  # none: it was taken off behind it
    await resolve_switch(m.parts, row.id, newest)
    return m.parts.volumes.shelf.get(row.id)


async def grow(m: SandboxMachine, volume_id: VolumeId, size_bytes: int) -> None:
    """Make a volume and its file system larger while the machine uses it.

    The size is written down first: an overlay that is made meanwhile is never smaller than what it lies over. What
    fails behind that is finished by asking again, or when the volume is next mounted.
    """
    require_running(m.info.id, m.info.state)
    shelf = m.parts.volumes.shelf
    row = shelf.get(volume_id)
    holder = row.held_by(m.info.id)
    if holder is None or holder.read_only:
        raise Conflict(f"sandbox {m.info.id} does not write to volume {row.name} any more")
    guest = await m.guest()
    await noted(m, row, holder)
    await shelf.change(volume_id, lambda r: m.parts.volumes.grown(r, size_bytes))
    reach("grow.intent")
    await m.running_vmm().resize_volume(holder.slot, size_bytes)
    reach("grow.resized")
    usage = await through_standstills(
        m,
        guest.grow_volume(
            holder.path, slot=holder.slot, serial=holder.serial, size_bytes=size_bytes
        ),
    )
    await _used(m.parts, volume_id, usage)
    reach("grow.outcome")


async def point(m: SandboxMachine, volume_id: VolumeId) -> Point:
    """Return what a volume that a machine writes to is now; the machine goes on with another overlay.

    Its file systems are frozen for that moment; those of a paused machine cannot be, so the point is as after a
    power cut.
    """
    desk, vmm = m.parts.volumes, m.running_vmm()
    row = desk.shelf.get(volume_id)
    holder = row.held_by(m.info.id)
    if holder is None or holder.read_only:
        raise Conflict(f"sandbox {m.info.id} does not write to volume {row.name} any more")
    guest = await m.guest() if m.info.state is S.RUNNING else None
    row = await noted(m, row, holder)
    overlay = new_id("lyr")
    with m.parts.pins.held(overlay, *desk.short(row.layers.disk)):
        path = await desk.new_overlay(overlay, row.size_bytes)
        await desk.shelf.change(
            volume_id, lambda r: replace(r, layers=replace(r.layers, next_active=overlay))
        )
        reach("volume.switching")
        held = True
        try:
            if guest is not None:
                await guest.freeze(dead_man_seconds=_FROZEN_S)
            await vmm.switch_volume(holder.slot, path)
            reach("volume.switched")
        finally:
            if guest is not None:
                held = await _thawed(guest)
            await finish(_note(m, volume_id, holder.slot), within_s=60.0)
        row = desk.shelf.get(volume_id)
        refs = await desk.refs(desk.short(row.layers.disk))
    return Point(refs, row.size_bytes, clean=guest is not None and held)


async def _thawed(guest: Guest) -> bool:
    try:
        return await guest.thaw()
    except GuestFailed:  # then the dead man in the guest thaws
        return False


async def _note(m: SandboxMachine, volume_id: VolumeId, slot: int) -> None:
    vmm = m.running_vmm()
    newest = (await vmm.volumes()).get(slot) if await vmm.status() != "ended" else None
    row = m.parts.volumes.shelf.find(volume_id)
    if row is not None and row.held_by(m.info.id):  # else its machine ended, and another has it
        await resolve_switch(m.parts, volume_id, newest)


async def settle(m: SandboxMachine) -> None:
    """Finish or undo what a dead daemon left between a sandbox that runs and its volumes."""
    if m.vmm is None:
        return
    for row, holder in m.parts.volumes.shelf.held_by(m.info.id):
        await noted(m, row, holder)
    for row, holder in m.parts.volumes.shelf.held_by(m.info.id):
        try:
            await settle_one(m, row, holder)
        except TorporError as exc:
            m.parts.report(f"volume {row.name} of {m.info.id}", exc)


async def settle_one(m: SandboxMachine, row: VolumeRow, holder: VolumeHolder) -> None:
    """Finish or undo what was begun with one volume of a sandbox that runs."""
    match holder.state:
        case "attaching":
            await _undo(m, row.id)
        case "detaching":
            with contextlib.suppress(Busy):
                usage = await part(m, await m.guest(), row.id, holder)
                await release(m.parts, row.id, m.info.id, clean=usage, unbind=True)
        case "parted":
            await put_back(m, row.id)
        case "attached":
            pass


async def put_back(m: SandboxMachine, volume_id: VolumeId) -> None:
    """Attach again what was taken off for a moment, as it is now."""
    row = m.parts.volumes.shelf.get(volume_id)
    holder = row.held_by(m.info.id)
    assert holder is not None
    guest = await m.guest()
    row = await noted(m, row, holder)
    if holder.slot not in await m.running_vmm().volumes():
        await m.running_vmm().attach_volume(disk_of(m.parts, row, holder))
    usage = await m.until_end(
        guest.mount_volume(
            holder.path, slot=holder.slot, serial=holder.serial, read_only=holder.read_only
        )
    )
    await _attached(m, volume_id, usage)


async def _undo(m: SandboxMachine, volume_id: VolumeId) -> None:
    """Undo an attach. A machine that does not give the files back keeps the lease."""
    holder = m.parts.volumes.shelf.get(volume_id).held_by(m.info.id)
    vmm = m.vmm
    if holder is None:
        return
    usage = None
    if vmm is not None and await vmm.status() != "ended":
        with contextlib.suppress(TorporError):
            usage = await (await m.guest()).unmount_volume(holder.path, slot=holder.slot)
        try:
            await vmm.detach_volume(holder.slot)
        except VmmFailed as exc:
            if await vmm.status() != "ended":
                m.parts.report(f"volume {volume_id} of {m.info.id}", exc)
                return
    await release(m.parts, volume_id, m.info.id, clean=usage)


async def _attached(m: SandboxMachine, volume_id: VolumeId, usage: VolumeUsage) -> None:
    now = m.parts.clock.now()
    await m.parts.volumes.shelf.change(
        volume_id,
        lambda r: replace(
            in_state(r, m.info.id, "attached"), used_bytes=usage.used_bytes, used_at=now
        ),
    )


async def _used(parts: Parts, volume_id: VolumeId, usage: VolumeUsage) -> None:
    now = parts.clock.now()
    await parts.volumes.shelf.change(
        volume_id, lambda r: replace(r, used_bytes=usage.used_bytes, used_at=now)
    )


async def _state(m: SandboxMachine, volume_id: VolumeId, state: str) -> None:
    await m.parts.volumes.shelf.change(volume_id, lambda r: in_state(r, m.info.id, state))  # type: ignore[arg-type]
