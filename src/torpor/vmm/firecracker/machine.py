"""One Firecracker process, driven over its control socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torpor.base.aio import finish
from torpor.base.fsio import open_plain
from torpor.base.proc import ProcessId
from torpor.base.units import MIB
from torpor.errors import InsufficientResources, VmmFailed
from torpor.layers.ram import PAGE, RamLayer, RamLayerWriter
from torpor.layers.space import full_disk_told
from torpor.model_usage import DeviceFigures
from torpor.vmm import console
from torpor.vmm.base import VmmStatus, VolumeDisk
from torpor.vmm.firecracker import balloon, config, disks, drives, room
from torpor.vmm.firecracker.api import Api, Refused
from torpor.vmm.firecracker.clock import kept_still
from torpor.vmm.firecracker.figures import Figures
from torpor.vmm.firecracker.memory import add_changed
from torpor.vmm.firecracker.volumes import FirecrackerVolumes
from torpor.vmm.handing import give_to_vmm, take_over
from torpor.vmm.limits import RateLimits
from torpor.vmm.pages import changed_pages

_DEVICES_MOST = 64 * MIB
"""State of CPUs and devices: 20 KB was seen."""
_SAVE_S = 60.0
_SAVE_S_PER_GIB = 30.0
"""A first snapshot has all memory that the machine touched; slow disks take their time."""
_STATUS_S = 5.0
_UNHEARD_S = 1.0
"""For what is asked of a process that answers nothing."""
_ONE_SLOT_BYTES = 3 << 30
_DIFFS_OF_SLOTS = (1, 14, 1)
"""From this version on a diff of memory that does not lie in one piece is right (Firecracker's #5705)."""
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}")
_CONSOLE_LOOK_S = 1.0
_CONSOLE_END_BYTES = 4096
_POWERED_DOWN = (
    "reboot: Power off not available",
    "reboot: Power down",
    "reboot: System halted",
)
"""The kernel's last words. Firecracker has no power to switch off, and would wait for ever."""
_FULL = "No space left on device"


