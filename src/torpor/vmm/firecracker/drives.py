"""A machine's drives: names in its folder that lead to the files which it has.

A snapshot remembers the names, so they never change. The root disk's name is always a link. That of a place for a
volume is one while a volume is in it, and else a file of its own, far smaller than any volume. What Firecracker has
open may be another file than its name leads to: between the change of a link and the call that has it opened anew.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.base.fsio import remove_all
from torpor.errors import VmmFailed
from torpor.vmm.firecracker import given
from torpor.vmm.firecracker.config import DISK, SLOTS, volume_name

_NOTHING_BYTES = 4096
"""Size of a place's own file; not 0, or the guest's kernel has no news of what comes and goes."""
_GONE = " (deleted)"
_DISK = ".raw"
"""How the names of disks end, and of nothing else that a machine has open."""
_turn = threading.Lock()
"""Between giving a file and leading to it, nobody takes it away."""


def lead(inner: Path, name: str, target: Path) -> None:
    """Let a drive's name lead to `target`. Blocks."""
    with _turn:
        fresh = _free(inner / f".{name}")
        fresh.symlink_to(given.give(inner.parent, target))
        _put(fresh, inner / name)


def lead_back(inner: Path, name: str, before: Path) -> None:
    """Let a drive's name lead to the file that the machine has open, and keep none for it that it was to open. Blocks."""
    lead(inner, name, before)
    let_go(inner)


def let_go(inner: Path) -> None:
    """Let a machine that has opened its files have no names for others than its drives lead to. Blocks."""
    with _turn, contextlib.suppress(OSError):  # what stays goes with the next, or with the machine
        names = set()
        for name in (DISK, *map(volume_name, SLOTS)):
            with contextlib.suppress(OSError):  # a place with no volume in it
                names.add((inner / name).readlink().name)
        given.take_all_but(inner.parent, names)


def lead_nowhere(inner: Path, slot: int) -> None:
    """Let a place for a volume have nothing but a file of its own. Blocks."""
    name = volume_name(slot)
    fresh = _free(inner / f".{name}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, _NOTHING_BYTES)
        if os.geteuid() == 0:
            owner = inner.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)
    finally:
        os.close(fd)
    _put(fresh, inner / name)


def _free(path: Path) -> Path:
    """Return a path at which nothing is. What lay there may have been anything: the folder is not ours alone."""
    if path.is_dir() and not path.is_symlink():
        remove_all(path)
    path.unlink(missing_ok=True)
    return path


def _put(fresh: Path, path: Path) -> None:
    try:
        fresh.rename(path)
    except IsADirectoryError:
        fresh.rename(_free(path))


@dataclass(frozen=True, slots=True)
class Opened:
    """A disk that a machine has in a drive."""

    path: Path
    """Where it was given to the machine; it may be gone from there."""
    inner: Path
    link: Path
    """What the kernel has for it: a file in `/proc`."""

    @contextlib.contextmanager
    def held(self) -> Iterator[Path]:
        """Enter with a name for the very file that the machine has open, whatever lies at its path by then. Blocks.

        Raises:
            VmmFailed: it has it open no more, or it is not a file of its own user that it was given.
        """
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.ExitStack() as stack:
            try:
                fd = os.open(self.link, flags & ~os.O_NOFOLLOW)
                stack.callback(os.close, fd)
                found = self._checked(fd)
            except OSError as exc:
                raise VmmFailed(f"Firecracker has {self.path} open no more: {exc}") from exc
            with contextlib.suppress(OSError):  # gone from there
                # older kernels clone no file that is held through a mount of the jail's
                near = os.open(self.path, flags)
                stack.callback(os.close, near)
                if os.path.samestat(os.fstat(near), found):
                    fd = near
            yield Path(f"/proc/self/fd/{fd}")

    def _checked(self, fd: int) -> os.stat_result:
        name, found = _name(Path(f"/proc/self/fd/{fd}")), os.fstat(fd)
        is_given = given.of(self.inner.parent, name) == self.path and stat.S_ISREG(found.st_mode)
        if not is_given or found.st_uid != self.inner.stat().st_uid:
            raise VmmFailed(
                f"Firecracker writes to {name}, which is not {self.path} or belongs to another"
            )
        return found


def opened(inner: Path, pid: int) -> Mapping[str, Opened]:
    """Return the disk that a machine has in each drive, as the kernel says; an empty place is not in it. Blocks.

    Only files that the machine was given count; what it made itself may be called as they are.

    Raises:
        VmmFailed: the process's files cannot be looked at, or it has a disk that it was not given.
    """
    disks: dict[str, Opened] = {}
    others: set[str] = set()
    for link, path in _files(pid):
        known = given.of(inner.parent, path)
        if path.suffix != _DISK:
            others.add(path.name)
        elif known is None:
            raise VmmFailed(
                f"Firecracker (process {pid}) has {path} open, a disk that it was not given"
            )
        else:
            disks[path.name] = Opened(known, inner, link)
    found: dict[str, Opened] = {}
    unsure: list[str] = []
    for name in (DISK, *map(volume_name, SLOTS)):
        target = inner / name
        with contextlib.suppress(OSError):
            target = target.readlink()
        if target.name in disks:
            found[name] = disks[target.name]
        elif target.name != name or name not in others:
            unsure.append(name)
    rest = [disk for disk in disks.values() if disk not in found.values()]
    if len(rest) == 1 and len(unsure) == 1:
        found[unsure[0]] = rest[0]
    elif rest:
        raise VmmFailed(
            f"Firecracker (process {pid}) has {rest[0].path} open, in no drive that is known"
        )
    return found


def _files(pid: int) -> list[tuple[Path, Path]]:
    """Return what a process has open, and how it calls that; the names of layers are never used twice."""
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append((entry, _name(entry)))
    except OSError as exc:
        raise VmmFailed(
            f"the files of Firecracker (process {pid}) cannot be looked at: {exc}", pid=pid
        ) from exc
    return found


def _name(link: Path) -> Path:
    return Path(str(link.readlink()).removesuffix(_GONE))
