"""Work on layers in a process of its own, at the lowest priority, that ends when we do: it must not slow a capture.

Disk layers hold what guests and their VMMs wrote, so a program that parses them may be taken over. As root it is
run under a user who may read layers and nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from torpor.errors import HostNotReady
from torpor.layers.seal import LAYERS_GID

READER_UID = LAYERS_GID
"""Reads layers, and owns what it is making; no machine runs under it."""


def lowly(argv: Sequence[str], *, confined: bool = False) -> list[str]:
    """Return the argv that runs `argv` so; `confined`: as root, under the readers' user.

    Raises:
        HostNotReady: a tool for it is missing.
    """
    ionice = shutil.which("ionice")
    return [
        *bounded(confined=confined),
        *(_tool("nice"), "-n19"),
        *((ionice, "-c3") if ionice else ()),
        *argv,
    ]


def bounded(*, confined: bool) -> list[str]:
    """Return what goes before an argv that gains no rights and ends when we do; `confined`: see `lowly`.

    Raises:
        HostNotReady: a tool for it is missing.
    """
    other = confined and os.geteuid() == 0
    return [
        _tool("setpriv"),
        *((f"--reuid={READER_UID}", f"--regid={LAYERS_GID}", "--clear-groups") if other else ()),
        "--no-new-privs",
        "--pdeathsig=KILL",
    ]


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise HostNotReady(
            f"{name} is needed to read layers that machines wrote",
            hint="run: sudo apt-get install util-linux coreutils",
        )
    return found


def make_for_reader(path: Path) -> None:
    """Make the empty file `path` (new) for a confined process of `lowly` to write. Blocks."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if os.geteuid() == 0:
        os.chown(path, READER_UID, LAYERS_GID)
