"""Copying a stopped machine's changed memory once, by hand: the floor of a snapshot's pause."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torpor.base.units import MIB

_PAGE = 4096
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy moved, and how long it took."""

    mib: float
    seconds: float


def copy_changed(pid: int, image: Path, out: Path) -> Copied:
    """Copy the pages of the stopped process `pid` that differ from `image`, which it maps, to `out` (new).

    They are the private pages of the mapping: present or swapped, and no longer the file's. Blocks.

    Raises:
        OSError: the process is gone, or its memory may not be read.
    """
    begun = time.perf_counter()
    start, end = _mapping(pid, image)
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123 - unbuffered
        entries = np.frombuffer(
            os.pread(pagemap.fileno(), (end - start) // _PAGE * 8, start // _PAGE * 8),
            dtype=np.uint64,
        )
    there = (entries >> np.uint64(62)) != 0
    pages = np.flatnonzero(there & ((entries >> np.uint64(61)) & np.uint64(1) == 0))
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    target = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(target, end - start)
        for first, last in _runs(pages):
            for at in range(first * _PAGE, last * _PAGE, _MOST_BYTES):
                data = os.pread(memory, min(_MOST_BYTES, last * _PAGE - at), start + at)
                os.pwrite(target, data, at)
    finally:
        os.close(memory)
        os.close(target)
    return Copied(len(pages) * _PAGE / MIB, time.perf_counter() - begun)


def _runs(pages: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Return the runs of side-by-side pages as first and behind-the-last."""
    if not len(pages):
        return []
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    firsts = pages[np.concatenate(([0], breaks))]
    lasts = pages[np.concatenate((breaks - 1, [len(pages) - 1]))] + 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _mapping(pid: int, image: Path) -> tuple[int, int]:
    inode = image.stat().st_ino
    spans = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _, _, _, found = line.split(maxsplit=5)[:5]
        if int(found) == inode:
            start, _, end = span.partition("-")
            spans.append((int(start, 16), int(end, 16)))
    if len(spans) != 1:
        raise OSError(f"process {pid} maps {image} {len(spans)} times")
    return spans[0]
