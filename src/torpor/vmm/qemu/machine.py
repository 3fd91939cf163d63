"""One QEMU process, driven over QMP."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from qemu.qmp import QMPClient, QMPError, Runstate

from torpor.base.aio import finish
from torpor.base.fsio import free_bytes, socket_name
from torpor.base.proc import ProcessId
from torpor.base.units import MIB
from torpor.errors import InsufficientResources, VmmFailed
from torpor.layers.ram import PAGE, RamLayer, RamLayerWriter
from torpor.layers.space import full_disk_told
from torpor.model_usage import DeviceFigures
from torpor.vmm.base import VmmStatus, VolumeDisk
from torpor.vmm.handing import give_to_vmm, take_over
from torpor.vmm.limits import RateLimits
from torpor.vmm.pages import capture, changed_pages
from torpor.vmm.qemu import command, physical
from torpor.vmm.qemu.figures import figures_of
from torpor.vmm.qemu.volumes import QemuVolumes

_UNHEARD_S = 1.0
"""For what is asked of a process that answers nothing: it is in its socket then."""
_DEVICES_ROOM = 4 * MIB
"""The devices of a machine take 0.2 MB; with less than this free, a failure to save them is a full disk."""

_DEVICES_MOST = 256 << 20
"""State of CPUs and devices: 0.2 MB was seen."""


class QemuMachine:
    """A running QEMU. Closing this object ends nothing; the machine goes on without us."""

    def __init__(
        self,
        process: ProcessId,
        folder: Path,
        ram: Path,
        ram_bytes: int,
        limits: RateLimits,
        version: str | None,
        qmp: QMPClient,
    ) -> None:
        self._process = process
        self._folder = folder
        self._ram = ram
        self._ram_bytes = ram_bytes
        self._limits = limits
        self._version = version
        self._qmp = qmp
        self._turn = asyncio.Lock()
        self._volumes = QemuVolumes(self)

    @classmethod
    async def attach(
        cls,
        process: ProcessId,
        folder: Path,
        ram: Path,
        ram_bytes: int,
        limits: RateLimits,
        version: str | None = None,
        *,
        timeout_s: float,
    ) -> QemuMachine:
        """Connect to the control socket in `folder` of a QEMU whose memory of `ram_bytes` maps the file `ram`.

        `limits` hold for the disks that it gets from now on. Without its `version` it is asked, when that is wanted.

        Raises:
            VmmFailed: it does not answer within `timeout_s` seconds, or the process has ended.
        """
        qmp = await _connect(folder, timeout_s)
        return cls(process, folder, ram, ram_bytes, limits, version, qmp)

    @property
    def process(self) -> ProcessId:
        """QEMU's process."""
        return self._process

    @property
    def agent_socket(self) -> Path:
        """The host end of the guest channel."""
        return agent_socket(self._folder)

    @property
    def agent_port(self) -> None:
        """The socket is the channel itself."""
        return

    @property
    def snapshots_cut(self) -> bool:
        """The channel is a port that a snapshot does not touch."""
        return False

    async def version(self) -> str:
        """Return the version of QEMU that runs; one that an earlier Torpor started is asked."""
        if self._version is None:
            self._version = _version_in(await self._execute("query-version", timeout_s=5.0))
        return self._version

    async def status(self) -> VmmStatus:
        """Return `running`, `paused` or `ended`. Raises `VmmFailed` when QEMU lives but does not answer."""
        if not self._process.alive():
            return "ended"
        try:
            answer = await self._execute("query-status", timeout_s=5.0)
        except VmmFailed:
            if not self._process.alive():
                return "ended"
            raise
        return "running" if isinstance(answer, dict) and answer.get("running") else "paused"

    async def pause(self, *, timeout_s: float = 5.0) -> None:
        """Stop the vCPUs. Idempotent. On `VmmFailed` the machine runs on or has ended."""
        try:
            await self._execute("stop", timeout_s=timeout_s)
        except BaseException:  # it may hear of it later; and then of this
            await finish(self._unheard_resume(), within_s=5.0)
            raise

    async def _unheard_resume(self) -> None:
        with contextlib.suppress(VmmFailed):
            await self._ask("cont", {}, _UNHEARD_S, in_turn=False)

    async def resume(self, *, timeout_s: float = 5.0) -> None:
        """Let the vCPUs run. Idempotent."""
        await self._execute("cont", timeout_s=timeout_s)

    async def save_devices(self) -> Path:
        """Write the devices' state of a paused machine to a file in its folder and return it."""
        written, path = self._folder / "vm" / "devices", self._folder / "devices"
        try:
            await asyncio.to_thread(written.unlink, missing_ok=True)
            await self._execute(
                "xen-save-devices-state", timeout_s=30.0, filename=str(written), live=False
            )
            await asyncio.to_thread(take_over, written, path, limit_bytes=_DEVICES_MOST)
        except (VmmFailed, OSError) as exc:
            await asyncio.to_thread(written.unlink, missing_ok=True)
            # QEMU says only that it could not write
            is_full = isinstance(exc, OSError) and exc.errno == errno.ENOSPC
            if is_full or await asyncio.to_thread(free_bytes, path.parent) < _DEVICES_ROOM:
                raise InsufficientResources(
                    f"no disk space for {path}", hint="free disk space", path=path
                ) from exc
            if isinstance(exc, VmmFailed):
                raise
            raise VmmFailed(f"QEMU's {written} cannot be used: {exc}") from exc
        return path

    async def capture_bytes(self, changed: int | None = None) -> int:
        """Return at most how many bytes a snapshot would write now."""
        if changed is not None:
            return changed

        def count() -> int:
            try:
                pages = changed_pages(self._process.pid, self._ram, self._ram_bytes)
                return len(pages) * PAGE
            except (OSError, VmmFailed):
                return self._ram_bytes

        return await asyncio.to_thread(count)

    async def save_ram(self, path: Path, previous: Sequence[Path] = ()) -> RamLayer:
        """Write the pages that changed since the machine's start, or since `previous`, to `path`."""
        with full_disk_told(f"the RAM layer {path}"):
            try:
                return await asyncio.to_thread(self._save_ram, path, previous)
            except PermissionError:
                return await self._save_ram_through_qemu(path, previous)

    def _save_ram(self, path: Path, previous: Sequence[Path]) -> RamLayer:
        with RamLayerWriter(path, self._ram_bytes, previous) as writer:
            capture(self._process.pid, self._ram, self._ram_bytes, writer)
            return writer.finish(sync=False)

    async def _save_ram_through_qemu(self, path: Path, previous: Sequence[Path]) -> RamLayer:
        """Do what `_save_ram` does where the host does not let us read QEMU's memory; slower."""
        try:
            changed = await asyncio.to_thread(
                changed_pages, self._process.pid, self._ram, self._ram_bytes
            )
        except PermissionError as exc:
            raise VmmFailed(
                f"the memory of QEMU (process {self._process.pid}) cannot be read: {exc}",
                hint="the daemon must be root or the user that QEMU runs as",
                pid=self._process.pid,
            ) from exc
        size, work = self._ram_bytes, self._folder / "vm" / "memory"
        with await asyncio.to_thread(RamLayerWriter, path, size, previous) as writer:
            await physical.capture(self._save_physical, work, changed, size, writer)
            return await asyncio.to_thread(writer.finish, sync=False)

    async def _save_physical(self, address: int, size: int, path: Path) -> None:
        await self._execute("pmemsave", timeout_s=60.0, val=address, size=size, filename=str(path))

    async def switch_disk(self, overlay: Path) -> None:
        """Send all further writes to `overlay`."""
        await asyncio.to_thread(give_to_vmm, self._folder, overlay)
        top = await self.active_disk()
        await self._execute("blockdev-add", timeout_s=10.0, **command.overlay_node(overlay))
        node = command.node_name(overlay)
        try:
            await self._execute("blockdev-snapshot", timeout_s=30.0, node=top, overlay=node)
        except VmmFailed:
            with contextlib.suppress(VmmFailed):
                await self._execute("blockdev-del", timeout_s=10.0, **{"node-name": node})
            raise

    async def active_disk(self) -> str:
        """Return the name of the overlay that takes the machine's writes."""
        devices = await self._execute("query-block", timeout_s=10.0)
        for device in devices if isinstance(devices, list) else []:
            match device:
                case {"qdev": str(path), "inserted": {"node-name": str(name)}} if (
                    command.DISK_ID in path.split("/")
                ):
                    return name
        raise VmmFailed(
            f"QEMU (process {self._process.pid}) has no root disk", pid=self._process.pid
        )

    async def limit_disks(self, slots: Iterable[int]) -> None:
        """Hold the root disk, and each volume in these places, to the limit of disks. Raises `VmmFailed`."""
        for device in (command.DISK_DEVICE, *map(command.volume_device, slots)):
            await self._limit(device)

    async def _limit(self, device: str) -> None:
        """Hold a disk that has no limit yet to the one that disks have, if any."""
        if self._limits.disk_bytes_per_s is None:
            return
        rates = dict.fromkeys(("bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
        await self._execute(
            "block_set_io_throttle",
            timeout_s=10.0,
            id=device,
            bps=self._limits.disk_bytes_per_s,
            **rates,
        )

    async def attach_volume(self, disk: VolumeDisk) -> None:
        """Plug a volume in."""
        if disk.active is not None:
            await asyncio.to_thread(give_to_vmm, self._folder, disk.active)
        await self._volumes.attach(disk)
        try:
            await self._limit(command.volume_device(disk.slot))
        except BaseException:
            await finish(self._volumes.detach(disk.slot), within_s=60.0)
            raise

    async def detach_volume(self, slot: int) -> None:
        """Take a volume out; no file of it is open afterwards."""
        await self._volumes.detach(slot)

    async def switch_volume(self, slot: int, overlay: Path) -> None:
        """Send all further writes to a volume to `overlay`."""
        await asyncio.to_thread(give_to_vmm, self._folder, overlay)
        await self._volumes.switch(slot, overlay)

    async def resize_volume(self, slot: int, size_bytes: int) -> None:
        """Make a volume's disk larger."""
        await self._volumes.resize(slot, size_bytes)

    async def volumes(self) -> Mapping[int, str]:
        """Return each volume's slot and the name of its newest file."""
        return await self._volumes.newest()

    async def give_back_memory(self) -> None:
        """Do nothing: the guest reports its free pages by itself."""

    async def figures(self) -> DeviceFigures:
        """Return what went through its disks since QEMU was started; it counts nothing of a network."""
        answer = await self._execute("query-blockstats", timeout_s=10.0)
        return figures_of(answer)

    async def kill(self) -> None:
        """End QEMU at once; returns when it is gone."""
        await self._process.kill(within_s=15.0)
        await self.aclose()

    async def wait(self) -> None:
        """Return when QEMU has ended."""
        await self._process.wait()

    async def load(self, device_state: Path, *, timeout_s: float = 60.0) -> None:
        """Give a machine that was started with `-incoming defer` the saved state; it is paused afterwards.

        Raises:
            VmmFailed: the state does not fit this QEMU or CPU; QEMU has ended.
        """
        await self._execute(
            "migrate-set-capabilities",
            timeout_s=10.0,
            capabilities=[{"capability": "events", "state": True}],
        )
        try:
            async with asyncio.timeout(timeout_s):
                with self._qmp.listener(("MIGRATION",)) as events:
                    await self._execute(
                        "migrate-incoming", timeout_s=10.0, uri=f"file:{device_state}"
                    )
                    async for event in events:
                        match event.get("data"):
                            case {"status": "completed"}:
                                return
                            case {"status": "failed"}:
                                break
        except TimeoutError as exc:
            raise VmmFailed(f"QEMU did not load {device_state} within {timeout_s:g} s") from exc
        raise VmmFailed(
            f"QEMU cannot load {device_state}",
            hint="it was saved by another version of QEMU or on another CPU",
        )

    async def aclose(self) -> None:
        """Let go of the control socket."""
        if self._qmp.runstate is not Runstate.IDLE:
            with contextlib.suppress(QMPError, OSError, EOFError, TimeoutError):
                await finish(self._qmp.disconnect(), within_s=5.0)

    async def execute(self, name: str, *, timeout_s: float, **arguments: Any) -> object:
        """Run one QMP command. Raises `VmmFailed`."""
        return await self._execute(name, timeout_s=timeout_s, **arguments)

    def events(self, *names: str) -> AbstractContextManager[Any]:
        """Enter with QEMU's events of these names."""
        return self._qmp.listener(names)

    async def _execute(self, name: str, *, timeout_s: float, **arguments: Any) -> object:
        """Run one QMP command; a control connection that was cut is made anew once."""
        return await self._ask(name, arguments, timeout_s, in_turn=True)

    async def _ask(
        self, name: str, arguments: dict[str, Any], timeout_s: float, *, in_turn: bool
    ) -> object:
        """Run one QMP command; not `in_turn` it is sent at once, over the connection that there is."""
        turn = self._turn if in_turn else contextlib.nullcontext()
        try:
            async with asyncio.timeout(timeout_s), turn:
                if in_turn and self._qmp.runstate is not Runstate.RUNNING:
                    await self.aclose()
                    self._qmp = await _connect(self._folder, timeout_s)
                return await self._qmp.execute(name, arguments or None)
        except TimeoutError as exc:
            raise VmmFailed(
                f"QEMU (process {self._process.pid}) did not answer {name!r} within {timeout_s:g} s",
                hint="look at its log in the sandbox's folder, or delete the sandbox",
                pid=self._process.pid,
            ) from exc
        except (QMPError, OSError, EOFError) as exc:
            raise VmmFailed(
                f"QEMU (process {self._process.pid}) refused {name!r}: {exc}",
                pid=self._process.pid,
            ) from exc


def _version_in(answer: object) -> str:
    """Return the version in a QEMU's answer, as its program prints it; `unknown` when it is no answer."""
    said = answer.get("qemu") if isinstance(answer, dict) else None
    parts = (
        [said.get(name) for name in ("major", "minor", "micro")] if isinstance(said, dict) else []
    )
    if len(parts) == 3 and all(type(part) is int and 0 <= part < 10_000 for part in parts):
        return ".".join(map(str, parts))
    return "unknown"


def agent_socket(folder: Path) -> Path:
    """Return the path of the guest channel's socket in a machine's folder."""
    return folder / "agent.sock"


def qmp_socket(folder: Path) -> Path:
    """Return the path of the control socket in a machine's folder."""
    return folder / "qmp.sock"


async def _connect(folder: Path, timeout_s: float) -> QMPClient:
    client = QMPClient(folder.name)
    client.events.event_filter = lambda _: False  # it keeps, for ever, what nobody takes from it
    # The VMM is not trusted either: what it may send in one message is bounded by the reader's limit.
    try:
        async with asyncio.timeout(timeout_s):
            with socket_name(qmp_socket(folder)) as name:
                await client.connect(name)
    except TimeoutError as exc:
        raise VmmFailed(
            f"QEMU in {folder} did not greet within {timeout_s:g} s", folder=folder
        ) from exc
    except (QMPError, OSError, EOFError) as exc:
        raise VmmFailed(f"QEMU in {folder} cannot be reached: {exc}", folder=folder) from exc
    return client
