"""Reading a stopped machine's memory through QEMU itself, where the host forbids reading it from outside.

/proc/PID/mem needs root, or the same user and, with yama.ptrace_scope=1, that we started the process; a daemon that
was restarted did not. QMP's `pmemsave` writes any part of the guest's *physical* memory to a file. Which pages
changed, /proc/PID/pagemap still tells the same user.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torpor.base.units import GIB, MIB
from torpor.errors import VmmFailed
from torpor.layers.ram import PAGE, RamLayerWriter

_LOW_MOST = 2816 * MIB
"""q35 keeps all memory below 4 GiB when it is smaller than this (0xb0000000) …"""
_LOW = 2 * GIB
"""… else so much of it; the rest begins at 4 GiB. See `pc_q35_init` in QEMU's hw/i386/pc_q35.c."""
_HIGH = 4 * GIB
_HIDDEN = range(0xA0000 // PAGE, 0xC0000 // PAGE)
"""Pages of memory behind the video hole: the firmware's own, which no physical address shows."""
_CHUNK = 16 * MIB

Save = Callable[[int, int, Path], Awaitable[None]]
"""Writes so many bytes from a physical address on to a file."""


def address_of(offset: int, ram_bytes: int) -> int:
    """Return the guest's physical address of a byte of the RAM file."""
    if not 0 <= offset < ram_bytes:
        raise ValueError(f"{offset} is not within {ram_bytes} bytes of RAM")
    if ram_bytes < _LOW_MOST or offset < _LOW:
        return offset
    return _HIGH + offset - _LOW


def pieces(pages: NDArray[np.int64], ram_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (address, first page, pages) for pages in rising order: side by side, and not over the hole or a chunk."""
    most = _CHUNK // PAGE
    split = _LOW // PAGE if ram_bytes >= _LOW_MOST else -1
    if not len(pages):
        return
    starts = np.flatnonzero(np.concatenate(([True], (np.diff(pages) != 1) | (pages[1:] == split))))
    for start, end in zip(starts.tolist(), [*starts.tolist()[1:], len(pages)], strict=True):
        first = int(pages[start])
        for at in range(first, first + end - start, most):
            yield address_of(at * PAGE, ram_bytes), at, min(most, first + end - start - at)


async def capture(
    save: Save, work: Path, pages: NDArray[np.int64], ram_bytes: int, writer: RamLayerWriter
) -> None:
    """Add these pages of a stopped machine to `writer`.

    `work` is a file that QEMU may write; it is gone afterwards.

    Raises:
        VmmFailed: QEMU did not write it, or a page is wanted that it does not show.
    """
    if np.isin(pages, np.arange(_HIDDEN.start, _HIDDEN.stop)).any():
        raise VmmFailed(
            "memory that only the firmware sees changed, and QEMU does not show it",
            hint="run the daemon as root, or let it read its machines: sysctl kernel.yama.ptrace_scope=0",
        )
    try:
        for address, first, count in pieces(pages, ram_bytes):
            await asyncio.to_thread(work.unlink, missing_ok=True)
            await save(address, count * PAGE, work)
            await asyncio.to_thread(_add, work, first, count, writer)
    finally:
        await asyncio.to_thread(work.unlink, missing_ok=True)


def _add(work: Path, first: int, count: int, writer: RamLayerWriter) -> None:
    # QEMU owns the folder: what lies there may be a link, or anything else
    with os.fdopen(os.open(work, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        data = file.read(count * PAGE + 1)
    if len(data) != count * PAGE:
        raise VmmFailed(f"QEMU saved {len(data)} of {count * PAGE} bytes of memory")
    writer.add(np.arange(first, first + count), memoryview(data))
