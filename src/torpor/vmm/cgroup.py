"""A VMM's control group: the memory, CPUs and processes that it can have at most, whatever its guest does.

Its name tells which machine's it is, so that it is found and removed after our own death too. All are below one group,
which is there while one of them is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import select
import time
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import VmmFailed
from torpor.vmm.base import MachineSpec, Wall

PARENT = "torpor"
NAME = "control groups"
"""What `torpor doctor` calls them."""

_WANTED = ("cpu", "memory", "pids")
_MORE_BYTES = 512 << 20
_MORE_PART = 4
"""Beside the guest's memory: the VMM's own, tables of pages, and the page cache of its files. What it writes is slowed down
to the disk's speed once about a sixth of the room that is left waits to be written, and so is a snapshot's pause."""
_MORE_CPUS = 1
"""Beside the guest's: for devices, and for saving its memory."""
_PERIOD_US = 100_000
_PROCESSES = 128
"""And threads: one for each CPU of the guest, and those that do I/O; QEMU has up to 64 of these."""
_EMPTY_S = 10.0
_TRIES = 10
_STILL_GOING_MS = 5
"""Processes that ended are counted out a moment before the last of their threads is gone."""


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one machine."""

    path: Path

    def take(self, pid: int) -> None:
        """Let process `pid`, and what it starts from now on, be in it. Blocks.

        Raises:
            VmmFailed: it cannot be.
        """
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError as exc:
            raise VmmFailed(f"process {pid} cannot be put into {self.path}: {exc}") from exc


def wall(mounts: Path = Path("/proc/self/mounts"), *, is_root: bool | None = None) -> Wall:
    """Say whether machines have limits here, and why. Blocks."""
    _, why, fix = _found(mounts, os.geteuid() == 0 if is_root is None else is_root)
    if fix is None:
        return Wall(NAME, True, "memory, CPUs and processes", why)
    return Wall(NAME, False, "none", why, fix)


def make(folder: Path, spec: MachineSpec) -> Group | None:
    """Make the group of the machine in `folder`; None where `wall` says that there is none. Blocks.

    Raises:
        VmmFailed: it could not be made; nothing is left of it.
    """
    root = _root()
    if root is None:
        return None
    path = _path(root, folder)
    try:
        _let_have(root)
        _made(path)
        for name, value in limits(spec).items():
            (path / name).write_text(value)
    except OSError as exc:
        remove(folder)
        raise VmmFailed(
            f"the control group {path} cannot be made: {exc}",
            hint="see: torpor doctor",
        ) from exc
    return Group(path)


def limits(spec: MachineSpec) -> dict[str, str]:
    """Return what is written for a machine, by the names of the group's files."""
    ram = spec.ram_mib << 20
    return {
        "memory.max": str(ram + ram // _MORE_PART + _MORE_BYTES),
        "cpu.max": f"{(spec.vcpus + _MORE_CPUS) * _PERIOD_US} {_PERIOD_US}",
        "pids.max": str(spec.vcpus + _PROCESSES),
    }


def remove(folder: Path) -> None:
    """End what still runs in the group of the machine in `folder`, and remove it; nothing happens if there is none. Blocks.

    Raises:
        VmmFailed: it is still there after some seconds.
    """
    root = _root()
    if root is None or not (path := _path(root, folder)).is_dir():
        return
    with contextlib.suppress(OSError):  # kernels before 5.14 have no such file
        (path / "cgroup.kill").write_text("1")
    end = time.monotonic() + _EMPTY_S
    while True:
        try:
            path.rmdir()
            break
        except FileNotFoundError:
            break
        except OSError as exc:
            left_s = end - time.monotonic()
            if exc.errno != errno.EBUSY or left_s <= 0:
                raise VmmFailed(f"the control group {path} cannot be removed: {exc}") from exc
            _until_changed(path, min(left_s, 1.0))
    with contextlib.suppress(OSError):  # another machine's is in it
        path.parent.rmdir()


def killed_for_memory(folder: Path) -> str:
    """Say that the kernel ended a process of the machine because it wanted more memory than its limit; else nothing. Blocks."""
    root = _root()
    if root is None:
        return ""
    path = _path(root, folder)
    try:
        events = dict(line.split() for line in (path / "memory.events").read_text().splitlines())
        if events.get("oom_kill", "0") == "0":
            return ""
        most = (path / "memory.max").read_text().strip()
    except (OSError, ValueError):  # gone
        return ""
    return (
        f"the kernel ended it: it wanted more than the {most} bytes of memory of its control group"
    )


def _root() -> Path | None:
    root, _, fix = _found(Path("/proc/self/mounts"), os.geteuid() == 0)
    return root if fix is None else None


def _found(mounts: Path, is_root: bool) -> tuple[Path | None, str, str | None]:
    """Return where the groups are, why they can be used or not, and what mends that; None: they can."""
    if not is_root:
        return None, "only root can give a process a control group", "run the daemon as root"
    root = _mounted(mounts)
    if root is None:
        return None, "no cgroup v2 is mounted", _ON_A_HOST
    try:
        has = (root / "cgroup.controllers").read_text().split()
        gives = (root / "cgroup.subtree_control").read_text().split()
        is_whole = not (root / "cgroup.type").exists()  # the host's own root has none
        inside = () if is_whole else (root / "cgroup.procs").read_text().split()
    except OSError as exc:
        return root, f"{root} cannot be read: {exc}", _ON_A_HOST
    missing = [name for name in _WANTED if name not in has]
    if missing:
        return root, f"cgroup v2 at {root} has no {', '.join(missing)}", _WITHOUT_V1
    if not os.access(root, os.W_OK):
        return root, f"{root} cannot be written", _ON_A_HOST
    if inside and not set(_WANTED) <= set(gives):
        why = f"{root} is a container's own group with processes in it, which cannot have limits below it"
        return root, why, _ON_A_HOST
    return root, f"each machine has a control group below {root / PARENT}", None


_ON_A_HOST = "run the daemon on a host, or in a container with a writable cgroup v2 of its own"
_WITHOUT_V1 = "boot the host with cgroup v2 alone: systemd.unified_cgroup_hierarchy=1"


def _mounted(mounts: Path) -> Path | None:
    for line in mounts.read_text().splitlines():
        words = line.split()
        if len(words) > 2 and words[2] == "cgroup2":
            return Path(words[1])
    return None


def _path(root: Path, folder: Path) -> Path:
    """Return the group of a folder: templates that are built all have the same folder's name."""
    known = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]
    return root / PARENT / f"{re.sub('[^0-9a-zA-Z_-]', '-', folder.name)}-{known}"


def _let_have(root: Path) -> None:
    """Let groups below `root` have limits."""
    gives = (root / "cgroup.subtree_control").read_text().split()
    missing = [name for name in _WANTED if name not in gives]
    if missing:
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in missing))


def _made(path: Path) -> None:
    """Make a group; its parent may go meanwhile, with the last machine that was in it."""
    for attempt in range(_TRIES):
        try:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            _let_have(path.parent)
            path.mkdir(mode=0o755, exist_ok=True)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENODEV) or attempt == _TRIES - 1:
                raise
        else:
            return


def _until_changed(path: Path, limit_s: float) -> None:
    """Return when the kernel says that something changed in the group, or after `limit_s` seconds."""
    try:
        fd = os.open(path / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        is_empty = b"populated 0" in os.read(fd, 4096)
        waiting = select.poll()
        waiting.register(fd, select.POLLPRI)
        waiting.poll(_STILL_GOING_MS if is_empty else limit_s * 1000)
    finally:
        os.close(fd)
