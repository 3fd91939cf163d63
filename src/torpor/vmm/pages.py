"""Reading the memory that a stopped VMM changed since it was started.

The machine's RAM is a private mapping of a file. A page that was written became an anonymous page of the process:
in /proc/PID/pagemap it is present (bit 63) or swapped (bit 62) and no file page (bit 61); see the kernel's
Documentation/admin-guide/mm/pagemap.rst. Those pages, and no others, differ from the file.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torpor.errors import VmmFailed
from torpor.layers.ram import PAGE, RamLayerWriter
from torpor.layers.space import FULL

_CHUNK = 4 << 20
_ENTRY = 8


@dataclass(frozen=True, slots=True)
class _Area:
    """A piece of the process's address space that maps a piece of the RAM file."""

    start: int
    end: int
    offset: int


def capture(pid: int, ram: Path, ram_bytes: int, writer: RamLayerWriter) -> None:
    """Add all changed pages of process `pid`, which maps `ram` as its `ram_bytes` of memory, to `writer`. Blocks.

    Call it only while the vCPUs are stopped.

    Raises:
        PermissionError: its memory may not be read; nothing was added.
        VmmFailed: the process is gone, or does not map the file.
    """
    try:
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123 - unbuffered
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                for area in _areas(pid, ram, ram_bytes):
                    copy_pages(
                        memory,
                        _changed_pages(pagemap.fileno(), area),
                        writer,
                        begin=area.start,
                        first=area.offset // PAGE,
                    )
            finally:
                os.close(memory)
    except OSError as exc:
        if exc.errno in FULL or isinstance(exc, PermissionError):
            raise
        raise VmmFailed(
            f"the memory of the VMM (process {pid}) cannot be read: {exc}",
            pid=pid,
        ) from exc


def changed_pages(pid: int, ram: Path, ram_bytes: int) -> NDArray[np.int64]:
    """Return the numbers of all pages of process `pid`, which maps `ram`, that changed. Blocks.

    Raises:
        VmmFailed, OSError: it cannot be told.
    """
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123 - unbuffered
        return np.concatenate(
            [
                _changed_pages(pagemap.fileno(), area) + area.offset // PAGE
                for area in _areas(pid, ram, ram_bytes)
            ]
        )


def copy_pages(
    fd: int, pages: NDArray[np.int64], writer: RamLayerWriter, *, begin: int = 0, first: int = 0
) -> None:
    """Add `pages` of what begins at byte `begin` of a file to `writer`, as pages from number `first` on. Blocks.

    They are read run by run into one buffer, and added a buffer at a time.
    """
    view = memoryview(bytearray(_CHUNK))
    for done in range(0, len(pages), _CHUNK // PAGE):
        batch = pages[done : done + _CHUNK // PAGE]
        starts = np.flatnonzero(np.concatenate(([True], np.diff(batch) != 1)))
        at = 0
        for page, count in zip(
            batch[starts].tolist(), np.diff(np.append(starts, len(batch))).tolist(), strict=True
        ):
            want = count * PAGE
            got = os.preadv(fd, [view[at : at + want]], begin + page * PAGE)
            if got != want:
                raise OSError(f"read {got} of {want} bytes of page {page}")
            at += want
        writer.add(batch + first, view[:at])


def _areas(pid: int, ram: Path, ram_bytes: int) -> list[_Area]:
    """Return where the RAM file is mapped, in the file's order; told by device and inode, not by name.

    The VMM owns the file of a machine that was booted cold, and is not believed about its size.
    """
    wanted = _identity(ram)
    areas = []
    for span, mode, offset, *identity in _mappings(pid):
        if tuple(identity) == wanted and mode[3] == "p":
            start, _, end = span.partition("-")
            areas.append(_Area(int(start, 16), int(end, 16), int(offset, 16)))
    areas.sort(key=lambda area: area.offset)
    mapped = sum(area.end - area.start for area in areas)
    if mapped != ram_bytes or areas[-1].offset + areas[-1].end - areas[-1].start > ram_bytes:
        raise VmmFailed(
            f"the VMM (process {pid}) maps {mapped} of {ram_bytes} bytes of {ram}", pid=pid
        )
    return areas


def _identity(file: Path) -> tuple[str, str]:
    """Return the device and inode that lists of mappings have for a file: on btrfs they are not those of `stat`.

    The kernel is asked by mapping a page of it. Whoever owns the file may have put anything in its place.
    """
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size < PAGE:
            raise VmmFailed(f"{file} is no file that a machine's memory can be mapped from")
        with mmap.mmap(fd, PAGE, access=mmap.ACCESS_COPY) as page:
            address = np.frombuffer(page, np.uint8).ctypes.data
            for span, _, _, device, inode in _mappings(os.getpid()):
                start, _, end = span.partition("-")
                if int(start, 16) <= address < int(end, 16):
                    return device, inode
    except ValueError as exc:  # it was cut meanwhile
        raise VmmFailed(f"{file} cannot be mapped: {exc}") from exc
    finally:
        os.close(fd)
    raise VmmFailed(f"the kernel does not say which file a page of {file} is mapped from")


def _mappings(pid: int) -> Iterator[list[str]]:
    """Yield each mapping of a process: its span, mode, offset, device and inode."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        yield line.split(maxsplit=5)[:5]


def _changed_pages(pagemap: int, area: _Area) -> NDArray[np.int64]:
    """Return the numbers of the changed pages in an area, counted from its start."""
    pages = (area.end - area.start) // PAGE
    data = os.pread(pagemap, pages * _ENTRY, area.start // PAGE * _ENTRY)
    if len(data) != pages * _ENTRY:
        raise OSError(f"the page map ended after {len(data)} bytes")
    entries = np.frombuffer(data, dtype=np.uint64)
    there = (entries >> np.uint64(62)) != 0
    anonymous = (entries >> np.uint64(61)) & np.uint64(1) == 0
    return np.flatnonzero(there & anonymous)
