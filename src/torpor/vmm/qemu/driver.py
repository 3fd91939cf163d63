"""The QEMU driver: start a machine, find it again after our own death, clear away what is left of it.

A machine's folder holds `vmm.json` (who the process is), `vmm.log` (what QEMU printed) and the sockets, all
ours alone, and `vm/`, which belongs to the user that QEMU runs as: RAM and console. What lies in there may be
anything, also a link to another machine's socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torpor.base.aio import finish
from torpor.base.fsio import open_plain, socket_name, write_json
from torpor.base.proc import ProcessId
from torpor.errors import DataDamaged, InsufficientResources, VmmFailed
from torpor.layers.space import full_disk_told
from torpor.vmm import cgroup, console, launch
from torpor.vmm.base import VOLUME_SLOTS, HostSupport, MachineSpec, SavedMachine
from torpor.vmm.limits import RateLimits
from torpor.vmm.qemu import command, format, host, merge
from torpor.vmm.qemu.machine import QemuMachine, agent_socket, qmp_socket
from torpor.vmm.qemu.overlay import Overlays

_SAYS_FULL = "No space left"

_HARMLESS = "Discarding RAM in private file mappings"
"""QEMU warns of this at every start; the mapping is private on purpose (see `command`)."""

_GREETING_S = 60.0
"""QEMU greets in 30 to 120 ms; a host with all cores busy was seen to need seconds."""


class QemuDriver:
    """Starts machines with QEMU."""

    name = "qemu"
    disk_suffix = ".qcow2"
    volume_slots: Sequence[int] = VOLUME_SLOTS
    read_only_slots: Sequence[int] = VOLUME_SLOTS

    def __init__(self, limits: RateLimits | None = None) -> None:
        self._limits = limits or RateLimits()
        self._empty = Overlays()

    async def probe(self) -> HostSupport:
        """Say whether and how QEMU works here; never raises."""
        return await host.probe()

    async def create_overlay(self, path: Path, size_bytes: int) -> None:
        """Make an empty qcow2 at `path`, without a backing file's name in it."""
        await self._empty.create((await host.find_qemu()).qemu_img, path, size_bytes)

    async def format_volume(self, path: Path, size_bytes: int) -> None:
        """Make a layer at `path` with an empty ext4 file system."""
        await format.format_volume((await host.find_qemu()).qemu_img, path, size_bytes)

    async def resize_overlay(self, path: Path, size_bytes: int) -> None:
        """Make an overlay larger that no machine has."""
        await format.resize_overlay((await host.find_qemu()).qemu_img, path, size_bytes)

    async def merge_disk(self, below: Sequence[Path], layers: Sequence[Path], out: Path) -> None:
        """Write to `out` one layer that over `below` is the same disk as `layers`."""
        await merge.merge((await host.find_qemu()).qemu_img, below, layers, out)

    async def start_bytes(self, layers: Sequence[Path]) -> int:
        """Return 0: an overlay is over its layers, and copies nothing."""
        return 0

    async def start(self, folder: Path, spec: MachineSpec) -> QemuMachine:
        """Start `spec` in `folder`; on failure nothing of it runs on.

        Raises:
            HostNotReady: QEMU is missing or too old.
            VmmFailed: QEMU did not start; facts have the end of its log.
        """
        with full_disk_told(f"a machine's files in {folder}"):
            return await self._launched(folder, spec, None)

    async def restore(self, folder: Path, spec: MachineSpec, saved: SavedMachine) -> QemuMachine:
        """Start `spec` in `folder` from `saved`, paused; on failure nothing of it runs on."""
        with full_disk_told(f"a machine's files in {folder}"):
            return await self._launched(folder, spec, saved)

    async def _launched(
        self, folder: Path, spec: MachineSpec, saved: SavedMachine | None
    ) -> QemuMachine:
        found = await host.find_qemu()
        user = await asyncio.to_thread(launch.prepare, folder, spec)
        ram = saved.ram_image if saved else folder / "vm" / "ram"
        with contextlib.ExitStack() as stack:
            qmp = stack.enter_context(_listening(qmp_socket(folder)))
            agent = stack.enter_context(_listening(agent_socket(folder)))
            log = stack.enter_context((folder / "vmm.log").open("ab"))
            await asyncio.to_thread(_begin_console, self.console(folder))
            wiring = command.Wiring(
                qmp.fileno(), agent.fileno(), "console.log", str(ram), restored=saved is not None
            )
            process = await launch.start_process(
                command.build(found.binary, found.accel, folder.name, spec, wiring),
                log=log,
                cwd=folder / "vm",
                pass_fds=(qmp.fileno(), agent.fileno()),
                user=user.uid if user else None,
                group=user.gid if user else None,
                extra_groups=user.groups if user else None,
            )
        try:
            await asyncio.to_thread(_limit, folder, spec, process)
            record = {
                "format": 1,
                "driver": self.name,
                "version": found.version,
                "pid": process.pid,
                "started_ticks": process.started_ticks,
                "ram": str(ram),
                "ram_bytes": spec.ram_mib << 20,
            }
            machine = await _recorded_and_attached(
                process, folder, ram, spec.ram_mib << 20, record, self._limits
            )
            if saved:
                await machine.load(saved.device_state)
            await machine.limit_disks(disk.slot for disk in spec.volumes)
        except BaseException as exc:
            await finish(self._ended(folder, process), within_s=40.0)
            if isinstance(exc, VmmFailed):
                words = await asyncio.to_thread(self.last_words, folder)
                kind = InsufficientResources if _SAYS_FULL in words else VmmFailed
                raise kind(
                    f"QEMU did not start: {words or exc.message}",
                    hint=exc.hint or f"its whole log is {folder / 'vmm.log'}",
                    log=words,
                ) from exc
            raise
        return machine

    async def adopt(self, folder: Path) -> QemuMachine | None:
        """Return the machine that runs in `folder`, or None if none does.

        Raises:
            VmmFailed: its process lives and its control socket does not answer.
        """
        found = await asyncio.to_thread(_recorded, folder)
        if found is None or not found[0].alive():
            return None
        identity, ram, ram_bytes, version = found
        return await QemuMachine.attach(
            identity, folder, ram, ram_bytes, self._limits, version, timeout_s=10.0
        )

    async def sweep(self, folder: Path) -> None:
        """End every QEMU that belongs to `folder`, recorded in it or found by its name."""
        found = await asyncio.to_thread(launch.belonging, folder, b"qemu-system")
        await self._ended(folder, *found)

    @staticmethod
    async def _ended(folder: Path, *processes: ProcessId) -> None:
        for process in processes:
            await process.kill(within_s=15.0)
        await asyncio.to_thread(cgroup.remove, folder)

    def console(self, folder: Path) -> Path:
        """Return the file with the machine's console output."""
        return folder / "vm" / "console.log"

    def last_words(self, folder: Path) -> str:
        """Return the last lines of QEMU's own log, and what ended it if the kernel did. Blocks."""
        log = launch.tail(folder / "vmm.log", lines=12, limit_bytes=8192, harmless=(_HARMLESS,))
        return "\n".join(filter(None, (log, cgroup.killed_for_memory(folder))))


