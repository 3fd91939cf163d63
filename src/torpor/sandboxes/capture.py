"""Taking a snapshot: quiet the guest, stop the vCPUs, save devices, switch the disk, save changed RAM, go on.

What runs inside the pause is only that; hashing, syncing and the manifest come after it. If anything fails,
the machine goes on, thawed and writing, and nothing of the snapshot is left; only its chain of disk layers may
be one longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from torpor.base.aio import finish
from torpor.base.faults import reach
from torpor.base.ids import new_id
from torpor.base.units import GIB
from torpor.db.sandboxes import MachineLayers
from torpor.errors import GuestFailed, InsufficientResources, InvalidRequest, VmmFailed
from torpor.guest.port import Guest
from torpor.layers.inventories import InventoryRef
from torpor.layers.manifest import LayerRef, Manifest
from torpor.layers.space import full_disk_told
from torpor.layers.store import LayerStore
from torpor.layers.verify import digest
from torpor.model import Consistency, SnapshotId, SnapshotInfo, SnapshotReason
from torpor.model_memory import Watermark
from torpor.model_quiesce import QuiesceReport, QuiesceSpec
from torpor.model_volumes import VolumesMode
from torpor.sandboxes.inventories import inventory_before
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.quiescing import Rest, unasked
from torpor.sandboxes.room import check_capture
from torpor.sandboxes.volume_capture import VolumesCaptured, settle_earlier
from torpor.vmm.base import Vmm

DEAD_MAN_S = 30.0
"""The guest thaws itself after so long; a capture that takes longer is not called consistent."""

_RESUME_S = 30.0
"""For a machine whose VMM was too busy to answer: what it is asked is lost when nobody waits for the answer any more."""

_VOLUMES_S = 300.0
"""For volumes that were taken off to be mounted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What kind of snapshot is wanted."""

    reason: SnapshotReason
    consistency: Consistency = "filesystem"
    label: str | None = None
    metadata: Mapping[str, str] | None = None
    quiesce: QuiesceSpec = field(default_factory=QuiesceSpec)
    """For `application`: how the machine's programs are brought to rest."""
    snapshot_id: SnapshotId | None = None
    """A fresh id that it is to have; None: any."""
    volumes: VolumesMode = "include"
    go_on: bool = True
    """False: leave the machine paused (and frozen) once it was captured; see `let_run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What was got while the machine stood still."""

    pause_ms: float
    devices: Path
    consistency: Consistency
    quiesce: QuiesceReport | None
    watermark: Watermark | None
    """Where the memory of its agent stood; a template has no agent."""


async def take(m: SandboxMachine, wish: Wish, *, paused_before: bool) -> Manifest:
    """Take a snapshot with what becomes of the volumes around it; see `_take`."""
    await settle_earlier(m, paused_before=paused_before)
    volumes = VolumesCaptured(m, wish.volumes)
    with m.parts.pins.held(*volumes.pins):
        try:
            await volumes.begin(paused_before=paused_before)
            manifest = await _take(m, wish, volumes, paused_before=paused_before)
        except BaseException:
            await finish(volumes.end(), within_s=_VOLUMES_S)
            raise
        await finish(volumes.end(), within_s=_VOLUMES_S)
    return manifest


