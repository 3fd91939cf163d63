"""The Firecracker driver: start a machine, find it again after our own death, clear away what is left of it.

A machine's folder holds `vmm.json` (who the process is) and `vmm.log` (what Firecracker logged), and `vm/`, which
belongs to the user that Firecracker runs as: sockets, console, links to the disks, and the memory of its snapshots. What
lies in there may be anything. As root `vm/` is also all of the file system that there is for it: see `jail`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from torpor.base.aio import finish
from torpor.base.fsio import open_plain, remove_all, write_json
from torpor.base.proc import ProcessId
from torpor.errors import DataDamaged, InsufficientResources, VmmFailed
from torpor.layers.space import full_disk_told, is_full
from torpor.vmm import cgroup, console, launch
from torpor.vmm.base import HostSupport, MachineSpec, SavedMachine
from torpor.vmm.confine import User
from torpor.vmm.ext4 import make_ext4
from torpor.vmm.firecracker import (
    config,
    disks,
    drives,
    given,
    host,
    jail,
    kernel,
    network,
    room,
    volumes,
)
from torpor.vmm.firecracker.api import Refused
from torpor.vmm.firecracker.figures import Figures
from torpor.vmm.firecracker.machine import FirecrackerMachine
from torpor.vmm.limits import RateLimits

_LISTENING_S = 60.0
"""It listens after some milliseconds; a host with all cores busy may need seconds."""
_LOAD_S = 60.0
_SAYS_FULL = "No space left"
_HOSTS_FAULT = re.compile(r"Permission denied|\(os error (?:1|12|13|16|24|28|98)\)")
"""In a refusal to load a state that is the host's: not permitted, no memory, busy, too many files, no space."""
_WRONG_STATE = (
    "it was saved by another version of Firecracker or on another CPU, or its files are damaged"
)


