"""How much of the host's disk files take, and what a copy of them does: where the file system shares blocks, nothing."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from torpor.base.fsio import can_reflink
from torpor.layers.whole import WHOLE


def allocated(path: Path) -> int:
    """Return the bytes of disk that a plain file takes, holes not counted; 0 for what is none, or is gone. Blocks."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0


def copy_bytes(layers: Sequence[Path], folder: Path) -> int:
    """Return at most how many bytes a copy of the disk that `layers` are, the oldest first, takes beside them. Blocks.

    `folder` is one of ours in the same file system.
    """
    total = 0
    for path in reversed(layers):
        total += allocated(path)
        if path.suffix == WHOLE:  # nothing below it matters
            break
    is_clone = bool(layers) and layers[-1].suffix == WHOLE  # else qemu-img writes it anew
    return 0 if not total or (is_clone and _shares_blocks(folder)) else total


def _shares_blocks(folder: Path) -> bool:
    try:
        return can_reflink(folder)
    except OSError:  # a full disk has no room to try it
        return False
