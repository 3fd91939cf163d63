"""Volumes of a running Firecracker, which has no hot-plug: places that are always there, led to a file and back.

A drive whose file changed tells the guest its new size. A place for what is only read opens its files for reading
alone, and Firecracker refuses what would be written to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from torpor.base.aio import finish
from torpor.errors import InsufficientResources, VmmFailed
from torpor.layers.seal import seal
from torpor.vmm.base import VolumeDisk
from torpor.vmm.firecracker import disks, drives
from torpor.vmm.firecracker.api import Api, Refused
from torpor.vmm.firecracker.config import (
    READ_ONLY_SLOTS,
    SLOTS,
    WRITABLE_SLOTS,
    disk_limit,
    volume_name,
)
from torpor.vmm.handing import give_to_vmm
from torpor.vmm.limits import RateLimits

_PATCH_S = 30.0


async def put(folder: Path, disk: VolumeDisk) -> None:
    """Let the place of a volume lead to the file that the machine is to open.

    Raises:
        VmmFailed: there is no such place, or it is none for this volume.
        HostNotReady, InsufficientResources: as `disks.fill`.
    """
    inner = folder / "vm"
    _check_place(disk)
    if disk.active is not None:
        await asyncio.to_thread(give_to_vmm, folder, disk.active)
        await disks.fill(disk.active, disk.layers, durable=True)
        await asyncio.to_thread(drives.lead, inner, volume_name(disk.slot), disk.active)
        return
    newest = disk.layers[-1]
    if newest.suffix != ".raw":  # another driver's: this machine reads a copy
        newest = _copy(folder, disk.slot, newest)
        await asyncio.to_thread(newest.unlink, missing_ok=True)
        await asyncio.to_thread(disks.make_empty, newest, 0)
        await disks.fill(newest, disk.layers)
        await asyncio.to_thread(seal, newest)
    await asyncio.to_thread(drives.lead, inner, volume_name(disk.slot), newest)


def clear(folder: Path) -> None:
    """Let no place lead anywhere, before a machine starts. Blocks."""
    for slot in SLOTS:
        drives.lead_nowhere(folder / "vm", slot)
    forget_copies(folder)


class FirecrackerVolumes:
    """The places for volumes of one machine."""

    def __init__(self, api: Api, folder: Path, pid: int, limits: RateLimits) -> None:
        self._api = api
        self._folder = folder
        self._inner = folder / "vm"
        self._pid = pid
        self._limits = limits

    async def attach(self, disk: VolumeDisk) -> None:
        """Put a volume into its place. On `VmmFailed` the place is as empty as it was."""
        if disk.slot in await self.newest():
            raise VmmFailed(f"the machine has a volume in place {disk.slot} already")
        try:
            await put(self._folder, disk)
            # the place may have been saved with another limit
            await self._patch(disk.slot, **disk_limit(self._limits))
        except BaseException:
            await finish(self._emptied(disk.slot), within_s=60.0)
            raise

    async def _emptied(self, slot: int) -> None:
        with contextlib.suppress(VmmFailed, InsufficientResources):
            await self.detach(slot)

    async def detach(self, slot: int) -> None:
        """Take a volume out; no file of it is open afterwards."""
        if slot not in SLOTS:
            return
        await asyncio.to_thread(drives.lead_nowhere, self._inner, slot)
        await self._patch(slot)
        await asyncio.to_thread(forget_copies, self._folder, slot)
        left = (await self.newest()).get(slot)
        if left is not None:
            raise VmmFailed(
                f"Firecracker (process {self._pid}) keeps {left} of place {slot} open",
                pid=self._pid,
            )

    async def switch(self, slot: int, overlay: Path) -> None:
        """Send all further writes to `overlay`, which becomes a clone; vCPUs that run stand still meanwhile."""
        before = (await self._opened()).get(volume_name(slot))
        if before is None or slot not in WRITABLE_SLOTS:
            raise VmmFailed(f"the machine writes to no volume in place {slot}")
        await asyncio.to_thread(give_to_vmm, self._folder, overlay)
        async with self._standstill():
            try:
                with before.held() as disk:
                    await disks.fill(overlay, (disk,), durable=True)
                await self._led(slot, overlay)
                await self._patch(slot)
            except BaseException as exc:
                leading = asyncio.to_thread(
                    drives.lead_back, self._inner, volume_name(slot), before.path
                )
                await finish(leading, within_s=30.0)
                if isinstance(exc, Refused):  # else it may have been heard, late
                    await finish(asyncio.to_thread(disks.empty_again, overlay), within_s=30.0)
                raise

    async def resize(self, slot: int, size_bytes: int) -> None:
        """Make a volume's disk larger, and let the guest know."""
        disk = (await self._opened()).get(volume_name(slot))
        if disk is None or slot not in WRITABLE_SLOTS:
            raise VmmFailed(f"the machine writes to no volume in place {slot}")

        def grow() -> None:
            with disk.held() as file:
                disks.grow(file, size_bytes, disk.path)

        await asyncio.to_thread(grow)
        await self._patch(slot)

    async def newest(self) -> Mapping[int, str]:
        """Return the places that are taken, and the name of the newest file of each volume."""
        files = await self._opened()
        found = {slot: files.get(volume_name(slot)) for slot in SLOTS}
        return {
            slot: disk.path.stem.rpartition(".")[2]
            for slot, disk in found.items()
            if disk is not None
        }

    async def _opened(self) -> Mapping[str, drives.Opened]:
        return await asyncio.to_thread(drives.opened, self._inner, self._pid)

    async def _led(self, slot: int, target: Path) -> None:
        await asyncio.to_thread(drives.lead, self._inner, volume_name(slot), target)

    async def _patch(self, slot: int, **more: object) -> None:
        """Have a place's file opened anew, with more changes of the drive."""
        name = volume_name(slot)
        body = {"drive_id": name, "path_on_host": name, **more}
        await self._api.call("PATCH", f"/drives/{name}", body, timeout_s=_PATCH_S)
        await asyncio.to_thread(drives.let_go, self._inner)

    @contextlib.asynccontextmanager
    async def _standstill(self) -> AsyncIterator[None]:
        """Enter with vCPUs that stand still, and no write of theirs under way; leave with them as they were."""
        answer = await self._api.call("GET", "/", timeout_s=5.0)
        if not (isinstance(answer, dict) and answer.get("state") == "Running"):
            yield
            return
        try:
            await self._api.call("PATCH", "/vm", {"state": "Paused"}, timeout_s=5.0)
            # it serves what the guest had asked for before it serves this
            await self._api.call("GET", "/", timeout_s=5.0)
            yield
        finally:
            await finish(self._resumed(), within_s=10.0)

    async def _resumed(self) -> None:
        await self._api.call("PATCH", "/vm", {"state": "Resumed"}, timeout_s=5.0)


def _check_place(disk: VolumeDisk) -> None:
    places = READ_ONLY_SLOTS if disk.active is None else WRITABLE_SLOTS
    if disk.slot not in places:
        what = "only read" if disk.active is None else "written"
        raise VmmFailed(
            f"place {disk.slot} of a Firecracker machine is none for a volume that is {what}"
        )


def _copy(folder: Path, slot: int, newest: Path) -> Path:
    """Return where a copy lies: not in `vm/`, whose owner could put anything in its place."""
    return folder / f"read{slot}.{newest.stem}.raw"


def forget_copies(folder: Path, slot: int | str = "[0-9]*") -> None:
    """Remove what a machine, that has none of it open, read instead of another driver's layers. Blocks."""
    for path in folder.glob(f"read{slot}.*.raw"):
        path.unlink(missing_ok=True)
