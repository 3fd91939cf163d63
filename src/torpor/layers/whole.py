"""Layers that are whole disks (`.raw`), whatever lies below them.

Such a layer is made empty, and is filled when a machine gets it. Until then it is no disk at all: what lies below it
still counts.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

WHOLE = ".raw"


def is_unfilled(path: Path) -> bool:
    """Return whether a layer is a whole disk that no machine had yet. Blocks."""
    return path.suffix == WHOLE and is_empty(path)


def is_empty(path: Path) -> bool:
    """Return whether nothing was ever written to a file. Blocks."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_blocks == 0:
            return True
        try:
            os.lseek(file.fileno(), 0, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno != errno.ENXIO:
                raise
            return True  # its blocks are those of attributes
    return False