async def _take(
    m: SandboxMachine, wish: Wish, volumes: VolumesCaptured, *, paused_before: bool
) -> Manifest:
    """Take a snapshot of a running machine, or of one that was `paused_before`. The row's state stays as it is.

    Raises:
        InvalidRequest: no such consistency.
        QuiesceFailed: a required hook failed, or did not hold. Nothing was taken, and all is released.
        GuestFailed: the guest could not be quieted, or did not stay so. Nothing was taken.
        InsufficientResources: the disk is full. Nothing was taken.
        VmmFailed: the machine could not be saved. Nothing was taken.
    """
    if wish.consistency not in get_args(Consistency):
        raise InvalidRequest(
            f"consistency is {wish.consistency!r}; 'crash', 'filesystem' or 'application' is wanted",
            hint="leave it out",
        )
    store, vmm = m.parts.layers, m.running_vmm()
    await check_capture(m.parts, vmm, m.info.ram_mib)
    version = await vmm.version()
    inventory = await inventory_before(m, wish.reason, paused=paused_before)
    await _note_switch(m, vmm)  # an earlier one that a full disk kept from being written down
    if wish.reason != "template":  # which has no agent
        await m.parts.memory_moves.follow_quietly(m.info.id)  # else there were nothing to mark
    snapshot_id = wish.snapshot_id or SnapshotId(new_id("snap"))
    ram_id, next_active = new_id("lyr"), new_id("lyr")
    overlay, ram = store.disk_path(next_active), store.ram_path(ram_id)
    before, disk = m.row.layers.shortened(store.merges), store.merges.shortest(m.row.layers.disk)
    with m.parts.pins.held(ram_id, next_active, *before.ram, *disk):
        if not await asyncio.to_thread(_are_there, store, disk, before.ram):
            before, disk = m.row.layers, m.row.layers.disk  # merged layers that nobody needed
        await m.parts.driver.create_overlay(overlay, m.info.disk_gib * GIB)
        await m.save(
            replace(m.row, layers=replace(before, next_active=next_active, taking=snapshot_id))
        )
        reach("snapshot.intent")
        try:
            captured = await _capture(m, wish, overlay, ram, volumes, paused_before=paused_before)
            reach("snapshot.captured")
            try:
                manifest = await asyncio.to_thread(
                    _manifest,
                    m,
                    wish,
                    snapshot_id,
                    disk,
                    (*before.ram, ram_id),
                    captured,
                    inventory.ref,
                    version,
                )
                manifest = await volumes.told(manifest)
                reach("snapshot.durable")
                await finish(
                    _publish(m, manifest, captured.devices, inventory.data), within_s=None
                )  # the disk decides
            finally:
                await asyncio.to_thread(captured.devices.unlink, missing_ok=True)
        except BaseException:
            if m.info.parent_snapshot != snapshot_id:  # cancelled behind that point, it is whole
                ram.unlink(missing_ok=True)
            raise
    reach("snapshot.outcome")
    return manifest


async def _publish(
    m: SandboxMachine, manifest: Manifest, devices: Path, inventory: bytes | None
) -> None:
    """Make the snapshot exist and note it in the row: both, or neither."""
    store, before = m.parts.layers, m.row.layers
    await asyncio.to_thread(store.publish, manifest, devices, inventory)
    ram = tuple(ref.id for ref in manifest.ram)
    layers = replace(before, ram=ram, session=(*before.session, ram[-1]), taking=None)
    try:
        await m.save(replace(m.row, layers=layers).with_info(parent_snapshot=manifest.info.id))
    except BaseException:
        await asyncio.to_thread(store.remove, manifest.info.id)
        raise


async def let_run(m: SandboxMachine, *, paused_before: bool) -> None:
    """After a capture without `go_on` that came to nothing: let the machine run and write again."""
    try:
        stood_still = await m.running_vmm().status() == "paused"
    except VmmFailed:  # it does not say, so it may
        stood_still = True
    await go_on(m, None, paused_before=paused_before)
    if stood_still and not paused_before:
        with contextlib.suppress(GuestFailed, VmmFailed):  # then the dead men in the guest let go
            guest = await m.guest()
            await guest.thaw()
            await guest.quiesce_release(None, "failed")
            await guest.set_clock(m.parts.clock.now())  # it stood still with the machine


