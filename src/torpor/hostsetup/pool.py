"""A file that holds an XFS file system, for a home on a host whose own file system cannot share blocks.

On XFS the copy of a disk or of a RAM image shares its blocks with the original until one of them is written.
Nothing is mounted here and no existing file is touched: the commands that do so are returned as text.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torpor.base.fsio import can_reflink, free_bytes, fsync_dir, fsync_file
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
    fd, name = await asyncio.to_thread(_reserve, file, size_bytes)
    work = Path(name)
    try:
        os.close(fd)
        await run([tool, "-q", "-f", "-m", "reflink=1", str(work)], timeout_s=120)
        await asyncio.to_thread(fsync_file, work)
        await asyncio.to_thread(os.link, work, file)  # never over a file that came meanwhile
    except FileExistsError as exc:
        raise Conflict(f"{file} was made by somebody else meanwhile; it was not touched") from exc
    finally:
        await asyncio.to_thread(work.unlink, missing_ok=True)
    await asyncio.to_thread(fsync_dir, file.parent)


def _reserve(file: Path, size_bytes: int) -> tuple[int, str]:
    """Return a new file beside `file` that has all its blocks: a pool must not run dry under its file system."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        free = free_bytes(file.parent)
        if free < size_bytes:
            raise InsufficientResources(
                f"{file.parent} has {format_bytes(free)} free; a pool of {format_bytes(size_bytes)} is wanted",
                free_bytes=free,
                needed_bytes=size_bytes,
            )
        fd, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".tmp", dir=file.parent)
    except OSError as exc:
        raise NotAllowed(f"{file.parent}: {exc.strerror}", hint="run it as root") from exc
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as exc:
        os.close(fd)
        Path(name).unlink()
        raise InsufficientResources(
            f"{file.parent} has no room for {format_bytes(size_bytes)}: {exc.strerror}"
        ) from exc
    return fd, name


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
    line = f"{file} {at} xfs loop,nofail 0 0"
    commands = [
        f"mkdir -p {target}",
        f"mount -o loop {source} {target}",
        f"chown {os.geteuid()} {target}",
        f"grep -qF {shlex.quote(f'{file} {at} ')} /etc/fstab || echo {shlex.quote(line)} >>/etc/fstab",
    ]
    if at != home:
        commands.append(f"export TORPOR_HOME={target}  # {home} stays as it is")
    return tuple(commands)
