"""A driver without machines: each "VMM" is a real process that does nothing, so that identity, adoption,
sweeping and death are the operating system's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tests.fakes.guest_quiesce import FakeQuiesce
from torpor.base import proc
from torpor.base.proc import ProcessId
from torpor.errors import Conflict, GuestUnreachable, NotFound, VmmFailed
from torpor.guest.quiesce import Quiet
from torpor.layers.ram import PAGE, RamLayer, RamLayerWriter
from torpor.model import ExecEvent, ExecId, ExecInfo, ExecSpec, GuestInfo, Renewal
from torpor.model_quiesce import QuiesceSpec
from torpor.model_usage import DeviceFigures
from torpor.model_volumes import VolumeUsage
from torpor.vmm import console
from torpor.vmm.base import (
    VOLUME_SLOTS,
    HostSupport,
    MachineSpec,
    SavedMachine,
    VmmStatus,
    VolumeDisk,
)

NO_FIGURES = DeviceFigures(
    disk_read_bytes=0,
    disk_written_bytes=0,
    disk_reads=0,
    disk_writes=0,
    disk_failures=0,
    disk_throttled=None,
    network_received_bytes=None,
    network_sent_bytes=None,
    network_received_packets=None,
    network_sent_packets=None,
    network_failures=None,
    network_throttled=None,
)


class FakeVmm:
    """A `sleep` that can be stopped and continued."""

    def __init__(self, process: ProcessId, folder: Path, driver: FakeDriver) -> None:
        self.process = process
        self.agent_socket = folder / "vm" / "agent.sock"
        self.agent_port = None
        self.snapshots_cut = driver.snapshots_cut
        self._driver = driver
        self._folder = folder
        self.closed = False

    async def version(self) -> str:
        return str(self._driver.noted(self._folder)["version"])

    async def status(self) -> VmmStatus:
        if not self.process.alive():
            return "ended"
        await self._driver.step("status")
        return self._status()

    def _status(self) -> VmmStatus:
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return "paused" if state == "T" else "running"

    async def pause(self, *, timeout_s: float = 5.0) -> None:
        await self._signal("pause", signal.SIGSTOP, "paused")

    async def resume(self, *, timeout_s: float = 5.0) -> None:
        await self._signal("resume", signal.SIGCONT, "running")

    async def _signal(self, name: str, number: signal.Signals, want: VmmStatus) -> None:
        await self._driver.step(name)
        if not self.process.alive():
            raise VmmFailed("the machine is gone")
        os.kill(self.process.pid, number)
        async with asyncio.timeout(5):
            while self._status() != want:
                await asyncio.sleep(0.001)

    async def save_devices(self) -> Path:
        await self._driver.step("devices")
        path = self._folder / "vm" / "devices"
        path.write_bytes(f"devices of {self._folder.name}".encode())
        return path

    async def save_ram(self, path: Path, previous: Sequence[Path] = ()) -> RamLayer:
        await self._driver.step("ram")
        with RamLayerWriter(path, 4 * PAGE, previous) as writer:
            writer.add(np.array([1]), memoryview(bytes([len(previous) + 1]) * PAGE))
            return writer.finish(sync=False)

    async def capture_bytes(self, changed: int | None = None) -> int:
        return (4 * PAGE if changed is None else changed) + self._driver.copies_bytes

    async def switch_disk(self, overlay: Path) -> None:
        await self._driver.step("switch")
        self._driver.note(self._folder, active=str(overlay))
        await self._driver.step("switched")

    async def active_disk(self) -> str:
        return Path(self._driver.noted(self._folder)["active"]).stem

    async def attach_volume(self, disk: VolumeDisk) -> None:
        await self._driver.step("plug")
        for path in (*disk.layers, disk.active):
            assert path is None or path.exists(), f"{path} is missing"
        newest = disk.layers[-1] if disk.active is None else disk.active
        await self._change(**{str(disk.slot): newest.stem})
        await self._driver.step("plugged")

    async def detach_volume(self, slot: int) -> None:
        await self._driver.step("unplug")
        await self._change(**{str(slot): None})

    async def switch_volume(self, slot: int, overlay: Path) -> None:
        await self._driver.step("switch_volume")
        assert overlay.exists()
        await self._change(**{str(slot): overlay.stem})
        await self._driver.step("switched_volume")

    async def resize_volume(self, slot: int, size_bytes: int) -> None:
        await self._driver.step("resize")

    async def volumes(self) -> dict[int, str]:
        found = self._driver.noted(self._folder).get("volumes", {})
        return {int(slot): str(name) for slot, name in found.items()}

    async def _change(self, **changes: str | None) -> None:
        found = self._driver.noted(self._folder).get("volumes", {}) | changes
        self._driver.note(self._folder, volumes={k: v for k, v in found.items() if v is not None})

    async def give_back_memory(self) -> None:
        await self._driver.step("give_back")

    async def figures(self) -> DeviceFigures:
        await self._driver.step("figures")
        return self._driver.figures

    async def kill(self) -> None:
        await self.process.kill()

    async def wait(self) -> None:
        await self.process.wait()

    async def aclose(self) -> None:
        self.closed = True


class FakeDriver:
    """Starts processes that do nothing. `fail` names steps that raise; `block` names steps that wait."""

    name = "fake"
    disk_suffix = ".qcow2"
    volume_slots: Sequence[int] = VOLUME_SLOTS
    read_only_slots: Sequence[int] = VOLUME_SLOTS
    snapshots_cut = False
    version = "1"
    """Of the program that lies there now."""

    def __init__(self) -> None:
        self.figures = NO_FIGURES
        self.fail: dict[str, Exception] = {}
        self.fail_once: dict[str, Exception] = {}
        self.block: dict[str, asyncio.Event] = {}
        self.reached: dict[str, asyncio.Event] = {}
        self.starts = 0
        self.copies_bytes = 0
        self.booted: list[MachineSpec] = []
        self.restored: list[tuple[MachineSpec, SavedMachine]] = []

    async def step(self, name: str) -> None:
        self.reached.setdefault(name, asyncio.Event()).set()
        if name in self.block:
            await self.block[name].wait()
        if name in self.fail_once:
            raise self.fail_once.pop(name)
        if name in self.fail:
            raise self.fail[name]

    async def until(self, name: str) -> None:
        """Return when a step was reached."""
        async with asyncio.timeout(10):
            await self.reached.setdefault(name, asyncio.Event()).wait()

    async def probe(self) -> HostSupport:
        return HostSupport("fake", True, self.version, "tcg", "fake-cpu", "it is a fake")

    async def create_overlay(self, path: Path, size_bytes: int) -> None:
        await self.step("overlay")
        path.write_bytes(b"overlay")

    async def format_volume(self, path: Path, size_bytes: int) -> None:
        await self.step("format")
        path.write_bytes(b"file system")

    async def resize_overlay(self, path: Path, size_bytes: int) -> None:
        await self.step("resize_overlay")
        assert path.exists()

    async def merge_disk(self, below: Sequence[Path], layers: Sequence[Path], out: Path) -> None:
        await self.step("merge")
        for path in (*below[1:], *layers):
            assert path.exists(), f"{path} is missing"
        out.write_bytes(b"merged " + " ".join(path.stem for path in layers).encode())
        try:
            await self.step("merged")
        except BaseException:
            out.unlink()
            raise

    async def start_bytes(self, layers: Sequence[Path]) -> int:
        assert all(path.exists() for path in layers[1:])
        return self.copies_bytes

    async def start(self, folder: Path, spec: MachineSpec) -> FakeVmm:
        await self.step("start")
        self.booted.append(spec)
        return self._started(folder, spec)

    async def restore(self, folder: Path, spec: MachineSpec, saved: SavedMachine) -> FakeVmm:
        await self.step("restore")
        assert saved.ram_image.stat().st_size == 4 * PAGE
        assert saved.device_state.read_bytes().startswith(b"devices of")
        vmm = self._started(folder, spec)
        os.kill(vmm.process.pid, signal.SIGSTOP)
        self.restored.append((spec, saved))
        return vmm

    def _started(self, folder: Path, spec: MachineSpec) -> FakeVmm:
        volumes = [path for disk in spec.volumes for path in (*disk.layers, disk.active) if path]
        for layer in (*spec.disk.layers[1:], spec.disk.active, *volumes):
            assert layer.exists(), f"{layer} is missing"
        (folder / "vm").mkdir(exist_ok=True)
        (folder / "vm" / "ram").write_bytes(b"ram")
        with (folder / "vm" / "console.log").open("ab") as out:
            console.begin(out)
            out.write(b"Linux version 6.12\nlogin:\n")
        with (folder / "vmm.log").open("wb") as log:
            process = proc.start_detached(["sleep", "3600"], log=log, cwd=folder / "vm")
        self.starts += 1
        try:
            self.note(
                folder,
                pid=process.pid,
                started_ticks=process.started_ticks,
                version=self.version,
                active=str(spec.disk.active),
                volumes={
                    str(disk.slot): (disk.layers[-1] if disk.active is None else disk.active).stem
                    for disk in spec.volumes
                },
            )
        except BaseException:
            os.kill(process.pid, signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            proc._reap(process.pid)
            raise
        return FakeVmm(process, folder, self)

    @staticmethod
    def noted(folder: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((folder / "vmm.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def note(self, folder: Path, **changes: Any) -> None:
        (folder / "vmm.json").write_text(json.dumps(self.noted(folder) | changes))

    async def adopt(self, folder: Path) -> FakeVmm | None:
        await self.step("adopt")
        found = self._found(folder)
        return FakeVmm(found, folder, self) if found else None

    async def sweep(self, folder: Path) -> None:
        await self.step("sweep")
        found = self._found(folder)
        if found:
            await found.kill()

    def console(self, folder: Path) -> Path:
        return folder / "vm" / "console.log"

    def last_words(self, folder: Path) -> str:
        return (folder / "vmm.log").read_text() if (folder / "vmm.log").exists() else ""

    def _found(self, folder: Path) -> ProcessId | None:
        record = self.noted(folder)
        if not record:
            return None
        process = ProcessId(record["pid"], record["started_ticks"])
        return process if process.alive() else None


class FakeAgent(FakeQuiesce):
    """The little of a guest that the engine itself asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.calls: list[str] = []
        self.files: dict[str, bytes] = {}
        self.renewals: list[Renewal] = []
        self.execs: list[ExecInfo] = []
        self.frozen = False
        self.holds = True
        self.mounted: dict[str, bool] = {}
        """Read-only or not, by path."""
        self.busy: set[str] = set()
        """Paths that processes use."""
        self.no_mount: Exception | None = None
        self.no_freeze: Exception | None = None
        self.info = GuestInfo(
            agent_version="1",
            protocol_version=1,
            capabilities=frozenset({"memory", "volumes"}),
            instance="boot",
            agent_pid=1,
        )
        self.answer: Callable[[str, dict[str, Any]], Awaitable[Any]] | None = None
        """What the host does for the machine's memory socket, while it serves that."""
        self.served = asyncio.Event()
        self._left = asyncio.Event()

    async def serve_memory(self, answer: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
        self.answer = answer
        self.served.set()
        await self._left.wait()
        raise GuestUnreachable("the guest channel was closed")

    async def set_clock(self, now: object) -> None:
        self.calls.append("set_clock")

    async def renew(self, renewal: Renewal) -> None:
        self.calls.append(f"renew {renewal.reason}")
        self.renewals.append(renewal)
        await self.quiesce_release(None, "restored")

    async def sync(self) -> None:
        self.calls.append("sync")

    async def freeze(self, *, dead_man_seconds: float) -> None:
        self.calls.append("freeze")
        if self.no_freeze is not None:
            raise self.no_freeze
        self.frozen = True

    async def thaw(self) -> bool:
        self.calls.append("thaw")
        held, self.frozen = self.frozen and self.holds, False
        return held

    @override
    async def quiesce(self, spec: QuiesceSpec) -> Quiet:
        self.calls.append("quiesce")
        return await super().quiesce(spec)

    @override
    async def quiesce_confirm(self, token: str) -> Quiet:
        self.calls.append("confirm")
        return await super().quiesce_confirm(token)

    @override
    async def quiesce_release(self, token: str | None, outcome: str) -> Quiet:
        if self.is_quiesced:
            self.calls.append(f"release {outcome}")
        return await super().quiesce_release(token, outcome)

    @override
    def let_go(self) -> None:
        self.frozen = False

    @override
    def _check(self) -> None:
        pass

    async def settle(self, *, timeout_s: float) -> None:
        self.calls.append("settle")

    async def exec_list(self) -> list[ExecInfo]:
        return self.execs

    async def exec_forget(self) -> int:
        self.calls.append("exec_forget")
        return 0

    @contextlib.asynccontextmanager
    async def exec_run(
        self, exec_id: ExecId, spec: ExecSpec, **_: object
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        self.calls.append(f"exec {spec.command}")

        async def events() -> AsyncIterator[ExecEvent]:
            return
            yield  # makes it a generator

        yield events()

    async def mount_volume(self, path: str, *, read_only: bool, **_: object) -> VolumeUsage:
        self.calls.append(f"mount {path}")
        if self.no_mount is not None:
            raise self.no_mount
        self.mounted[path] = read_only
        return VolumeUsage(1000, 100)

    async def unmount_volume(self, path: str, *, slot: int) -> VolumeUsage | None:
        self.calls.append(f"unmount {path}")
        if path in self.busy:
            raise Conflict(f"{path} is in use by 17 sh", holders="17 sh")
        was = self.mounted.pop(path, None)
        return None if was is None else VolumeUsage(1000, 200)

    async def grow_volume(self, path: str, **_: object) -> VolumeUsage:
        self.calls.append(f"grow {path}")
        return VolumeUsage(2000, 200)

    async def volume_usage(self, path: str) -> VolumeUsage:
        return VolumeUsage(1000, 300)

    async def grow_disk(self) -> int:
        self.calls.append("grow_disk")
        return 0

    async def read(self, path: str, *, limit_bytes: int) -> AsyncIterator[bytes]:
        if path not in self.files:
            raise NotFound(f"{path} does not exist")
        yield self.files[path][:limit_bytes]

    async def write(self, path: str, chunks: object, **_: object) -> None:
        self.files[path] = b"".join([c async for c in chunks])  # type: ignore[attr-defined]

    async def aclose(self) -> None:
        self.closed = True
        self._left.set()


class FakeConnect:
    """Hands out `FakeAgent`s; remembers the epochs it was given."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.agents: list[FakeAgent] = []
        self.instance = "boot"
        self.fail: Exception | None = None
        self.block: asyncio.Event | None = None
        self.reached = asyncio.Event()
        self.keeps = False
        """Whether the next connection is to the machine of the last, which may be frozen."""

    async def __call__(
        self, socket_path: Path, *, port: int | None, epoch: int, timeout_s: float
    ) -> FakeAgent:
        self.epochs.append(epoch)
        self.reached.set()
        if self.block is not None:
            await self.block.wait()
        if self.fail is not None:
            raise self.fail
        agent = FakeAgent()
        if self.agents and self.keeps:
            agent.frozen = self.agents[-1].frozen
        object.__setattr__(agent.info, "instance", self.instance)
        self.agents.append(agent)
        return agent