def _manifest(
    m: SandboxMachine,
    wish: Wish,
    snapshot_id: SnapshotId,
    disk_below: tuple[str, ...],
    ram: tuple[str, ...],
    captured: Captured,
    inventory: InventoryRef,
    version: str,
) -> Manifest:
    """Make what was captured durable and immutable, and return what says so. Blocks."""
    store, info, host = m.parts.layers, m.info, m.parts.host
    disk = store.needed_disks((*disk_below, m.row.layers.disk[-1]))
    new = {disk[-1], ram[-1]}
    disk_refs = tuple(store.ref(layer, store.disk_path(layer)) for layer in disk)
    ram_refs = tuple(store.ref(layer, store.ram_path(layer)) for layer in ram)
    devices_ref = LayerRef("devices", captured.devices.stat().st_size, digest(captured.devices))
    own = sum(ref.size_bytes for ref in (*disk_refs, *ram_refs) if ref.id in new)
    return Manifest(
        SnapshotInfo(
            id=snapshot_id,
            label=wish.label,
            sandbox_id=None if wish.reason == "template" else info.id,
            parent=info.parent_snapshot,
            reason=wish.reason,
            template=info.template,
            template_digest=info.template_digest,
            created_at=m.parts.clock.now(),
            consistency=captured.consistency,
            vcpus=info.vcpus,
            ram_mib=info.ram_mib,
            disk_gib=info.disk_gib,
            network=info.network,
            driver=host.driver,
            driver_version=version,  # the host may have another by now
            cpu=host.cpu or "",
            accel=host.accel or "",
            machine=host.machine,
            size_bytes=own + devices_ref.size_bytes,
            pause_ms=round(captured.pause_ms, 3),
            metadata=dict(wish.metadata or {}),
            env_names=info.env_names,
            quiesce=captured.quiesce,
            workspace=info.workspace,
            watermark=marked_as(captured.watermark, snapshot_id),
            inventory=inventory.note,
        ),
        disk=disk_refs,
        ram=ram_refs,
        devices=devices_ref,
        epoch=m.row.epoch,
        inventory=inventory,
    )


def _are_there(store: LayerStore, disk: tuple[str, ...], ram: tuple[str, ...]) -> bool:
    paths = [*map(store.disk_path, disk), *map(store.ram_path, ram)]
    return all(path.exists() for path in paths)


def relabelled(
    m: SandboxMachine, manifest: Manifest, wish: Wish, mark: Watermark | None
) -> SnapshotInfo:
    """Return what a second snapshot of the same point is called: a sandbox that sleeps has not moved on.

    Its agent's memory may have, from outside: `mark` says where that stands.

    Raises:
        QuiesceFailed: `application` is wanted, and it did not fall asleep so.
    """
    report = manifest.info.quiesce
    if wish.consistency == "application" and manifest.info.consistency != "application":
        report = unasked(f"sandbox {m.info.id}", wish.quiesce, asleep=True)
    snapshot_id = wish.snapshot_id or SnapshotId(new_id("snap"))
    return replace(
        manifest.info,
        id=snapshot_id,
        label=wish.label,
        parent=manifest.info.id,
        reason=wish.reason,
        created_at=m.parts.clock.now(),
        size_bytes=0,
        pause_ms=0.0,
        metadata=dict(wish.metadata or {}),
        quiesce=report,
        watermark=marked_as(mark, snapshot_id),
    )


def marked_as(mark: Watermark | None, snapshot_id: SnapshotId) -> Watermark | None:
    """Return a mark of memory with the snapshot that it is kept in."""
    return None if mark is None else replace(mark, snapshot=snapshot_id)


async def _capture(
    m: SandboxMachine,
    wish: Wish,
    overlay: Path,
    ram: Path,
    volumes: VolumesCaptured,
    *,
    paused_before: bool,
) -> Captured:
    """Do what has to be done while the machine stands still; return how long it did, and what was got."""
    vmm, store = m.running_vmm(), m.parts.layers
    guest: Guest | None = None if paused_before else await m.guest()
    session = [store.ram_path(layer) for layer in m.row.layers.session]
    devices = m.folder / "devices"
    wanted = wish.quiesce if wish.consistency == "application" else None
    rest = Rest(f"sandbox {m.info.id}", guest, wanted)
    try:
        await rest.begin()
        reach("snapshot.held")
        await _quiet_guest(guest, wish)
        reach("snapshot.quiet")
        if not wish.go_on:
            await rest.take_lease()
        begun = time.monotonic()
        await vmm.pause()
        rest.check_lease()
        reach("snapshot.paused")
        # what the machine told its memory until now is marked, and nothing that it will tell
        marking = m.begin(_mark(m, wish), "memory mark")
        try:
            saved = await vmm.save_devices()
        finally:
            if vmm.snapshots_cut:
                await m.drop_guest()
        await vmm.switch_disk(overlay)
        await volumes.switch(vmm)
        reach("snapshot.switched")
        await vmm.save_ram(ram, session)
        reach("snapshot.ram")
        with full_disk_told(f"the devices of {m.info.id}"):
            await asyncio.to_thread(saved.rename, devices)
        mark = await marking
        if wish.go_on and not paused_before:
            await vmm.resume()
        pause_ms = (time.monotonic() - begun) * 1000
        if guest is not None and wish.go_on:
            guest = rest.guest = await m.guest_after_snapshot(guest)
            await _thaw(m, guest, wish)
            await rest.end()
    except BaseException:
        await finish(go_on(m, guest, paused_before=paused_before), within_s=60.0)
        rest.guest = m.connected or guest
        await finish(rest.abandon(), within_s=150.0)
        raise
    await _note_switch(m, vmm)
    await volumes.note(vmm)
    if guest is not None and wish.go_on:
        with contextlib.suppress(GuestFailed):  # whoever asks it next is told
            await guest.set_clock(m.parts.clock.now())  # it stood still with the machine
    return Captured(
        pause_ms=pause_ms,
        devices=devices,
        consistency=_had(wish, guest, rest.report),
        quiesce=rest.report,
        watermark=mark,
    )


