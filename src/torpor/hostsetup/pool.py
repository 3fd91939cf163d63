"""A file that holds an XFS file system, for a home on a host whose own file system cannot share blocks.

On XFS the copy of a disk or of a RAM image shares its blocks with the original until one of them is written.
Nothing is mounted here and no existing file is touched: the commands that do so are returned as text.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torpor.base.fsio import can_reflink, free_bytes
from torpor.base.proc import run
from torpor.base.units import GIB, format_bytes
from torpor.errors import (
    Conflict,
    HostNotReady,
    InsufficientResources,
    InvalidRequest,
    NotAllowed,
)
from torpor.templates.debian import find_tool

SMALLEST_BYTES = 4 * GIB
"""One template, its snapshot, and a few sandboxes."""

_MAGIC = b"XFSB"
_NAMELESS_UNKNOWN = frozenset({errno.EOPNOTSUPP, errno.EISDIR})
"""What a file system says to O_TMPFILE that does not know it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool file and what is to be done with it."""

    file: Path
    size_bytes: int
    changed: bool
    """False: it was there already."""
    mounted: bool
    """A file system that can share blocks is at `mount_point` already."""
    mount_point: Path
    commands: tuple[str, ...]
    """Run as root; empty when nothing is left to do."""


async def make_pool(
    file: Path, size_bytes: int, mount_point: Path, *, smallest: int = SMALLEST_BYTES
) -> Pool:
    """Make the pool file unless it is there, and say how it becomes the home's file system.

    Raises:
        InvalidRequest: it is too small.
        Conflict: the file is there and is no XFS.
        HostNotReady: mkfs.xfs is missing.
        InsufficientResources: the disk has no room for it.
        NotAllowed: its folder is not ours to write.
    """
    if size_bytes < smallest:
        raise InvalidRequest(
            f"a pool of {format_bytes(size_bytes)} is too small; {format_bytes(smallest)} is the least"
        )
    changed = not await asyncio.to_thread(_is_there, file)
    if changed:
        await _make(file, size_bytes)
    else:
        size_bytes = (await asyncio.to_thread(file.stat)).st_size
    at = await asyncio.to_thread(_place, mount_point)
    mounted = await asyncio.to_thread(_shares_blocks, at)
    return Pool(
        file,
        size_bytes,
        changed,
        mounted,
        at,
        () if mounted else _commands(file, at, mount_point),
    )


def _is_there(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            head = opened.read(len(_MAGIC))
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise NotAllowed(f"{file} cannot be read: {exc.strerror}", hint="run it as root") from exc
    if head != _MAGIC:
        raise Conflict(
            f"{file} is there already and holds no XFS file system; it was not touched",
            hint="name another file with --pool-file",
        )
    return True


async def _make(file: Path, size_bytes: int) -> None:
    tool = find_tool("mkfs.xfs")
    if tool is None:
        raise HostNotReady("mkfs.xfs is not installed", hint="run: sudo apt-get install xfsprogs")
    fd, work = await asyncio.to_thread(_open, file)
    try:
        await asyncio.to_thread(_reserve, fd, file.parent, size_bytes)
        content = f"/proc/{os.getpid()}/fd/{fd}"
        await run([tool, "-q", "-f", "-m", "reflink=1", content], timeout_s=120)
        await asyncio.to_thread(_name, fd, file)
    finally:
        os.close(fd)
        if work is not None:
            await asyncio.to_thread(work.unlink)


def _open(file: Path) -> tuple[int, Path | None]:
    """Return a new file in the folder of `file`, and the name that it has where files without one cannot be.

    What has no name is gone when its last process is, however that ends.
    """
    folder = file.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), None
        except OSError as exc:
            if exc.errno not in _NAMELESS_UNKNOWN:
                raise
        fd, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".tmp", dir=folder)
    except OSError as exc:
        raise NotAllowed(f"{folder}: {exc.strerror}", hint="run it as root") from exc
    return fd, Path(name)


def _reserve(fd: int, folder: Path, size_bytes: int) -> None:
    """Give a file all its blocks: a pool must not run dry under its file system."""
    free = free_bytes(folder)
    if free < size_bytes:
        raise InsufficientResources(
            f"{folder} has {format_bytes(free)} free; a pool of {format_bytes(size_bytes)} is wanted",
            free_bytes=free,
            needed_bytes=size_bytes,
        )
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as exc:
        raise InsufficientResources(
            f"{folder} has no room for {format_bytes(size_bytes)}: {exc.strerror}"
        ) from exc


def _name(fd: int, file: Path) -> None:
    """Let an open file be at `file`, durably, but never over one that came meanwhile."""
    os.fsync(fd)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # with a folder that is open, Python asks for linkat, which follows the link to the open file
        os.link(f"/proc/self/fd/{fd}", file.name, dst_dir_fd=folder, follow_symlinks=True)
        os.fsync(folder)
    except FileExistsError as exc:
        raise Conflict(f"{file} was made by somebody else meanwhile; it was not touched") from exc
    finally:
        os.close(folder)


def _shares_blocks(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK) and can_reflink(folder)


def _place(home: Path) -> Path:
    """Return where the pool is to be: at the home, or beside one that has something in it and shares no blocks."""
    if not home.is_dir() or _shares_blocks(home) or not any(home.iterdir()):
        return home
    return home.with_name(f"{home.name}-xfs")


def _commands(file: Path, at: Path, home: Path) -> tuple[str, ...]:
    """Return what mounts the pool; a home that has something in it is left where it is."""
    source, target = shlex.quote(str(file)), shlex.quote(str(at))
    names = f"{_in_fstab(file)} {_in_fstab(at)} "
    line = f"{names}xfs loop,nofail 0 0"
    commands = [
        f"mkdir -p {target}",
        f"mount -o loop {source} {target}",
        f"chown {os.geteuid()} {target}",
        f"grep -qF {shlex.quote(names)} /etc/fstab || printf '%s\\n' {shlex.quote(line)} >>/etc/fstab",
    ]
    if at != home:
        commands.append(f"export TORPOR_HOME={target}  # {home} stays as it is")
    return tuple(commands)


def _in_fstab(path: Path) -> str:
    """Return a path as fstab has it: what divides its fields, and the backslash, in octal."""
    return re.sub(r"[\s\\]", lambda found: f"\\{ord(found[0]):03o}", str(path), flags=re.ASCII)
