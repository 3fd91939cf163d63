"""A machine's drives: names in its folder that lead to the files which it has.

A snapshot remembers the names, so they never change. The root disk's name is always a link. That of a place for a
volume is one while a volume is in it, and else a file of its own, far smaller than any volume. What Firecracker has
open may be another file than its name leads to: between the change of a link and the call that has it opened anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from torpor.base.fsio import remove_all
from torpor.errors import VmmFailed
from torpor.vmm.firecracker import given
from torpor.vmm.firecracker.config import DISK, SLOTS, volume_name

_NOTHING_BYTES = 4096
"""Size of a place's own file; not 0, or the guest's kernel has no news of what comes and goes."""
_GONE = " (deleted)"
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


def opened(inner: Path, pid: int) -> Mapping[str, Path]:
    """Return the disk that a machine has in each drive, as the kernel says; an empty place is not in it. Blocks.

    Raises:
        VmmFailed: the process's files cannot be looked at.
    """
    files = {path.name: given.of(inner.parent, path) for path in _files(pid)}
    found: dict[str, Path] = {}
    unsure: list[str] = []
    for name in (DISK, *map(volume_name, SLOTS)):
        target = inner / name
        with contextlib.suppress(OSError):
            target = target.readlink()
        if target.name not in files:
            unsure.append(name)
        elif target.name != name:
            found[name] = files[target.name]
    rest = [p for p in files.values() if p.suffix == ".raw" and p not in found.values()]
    if len(rest) == 1 and len(unsure) == 1:
        found[unsure[0]] = rest[0]
    elif rest:
        raise VmmFailed(
            f"Firecracker (process {pid}) has {rest[0]} open, in no drive that is known"
        )
    return found


def _files(pid: int) -> list[Path]:
    """Return the files that a process has open, as it calls them; the names of layers are never used twice."""
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append(Path(str(entry.readlink()).removesuffix(_GONE)))
    except OSError as exc:
        raise VmmFailed(
            f"the files of Firecracker (process {pid}) cannot be looked at: {exc}", pid=pid
        ) from exc
    return found