async def _mark(m: SandboxMachine, wish: Wish) -> Watermark | None:
    """Return where its agent's memory stands, within seconds; it never raises."""
    return None if wish.reason == "template" else await m.parts.memory_moves.mark(m.info)


def _had(wish: Wish, guest: Guest | None, report: QuiesceReport | None) -> Consistency:
    """Return the consistency that was had, which may be less than what was wished for."""
    if (
        guest is None
    ):  # what a machine that was paused by hand had not written is in its RAM, as after a crash
        return "crash"
    if wish.consistency == "application" and (report is None or not report.held):
        return "filesystem"
    return wish.consistency


async def _quiet_guest(guest: Guest | None, wish: Wish) -> None:
    if guest is None:
        return
    if wish.consistency != "crash":
        await guest.freeze(dead_man_seconds=DEAD_MAN_S)
    else:
        await guest.sync()


async def _thaw(m: SandboxMachine, guest: Guest, wish: Wish) -> None:
    if wish.consistency != "crash" and not await guest.thaw():
        raise GuestFailed(
            f"sandbox {m.info.id} did not stay frozen while it was captured",
            hint="try again; the host may be too busy",
        )


async def go_on(m: SandboxMachine, guest: Guest | None, *, paused_before: bool) -> None:
    """After a failure: let the machine run and write again, and note which overlay it writes to."""
    vmm = m.running_vmm()
    if not vmm.process.alive():
        return
    if not paused_before:
        try:
            await vmm.resume(timeout_s=_RESUME_S)
        except VmmFailed as exc:  # upkeep asks it again
            m.parts.report(f"resume of {m.info.id}", exc)
            guest = None  # who stands still answers nothing; the dead man in the guest thaws
    if guest is not None:
        with contextlib.suppress(GuestFailed, VmmFailed):
            guest = await m.guest_after_snapshot(guest)
    if guest is not None:
        with contextlib.suppress(GuestFailed):  # then the dead man in the guest thaws
            await guest.thaw()
    # both are in the row; see `switched`
    with contextlib.suppress(InsufficientResources, VmmFailed):
        await _note_switch(m, vmm)
    if guest is not None and not paused_before:
        with contextlib.suppress(GuestFailed):  # whoever asks it next is told
            await guest.set_clock(m.parts.clock.now())  # it stood still with the machine


async def _note_switch(m: SandboxMachine, vmm: Vmm) -> None:
    """Write down the overlay that takes the writes, as the VMM says."""
    layers = await switched(vmm, m.row.layers)
    layers = replace(layers, disk=m.parts.layers.needed_disks(layers.disk))
    if layers != m.row.layers:
        await m.save(replace(m.row, layers=layers))


async def switched(vmm: Vmm, layers: MachineLayers) -> MachineLayers:
    """Return `layers` as they are after a switch that may or may not have happened."""
    if layers.next_active is None:
        return layers
    active = await vmm.active_disk()
    if active == layers.next_active:
        assert layers.active is not None
        return replace(layers, disk=(*layers.disk, layers.active), active=active, next_active=None)
    if active == layers.active:
        return replace(layers, next_active=None)
    raise VmmFailed(
        f"the machine writes to {active}, which is neither {layers.active} nor {layers.next_active}"
    )