class FirecrackerDriver:
    """Starts machines with Firecracker."""

    name = "firecracker"
    disk_suffix = ".raw"
    volume_slots: Sequence[int] = config.WRITABLE_SLOTS
    read_only_slots: Sequence[int] = config.READ_ONLY_SLOTS

    def __init__(self, limits: RateLimits | None = None) -> None:
        self._limits = limits or RateLimits()

    async def probe(self) -> HostSupport:
        """Say whether and how Firecracker works here; never raises."""
        return await host.probe()

    async def create_overlay(self, path: Path, size_bytes: int) -> None:
        """Make an empty disk at `path`, which is filled when a machine gets it."""
        await asyncio.to_thread(disks.make_empty, path, size_bytes)

    async def format_volume(self, path: Path, size_bytes: int) -> None:
        """Make a layer at `path` with an empty ext4 file system."""
        await make_ext4(path, size_bytes)

    async def resize_overlay(self, path: Path, size_bytes: int) -> None:
        """Make an overlay larger that no machine has."""
        await disks.make_larger(path, size_bytes)

    async def merge_disk(self, below: Sequence[Path], layers: Sequence[Path], out: Path) -> None:
        """Write to `out` the whole disk that `layers` over `below` are."""
        await asyncio.to_thread(disks.make_empty, out, 0)
        try:
            await disks.fill(out, (*below, *layers))
        except BaseException:
            await asyncio.to_thread(out.unlink, missing_ok=True)
            raise

    async def start_bytes(self, layers: Sequence[Path]) -> int:
        """Return at most how many bytes are copied when a machine starts on a new overlay over `layers`."""
        return await asyncio.to_thread(room.copy_bytes, layers, layers[-1].parent)

    async def start(self, folder: Path, spec: MachineSpec) -> FirecrackerMachine:
        """Start `spec` in `folder`; on failure nothing of it runs on.

        Raises:
            HostNotReady: Firecracker is missing or too old, or KVM cannot be used.
            VmmFailed: it did not start; facts have the end of its log.
        """
        with full_disk_told(f"a machine's files in {folder}"):
            return await self._launched(folder, spec, None)

    async def restore(
        self, folder: Path, spec: MachineSpec, saved: SavedMachine
    ) -> FirecrackerMachine:
        """Start `spec` in `folder` from `saved`, paused; on failure nothing of it runs on."""
        with full_disk_told(f"a machine's files in {folder}"):
            return await self._launched(folder, spec, saved)

    async def _launched(
        self, folder: Path, spec: MachineSpec, saved: SavedMachine | None
    ) -> FirecrackerMachine:
        found = await host.find_firecracker()
        image = await kernel.elf_of(spec.kernel) if saved is None else None
        user = await asyncio.to_thread(launch.prepare, folder, spec)
        await disks.fill(spec.disk.active, spec.disk.layers)
        process = None
        try:
            with contextlib.ExitStack() as stack:
                await asyncio.to_thread(_make_room, folder, found, spec.disk.active)
                for disk in spec.volumes:
                    await volumes.put(folder, disk)
                log = stack.enter_context(await asyncio.to_thread(_open_log, folder))
                out = stack.enter_context(await asyncio.to_thread(_open_console, folder / "vm"))
                await asyncio.to_thread(console.begin, out)
                gate = stack.enter_context(network.gate())
                group = await asyncio.to_thread(cgroup.make, folder, spec)
                process = await launch.start_process(
                    _argv(found, gate, folder, user),
                    log=log,
                    out=out,
                    cwd=folder / "vm",
                    pass_fds=gate.theirs,
                )
                ram = None if saved is None else saved.ram_image
                machine = FirecrackerMachine(
                    process, folder, ram, spec.ram_mib << 20, self._limits, found.version
                )
                await asyncio.gather(
                    asyncio.to_thread(
                        _record, folder, process, ram, spec.ram_mib << 20, found.version
                    ),
                    self._enter(gate, machine, user, group, spec),
                )
                await self._told(machine, spec, saved, image)
        except BaseException as exc:
            words: list[str] = []
            await finish(self._undone(folder, process, words=words), within_s=60.0)
            if isinstance(exc, VmmFailed) or (isinstance(exc, OSError) and not is_full(exc)):
                raise _explained(folder, exc, "\n".join(words)) from exc
            raise
        return machine

    @staticmethod
    async def _enter(
        gate: network.Gate,
        machine: FirecrackerMachine,
        user: User | None,
        group: cgroup.Group | None,
        spec: MachineSpec,
    ) -> None:
        """Let a process that waits in its own network have what it is to have there, and go on."""
        await gate.until_there()
        if group is not None:
            await asyncio.to_thread(group.take, machine.process.pid)
        await network.make(machine.folder, machine.process.pid, user, spec.network)
        gate.open()

    async def _undone(
        self, folder: Path, *processes: ProcessId | None, words: list[str] | None = None
    ) -> None:
        """End `processes`, and remove all that a machine has beside its process, its disk and its logs.

        `words` gets their last words, which in part go with the control group.
        """
        for process in processes:
            if process is not None:
                await process.kill(within_s=15.0)
        if words is not None:
            words.append(await asyncio.to_thread(self.last_words, folder))
        await asyncio.to_thread(cgroup.remove, folder)
        await network.remove(folder)
        await asyncio.to_thread(jail.clear, folder)
        await asyncio.to_thread(volumes.forget_copies, folder)

    async def _told(
        self,
        machine: FirecrackerMachine,
        spec: MachineSpec,
        saved: SavedMachine | None,
        image: Path | None,
    ) -> None:
        api = machine.api
        await api.until_listening(machine.process.alive, timeout_s=_LISTENING_S)
        if saved is not None:
            saved = await asyncio.to_thread(_given_saved, machine.folder, saved)
            try:
                await api.call("PUT", "/snapshot/load", config.load(saved), timeout_s=_LOAD_S)
            except Refused as exc:
                if not _HOSTS_FAULT.search(exc.message):
                    exc.hint = _WRONG_STATE
                raise
            # it came with the limits that it was saved with
            for path, body in config.limited(self._limits, (disk.slot for disk in spec.volumes)):
                await api.call("PATCH", path, body)
        else:
            assert image is not None
            given_spec, kernel_file = await asyncio.to_thread(
                _given_boot, machine.folder, spec, image
            )
            for path, body in config.boot(given_spec, kernel_file, self._limits):
                await api.call("PUT", path, body, timeout_s=_LOAD_S)
        await asyncio.to_thread(drives.let_go, machine.folder / "vm")

    async def adopt(self, folder: Path) -> FirecrackerMachine | None:
        """Return the machine that runs in `folder`, or None if none does; one that is being saved is waited for.

        Raises:
            VmmFailed: its process lives and its control socket does not answer.
        """
        record = await asyncio.to_thread(launch.read_record, folder)
        if record is None or not launch.process_in(record).alive():
            return None
        try:
            image = None if record["ram"] is None else Path(record["ram"])
            size = int(record["ram_bytes"])
        except (KeyError, TypeError, ValueError) as exc:
            raise DataDamaged(f"{folder / launch.RECORD} is not a process record: {exc}") from exc
        process = launch.process_in(record)
        machine = FirecrackerMachine(
            process, folder, image, size, self._limits, launch.version_in(record)
        )
        await machine.until_answering()
        return machine

    async def sweep(self, folder: Path) -> None:
        """End every Firecracker that belongs to `folder`, recorded in it or found by its name."""
        found = await asyncio.to_thread(launch.belonging, folder, config.MARK)
        await self._undone(folder, *found)

    def console(self, folder: Path) -> Path:
        """Return the file with the machine's console output."""
        return folder / "vm" / config.CONSOLE

    def last_words(self, folder: Path) -> str:
        """Return the last lines of Firecracker's own log, and what ended it if the kernel did. Blocks."""
        log = launch.tail(folder / "vmm.log", lines=12, limit_bytes=8192)
        return "\n".join(filter(None, (log, cgroup.killed_for_memory(folder))))