class FirecrackerMachine:
    """A running Firecracker. Closing this object ends nothing; the machine goes on without us."""

    def __init__(
        self,
        process: ProcessId,
        folder: Path,
        image: Path | None,
        ram_bytes: int,
        limits: RateLimits,
        version: str | None = None,
    ) -> None:
        self._process = process
        self._folder = folder
        self._inner = folder / "vm"
        self._image = image
        self._ram_bytes = ram_bytes
        self._version = version
        self._figures = Figures(folder)
        self.api = Api(self._inner / config.API_SOCKET, process.pid)
        self._volumes = FirecrackerVolumes(self.api, folder, process.pid, limits)

    @property
    def process(self) -> ProcessId:
        """Firecracker's process."""
        return self._process

    @property
    def folder(self) -> Path:
        """The machine's folder."""
        return self._folder

    @property
    def agent_socket(self) -> Path:
        """The socket that leads to the guest's vsock."""
        return self._inner / config.AGENT_SOCKET

    @property
    def agent_port(self) -> int:
        """Where the agent listens."""
        return config.AGENT_PORT

    @property
    def snapshots_cut(self) -> bool:
        """A snapshot resets the guest's vsock."""
        return True

    async def version(self) -> str:
        """Return the version of Firecracker that runs; one that an earlier Torpor started is asked."""
        if self._version is None:
            answer = await self.api.call("GET", "/", timeout_s=5.0)
            said = str(answer.get("vmm_version", "")) if isinstance(answer, dict) else ""
            self._version = said if _VERSION.fullmatch(said) else "unknown"
        return self._version

    async def status(self) -> VmmStatus:
        """Return `running`, `paused` or `ended`. Raises `VmmFailed` when it lives but does not answer."""
        return await self._status(_STATUS_S)

    async def until_answering(self) -> None:
        """Return when it has done, if it lives, what a daemon that died asked of it: a snapshot at most.

        Raises:
            VmmFailed: it lives but does not answer.
        """
        await self._status(self._save_s)

    async def _status(self, timeout_s: float) -> VmmStatus:
        if not self._process.alive():
            return "ended"
        try:
            answer = await self.api.call("GET", "/", timeout_s=timeout_s)
        except VmmFailed:
            if not self._process.alive():
                return "ended"
            raise
        is_running = isinstance(answer, dict) and answer.get("state") == "Running"
        return "running" if is_running else "paused"

    async def pause(self, *, timeout_s: float = 5.0) -> None:
        """Stop the vCPUs. Idempotent. On `VmmFailed` the machine runs on or has ended, or upkeep lets it run on."""
        try:
            await self.api.call("PATCH", "/vm", {"state": "Paused"}, timeout_s=timeout_s)
        except Refused:
            raise
        except BaseException:  # it may hear of it later; and then of this
            await finish(self._unheard_resume(), within_s=5.0)
            raise

    async def _unheard_resume(self) -> None:
        with contextlib.suppress(VmmFailed):
            await self._resume(_UNHEARD_S, in_turn=False)

    async def resume(self, *, timeout_s: float = 5.0) -> None:
        """Let the vCPUs run. Idempotent."""
        await self._resume(timeout_s, in_turn=True)

    async def _resume(self, timeout_s: float, *, in_turn: bool) -> None:
        body = {"state": "Resumed"}
        await self.api.call("PATCH", "/vm", body, timeout_s=timeout_s, in_turn=in_turn)

    async def save_devices(self) -> Path:
        """Write the devices' state of a paused machine to a file in its folder and return it.

        Its memory is written in the same call, for `save_ram`; see `memory`.
        """
        written, path = self._inner / config.DEVICES, self._folder / "devices"
        try:
            await asyncio.to_thread(written.unlink, missing_ok=True)
            since_ns = time.time_ns()
            await self.api.call(
                "PUT",
                "/snapshot/create",
                {
                    "snapshot_type": await self._snapshot_type(),
                    "snapshot_path": config.DEVICES,
                    "mem_file_path": config.MEMORY,
                },
                timeout_s=self._save_s,
            )
            with full_disk_told(str(path)):
                await asyncio.to_thread(_take_devices, written, path, since_ns)
        except (VmmFailed, OSError) as exc:
            await asyncio.to_thread(written.unlink, missing_ok=True)
            if isinstance(exc, VmmFailed) and _FULL not in exc.message:
                raise
            if isinstance(exc, VmmFailed):
                raise InsufficientResources(
                    f"no disk space for the memory and devices of {self._folder}",
                    hint="free disk space",
                    path=path,
                ) from exc
            raise VmmFailed(f"Firecracker's {written} cannot be used: {exc}") from exc
        return path

    @property
    def _save_s(self) -> float:
        """How long a snapshot may take, in which nothing else is answered."""
        return _SAVE_S + _SAVE_S_PER_GIB * self._ram_bytes / 2**30

    async def _snapshot_type(self) -> str:
        """Return the cheaper kind of snapshot that writes this machine's memory right; the file holds the same then."""
        if self._ram_bytes <= _ONE_SLOT_BYTES:
            return "Diff"
        found = tuple(int(part) for part in re.findall(r"\d+", await self.version())[:3])
        return "Diff" if found >= _DIFFS_OF_SLOTS else "Full"

    async def capture_bytes(self, changed: int | None = None) -> int:
        """Return at most how many bytes a snapshot would write now: to Firecracker's file, to the layer, and to a disk."""
        is_whole = True
        with contextlib.suppress(VmmFailed):
            is_whole = await self._snapshot_type() == "Full"

        def count() -> int:
            layer = self._changed_bytes() if changed is None else changed
            file = self._ram_bytes if is_whole else layer
            file -= min(file, room.allocated(self._inner / config.MEMORY))  # it is written over
            disk = 0
            with contextlib.suppress(VmmFailed):
                disk = room.copy_bytes((self._active().path,), self._folder)
            return file + layer + disk

        return await asyncio.to_thread(count)

    def _changed_bytes(self) -> int:
        if self._image is not None:
            with contextlib.suppress(OSError, VmmFailed):
                return PAGE * len(changed_pages(self._process.pid, self._image, self._ram_bytes))
        return self._ram_bytes

    async def save_ram(self, path: Path, previous: Sequence[Path] = ()) -> RamLayer:
        """Write the pages that changed until `save_devices` since the machine's start, or `previous`, to `path`."""
        with full_disk_told(f"the RAM layer {path}"):
            try:
                return await asyncio.to_thread(self._save_ram, path, previous)
            except OSError as exc:
                if exc.errno is None or isinstance(exc, PermissionError):
                    raise VmmFailed(
                        f"the memory of Firecracker (process {self._process.pid}) cannot be read: {exc}",
                        hint="the daemon must be root or the user that Firecracker runs as",
                        pid=self._process.pid,
                    ) from exc
                raise

    def _save_ram(self, path: Path, previous: Sequence[Path]) -> RamLayer:
        changed = None
        if self._image is not None:
            changed = changed_pages(self._process.pid, self._image, self._ram_bytes)
        with RamLayerWriter(path, self._ram_bytes, previous) as writer:
            add_changed(self._inner / config.MEMORY, self._ram_bytes, changed, writer)
            return writer.finish(sync=False)

    async def switch_disk(self, overlay: Path) -> None:
        """Send all further writes to `overlay`, which becomes a clone of the disk that was written until now."""
        before = await asyncio.to_thread(self._active)
        await asyncio.to_thread(give_to_vmm, self._folder, overlay)
        with before.held() as disk:
            await disks.fill(overlay, (disk,))
        try:
            await asyncio.to_thread(drives.lead, self._inner, config.DISK, overlay)
            await self.api.call(
                "PATCH",
                f"/drives/{config.DISK_ID}",
                {"drive_id": config.DISK_ID, "path_on_host": config.DISK},
                timeout_s=30.0,
            )
        except BaseException:
            leading = asyncio.to_thread(drives.lead_back, self._inner, config.DISK, before.path)
            await finish(leading, within_s=30.0)
            raise
        await asyncio.to_thread(drives.let_go, self._inner)

    async def active_disk(self) -> str:
        """Return the name of the overlay that takes the machine's writes."""
        return (await asyncio.to_thread(self._active)).path.stem

    def _active(self) -> drives.Opened:
        """Return the disk that Firecracker has open, as the kernel says: its link may lead there only soon."""
        found = drives.opened(self._inner, self._process.pid).get(config.DISK)
        if found is None:
            raise VmmFailed(
                f"Firecracker (process {self._process.pid}) has no root disk", pid=self._process.pid
            )
        return found

    async def attach_volume(self, disk: VolumeDisk) -> None:
        """Put a volume into its place."""
        await self._volumes.attach(disk)

    async def detach_volume(self, slot: int) -> None:
        """Take a volume out; no file of it is open afterwards."""
        await self._volumes.detach(slot)

    async def switch_volume(self, slot: int, overlay: Path) -> None:
        """Send all further writes to a volume to `overlay`."""
        await self._volumes.switch(slot, overlay)

    async def resize_volume(self, slot: int, size_bytes: int) -> None:
        """Make a volume's disk larger."""
        await self._volumes.resize(slot, size_bytes)

    async def volumes(self) -> Mapping[int, str]:
        """Return each volume's slot and the name of its newest file."""
        return await self._volumes.newest()

    async def give_back_memory(self) -> None:
        """Blow the balloon up in a machine that was booted until the guest has no more to give, and let it out."""
        if self._image is None:
            await balloon.squeeze(self.api, self._ram_bytes)

    async def figures(self) -> DeviceFigures:
        """Return what went through its devices since Firecracker was started."""
        await self.api.call("PUT", "/actions", {"action_type": "FlushMetrics"})
        return await asyncio.to_thread(self._figures.read)

    async def kill(self) -> None:
        """End Firecracker at once; returns when it is gone."""
        await self._process.kill(within_s=15.0)

    async def wait(self) -> None:
        """Return when Firecracker has ended; once the guest has powered off, it is ended."""
        ended = asyncio.get_running_loop().create_task(self._process.wait())
        try:
            seen = 0
            while not ended.done():
                await asyncio.wait({ended}, timeout=_CONSOLE_LOOK_S)
                seen = await asyncio.to_thread(self._look, seen)
                if seen < 0:
                    await self._process.kill(within_s=15.0)
            await ended
        finally:
            ended.cancel()

    def _look(self, seen: int) -> int:
        self._figures.tidy()
        return self._console_size(seen)

    def _console_size(self, seen: int) -> int:
        """Return the size of the console's log; -1 when it is another than `seen` and this machine powered off."""
        try:
            with open_plain(self._inner / config.CONSOLE, os.O_RDONLY) as file:
                size = os.fstat(file.fileno()).st_size
                if size == seen:
                    return size
                file.seek(max(0, size - _CONSOLE_END_BYTES))
                end = console.of_the_last(file.read(_CONSOLE_END_BYTES).decode("utf-8", "replace"))
                return -1 if any(words in end for words in _POWERED_DOWN) else size
        except OSError:  # not there, or no log
            return seen

    async def aclose(self) -> None:
        """Do nothing: each call has a connection of its own."""


def _take_devices(written: Path, path: Path, since_ns: int) -> None:
    """Make what Firecracker wrote from a time of day on ours, at `path`. Blocks."""
    take_over(written, path, limit_bytes=_DEVICES_MOST)
    path.write_bytes(kept_still(path.read_bytes(), since_ns, time.time_ns()))
