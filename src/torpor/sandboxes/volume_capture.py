"""Volumes while a machine is captured: they are switched in the same pause as its disk, or taken off before it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.base.aio import finish
from torpor.base.faults import reach
from torpor.base.ids import new_id
from torpor.db.volumes import VolumeRow
from torpor.errors import (
    Conflict,
    GuestFailed,
    InvalidRequest,
    TorporError,
    VmmFailed,
    WrongState,
)
from torpor.layers.manifest import Manifest, VolumePoint
from torpor.model_volumes import VolumeHolder, VolumeId, VolumesMode
from torpor.sandboxes import volume_attach
from torpor.sandboxes.machine import SandboxMachine
from torpor.vmm.base import Vmm
from torpor.volumes.lease import in_state

_SYNC_S = 30.0
_MODES = ("include", "detach", "keep-current")


@dataclass(frozen=True, slots=True)
class _Switch:
    volume_id: VolumeId
    slot: int
    overlay: Path


class VolumesCaptured:
    """What one capture does with the machine's volumes. Made by `begin`, ended by `end`, however it goes."""

    def __init__(self, m: SandboxMachine, mode: VolumesMode) -> None:
        self._m = m
        self._mode = mode
        self._held = m.parts.volumes.shelf.held_by(m.info.id)
        self._switches: list[_Switch] = []
        self._parted: list[VolumeId] = []
        self.overlays = {
            row.id: new_id("lyr")
            for row, holder in self._held
            if mode == "include" and not holder.read_only
        }
        """The overlays that are being made, by volume; the caller pins them."""

    @property
    def pins(self) -> frozenset[str]:
        """The layers to pin until the snapshot names them."""
        desk = self._m.parts.volumes
        chains = (desk.short(row.layers.disk) for row, _ in self._held)
        return frozenset({*self.overlays.values(), *(layer for chain in chains for layer in chain)})

    async def begin(self, *, paused_before: bool) -> None:
        """Do what comes before the guest is quieted. On failure the volumes are as they were.

        Raises:
            WrongState: a paused machine cannot unmount.
            Busy: a volume that is to be taken off is in use; the message names by whom.
        """
        if self._mode == "include":
            await self._make_overlays()
        elif self._held:
            if paused_before:
                raise WrongState(
                    f"sandbox {self._m.info.id} is paused; it cannot unmount its volumes",
                    hint="resume it first, or take the snapshot with volumes=include",
                )
            try:
                await self._part()
            except BaseException:
                await finish(self.put_back(), within_s=120.0)
                raise

    async def _make_overlays(self) -> None:
        desk = self._m.parts.volumes
        for row, holder in self._held:
            if holder.read_only:
                continue
            await volume_attach.noted(self._m, row, holder)
            overlay = self.overlays[row.id]
            path = await desk.new_overlay(overlay, row.size_bytes)
            await desk.shelf.change(row.id, lambda r, o=overlay: _next(r, o))  # type: ignore[misc]
            self._switches.append(_Switch(row.id, holder.slot, path))
        if self._switches:
            reach("volumes.overlay")

    async def _part(self) -> None:
        m, shelf = self._m, self._m.parts.volumes.shelf
        guest = await m.guest()
        for row, holder in self._held:
            self._parted.append(row.id)
            await shelf.change(row.id, lambda r: in_state(r, m.info.id, "parted"))
            reach("volumes.parting")
            await volume_attach.part(m, guest, row.id, holder)
        if self._parted:
            reach("volumes.parted")

    async def switch(self, vmm: Vmm) -> None:
        """Do what belongs into the pause: the same instant as the disk's."""
        for item in self._switches:
            await vmm.switch_volume(item.slot, item.overlay)
        if self._switches:
            reach("volumes.switched")

    async def note(self, vmm: Vmm) -> None:
        """Write down what was switched, as the machine says."""
        if not self._switches or await vmm.status() == "ended":
            return
        found = await vmm.volumes()
        for item in self._switches:
            await volume_attach.resolve_switch(self._m.parts, item.volume_id, found.get(item.slot))

    async def told(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the volumes' points in it."""
        if not self._held:
            return manifest
        points = await self.points(clean=manifest.info.consistency != "crash")
        told = {point.path: point.name for point in points}
        info = replace(manifest.info, volumes=told, volumes_mode=self._mode)
        return replace(manifest, info=info, volumes=points)

    async def points(self, *, clean: bool) -> tuple[VolumePoint, ...]:
        """Return what the snapshot says of the volumes; `clean`: the guest stayed frozen. Makes layers durable."""
        desk = self._m.parts.volumes
        found = []
        for row, holder in self._held:
            now, refs = desk.shelf.get(row.id), ()
            if self._mode == "include":
                refs = await desk.refs(desk.short(now.layers.disk))  # type: ignore[assignment]
            found.append(
                VolumePoint(
                    volume_id=row.id,
                    name=row.name,
                    path=holder.path,
                    read_only=holder.read_only,
                    slot=holder.slot,
                    serial=holder.serial,
                    mode=self._mode,
                    size_bytes=now.size_bytes,
                    clean=clean or holder.read_only,
                    disk=refs,
                )
            )
        return tuple(found)

    async def end(self) -> None:
        """After the capture, whatever became of it: note what was switched, put back what was taken off.

        Raises:
            TorporError: a volume could not be put back; its holder is still `parted`. The others are back.
        """
        m = self._m
        if m.vmm is not None:
            await self.note(m.vmm)
        await self.put_back()

    async def put_back(self) -> None:
        """Attach again what was taken off; the machine runs."""
        m, failure = self._m, None
        while self._parted:
            volume_id = self._parted.pop()
            if m.vmm is None or await m.vmm.status() == "ended":
                return
            try:
                await volume_attach.put_back(m, volume_id)
            except TorporError as exc:
                m.parts.report(f"volume {volume_id} of {m.info.id}", exc)
                failure = exc
        if failure is not None:
            raise failure


async def settle_earlier(m: SandboxMachine, *, paused_before: bool) -> None:
    """Finish or undo what failed half-way before: a snapshot says that the machine has a volume, or has it not.

    Raises:
        WrongState: that is to be done, and a paused machine cannot.
        TorporError: it cannot be done now either.
    """
    for row, holder in m.parts.volumes.shelf.held_by(m.info.id):
        if holder.state == "attached":
            continue
        if paused_before:
            raise WrongState(
                f"sandbox {m.info.id} is paused, and volume {row.name} is {holder.state}",
                hint="resume it first",
            )
        await volume_attach.settle_one(m, row, holder)


async def asleep(m: SandboxMachine, manifest: Manifest) -> None:
    """Note that a machine which sleeps writes to its volumes no more: what they are, the snapshot has."""
    clean = {point.volume_id: point.clean for point in manifest.volumes}
    for row, holder in m.parts.volumes.shelf.held_by(m.info.id):
        if not holder.read_only:
            is_clean = clean.get(row.id, False)
            await m.parts.volumes.shelf.change(
                row.id,
                lambda r, c=is_clean: replace(r, layers=replace(r.layers, written=False, clean=c)),  # type: ignore[misc]
            )


async def sync_volumes(m: SandboxMachine, *, within_s: float = _SYNC_S) -> None:
    """Before a machine is ended by a rollback: have what it has not written yet written, if it answers."""
    held = m.parts.volumes.shelf.held_by(m.info.id)
    if m.vmm is None or all(holder.read_only for _, holder in held):
        return
    with contextlib.suppress(TorporError, TimeoutError):
        async with asyncio.timeout(within_s):
            if await m.vmm.status() == "running":
                await (await m.guest()).sync()


async def still_volumes(m: SandboxMachine, *, within_s: float) -> bool:
    """Before a machine is deleted: have all that it writes to frozen, and stop it.

    Returns:
        Whether its volumes are now as if unmounted. If not, what it had not written yet is written if it answers.
    """
    held = m.parts.volumes.shelf.held_by(m.info.id)
    if m.vmm is None or all(holder.read_only for _, holder in held):
        return False
    with contextlib.suppress(TorporError, TimeoutError):
        async with asyncio.timeout(within_s):
            if await m.vmm.status() != "running":
                return False
            guest = await m.guest()
            try:
                await guest.freeze(dead_man_seconds=2 * within_s)
            except (GuestFailed, Conflict):
                await guest.sync()
                return False
            await m.vmm.pause()  # long before the guest would thaw by itself
            return (
                guest.info.instance == m.boot
            )  # else it booted meanwhile and has not mounted them
    return False


def check_mode(mode: str | None) -> VolumesMode | None:
    """Return the mode. Raises `InvalidRequest` when there is no such one."""
    if mode is not None and mode not in _MODES:
        raise InvalidRequest(f"volumes is {mode!r}; one of {', '.join(_MODES)} is wanted")
    return mode  # type: ignore[return-value]


def names(held: list[tuple[VolumeRow, VolumeHolder]]) -> dict[str, str]:
    """Return volumes' names by path."""
    return {holder.path: row.name for row, holder in held}


def _next(row: VolumeRow, overlay: str) -> VolumeRow:
    if row.layers.next_active is not None:
        raise VmmFailed(f"volume {row.name} is being switched already")
    return replace(row, layers=replace(row.layers, next_active=overlay))