def _explained(
    folder: Path, exc: VmmFailed | OSError, words: str
) -> VmmFailed | InsufficientResources:
    """Return the failure with what Firecracker logged."""
    hint, why = (exc.hint, exc.message) if isinstance(exc, VmmFailed) else (None, str(exc))
    kind = InsufficientResources if _SAYS_FULL in f"{words} {why}" else VmmFailed
    hint = hint or f"its whole log is {folder / 'vmm.log'}"
    return kind(f"Firecracker did not start: {why}", hint=hint, log=words)


def _make_room(folder: Path, found: host.FirecrackerHost, active: Path) -> None:
    """Let there be nothing in `vm/` but what a Firecracker is to find: its disk, and places for volumes. Blocks."""
    jail.clear(folder)
    if found.jailer is not None:
        found.jailer.prepare(folder, config.instance(folder.name))
    _make_file(folder / "vm", config.METRICS)  # Firecracker does not make it
    Figures(folder).forget()
    drives.lead(folder / "vm", config.DISK, active)
    volumes.clear(folder)


def _argv(
    found: host.FirecrackerHost, gate: network.Gate, folder: Path, user: User | None
) -> list[str]:
    instance = config.instance(folder.name)
    if found.jailer is None:
        alone = [str(found.binary), "--id", instance, *config.arguments("../vmm.log")]
        return gate.argv(user, alone)
    assert user is not None, "the jailer is used as root only"
    jailed = found.jailer.argv(folder, instance, user, config.arguments("vmm.log"))
    return gate.argv_of_jailer(jailed, jail.mounts(folder))


def _given_saved(folder: Path, saved: SavedMachine) -> SavedMachine:
    """Return what a machine goes on from by the names that it has for it."""
    return SavedMachine(given.give(folder, saved.ram_image), given.give(folder, saved.device_state))


def _given_boot(folder: Path, spec: MachineSpec, image: Path) -> tuple[MachineSpec, Path]:
    """Return what a machine boots from by the names that it has for it."""
    return replace(spec, initrd=given.give(folder, spec.initrd)), given.give(folder, image)


def _record(
    folder: Path, process: ProcessId, ram: Path | None, ram_bytes: int, version: str
) -> None:
    """Write who the process is, durably; then it is ours to find again."""
    record = {
        "format": 1,
        "driver": FirecrackerDriver.name,
        "version": version,
        "pid": process.pid,
        "started_ticks": process.started_ticks,
        "ram": None if ram is None else str(ram),
        "ram_bytes": ram_bytes,
    }
    write_json(folder / launch.RECORD, record)


def _open_log(folder: Path) -> BinaryIO:
    """Open the log, anew each time: Firecracker, which opens it too, begins at its start."""
    file = (folder / "vmm.log").open("wb")
    try:
        os.set_inheritable(file.fileno(), False)
        if os.geteuid() == 0:
            owner = (folder / "vm").stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    except BaseException:
        file.close()
        raise
    return file


def _open_console(inner: Path) -> BinaryIO:
    """Open the console's log to append: the daemon may cut it while Firecracker writes it."""
    path = inner / config.CONSOLE
    flags = os.O_WRONLY | os.O_APPEND
    try:
        return open_plain(path, flags)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                remove_all(path)
            else:
                path.unlink()
    _make_file(inner, config.CONSOLE)
    return open_plain(path, flags)


def _make_file(inner: Path, name: str) -> None:
    """Make an empty file of the machine's user; there is none of that name. Blocks."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(inner / name, flags, 0o600)
    try:
        if os.geteuid() == 0:
            owner = inner.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)
    finally:
        os.close(fd)