def _limit(folder: Path, spec: MachineSpec, process: ProcessId) -> None:
    """Hold a QEMU that begins to its limits, where machines have some. Blocks."""
    group = cgroup.make(folder, spec)
    if group is not None:
        group.take(process.pid)


def _begin_console(path: Path) -> None:
    """Mark in the console's log, which QEMU opens itself, that another machine begins. Blocks."""
    try:
        file = open_plain(path, os.O_WRONLY | os.O_APPEND)
    except OSError:  # there is none, or it is no log
        return
    with file:
        console.begin(file)


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Listen at `path` and yield the socket for QEMU to inherit, so that we can connect at once."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        with socket_name(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(4)
        yield listener


async def _recorded_and_attached(
    process: ProcessId,
    folder: Path,
    ram: Path,
    ram_bytes: int,
    record: dict[str, Any],
    limits: RateLimits,
) -> QemuMachine:
    """Write who the process is, durably, while it starts; then it is ours to find again."""
    attached, written = await asyncio.gather(
        QemuMachine.attach(
            process,
            folder,
            ram,
            ram_bytes,
            limits,
            launch.version_in(record),
            timeout_s=_GREETING_S,
        ),
        asyncio.to_thread(write_json, folder / "vmm.json", record),
        return_exceptions=True,
    )
    if isinstance(attached, BaseException):
        raise attached
    if isinstance(written, BaseException):
        await attached.aclose()
        raise written
    return attached


def _recorded(folder: Path) -> tuple[ProcessId, Path, int, str | None] | None:
    """Return the process that was started in `folder`, the file that its memory maps, its size, and QEMU's version."""
    record = launch.read_record(folder)
    if record is None:
        return None
    try:
        ram, ram_bytes = Path(record["ram"]), int(record["ram_bytes"])
    except (KeyError, TypeError, ValueError) as exc:
        raise DataDamaged(f"{folder / launch.RECORD} is not a process record: {exc}") from exc
    return launch.process_in(record), ram, ram_bytes, launch.version_in(record)
