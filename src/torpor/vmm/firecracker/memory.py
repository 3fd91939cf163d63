"""The pages that a machine changed, out of the file that Firecracker merges its diff snapshots into.

Firecracker writes memory in the same call as the state of devices, so that the two fit together: its devices go on
while the vCPUs stand still. It writes what changed since the last call, so all calls of a machine go into one file: no
page is lost when what was made of a call comes to nothing.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torpor.base.fsio import open_plain
from torpor.errors import VmmFailed
from torpor.layers.ram import PAGE, RamLayerWriter
from torpor.vmm.pages import copy_pages


def add_changed(
    file: Path, ram_bytes: int, changed: NDArray[np.int64] | None, writer: RamLayerWriter
) -> None:
    """Add the pages in `file`, which the VMM owns, to `writer`. Blocks.

    `changed` are the numbers of those that can have changed since a restore: the file system may keep pages that were
    never written beside those that were. None: the machine began with empty memory.

    Raises:
        VmmFailed: it is not the machine's memory.
    """
    with open_plain(file, os.O_RDONLY) as source:
        fd = source.fileno()
        size = os.fstat(fd).st_size
        if size != ram_bytes:
            raise VmmFailed(f"Firecracker saved {size} of {ram_bytes} bytes of memory")
        written = _written(fd, size)
        if changed is not None:
            can_be = np.zeros_like(written)
            can_be[changed] = True
            written &= can_be
        copy_pages(fd, np.flatnonzero(written), writer)


def _written(fd: int, size: int) -> NDArray[np.bool_]:
    """Return for each page whether the file has data there."""
    found = np.zeros(size // PAGE, dtype=np.bool_)
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno != errno.ENXIO:  # else: only a hole is left
                raise
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        found[start // PAGE : -(-at // PAGE)] = True
    return found
