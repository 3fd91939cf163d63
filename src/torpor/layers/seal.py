"""Making a finished file immutable, and readable for the machines that share it.

As root each VMM runs under a user of its own (see `vmm.confine`); all of them have the group `LAYERS_GID`.
"""

from __future__ import annotations

import os
from pathlib import Path

LAYERS_GID = 1_900_000_000
"""Group of the files that VMMs may read; above every range that systemd, containers and subuid files use."""


def reclaim(path: Path) -> None:
    """Make a file that a VMM wrote ours alone again: its user may be given to another machine."""
    if os.geteuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(0o600)


def seal(path: Path | int) -> None:
    """Take all write permission from a file, or what a descriptor is of, and let VMMs read it."""
    if os.geteuid() == 0:
        os.chown(path, 0, LAYERS_GID)
        os.chmod(path, 0o440)  # noqa: PTH101 - it may be a descriptor
    else:
        os.chmod(path, 0o400)  # noqa: PTH101


def seal_again(path: Path) -> None:
    """Seal a file whose owner or mode were lost, as by a copy of the home that keeps neither.

    Raises:
        FileNotFoundError: it is gone.
    """
    found = path.stat()
    as_root = (0, LAYERS_GID, 0o440)
    if os.geteuid() == 0:
        is_sealed = (found.st_uid, found.st_gid, found.st_mode & 0o777) == as_root
    else:
        is_sealed = found.st_mode & 0o777 == 0o400
    if not is_sealed:
        seal(path)
