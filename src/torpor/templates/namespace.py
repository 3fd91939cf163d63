"""Namespaces for a build: its own mounts and processes, which the kernel ends when we end.

As root these are a mount and a PID namespace. Otherwise a user namespace comes on top, in which this user
is root and the ids of /etc/subuid are the others; that needs newuidmap (package uidmap).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from torpor.base.fsio import remove_tree
from torpor.base.proc import HostCommandFailed, run
from torpor.errors import HostNotReady, OperationTimeout

_FIX = "sudo apt-get install uidmap, and give this user a range in /etc/subuid and /etc/subgid"
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def wrapped(argv: Sequence[str]) -> list[str]:
    """Return `argv` as a command that runs as root in namespaces of its own.

    The first process dies with the thread that starts it (setpriv), the namespace's first process with
    that one (unshare), and with it the kernel ends every process and drops every mount in there. So
    nothing outlives a builder, whatever killed it.
    """
    user = [] if os.geteuid() == 0 else ["--map-root-user", "--map-auto"]
    outer = ["setpriv", "--pdeathsig", "KILL", "unshare", *user]
    return [*outer, "--mount", "--pid", "--fork", "--kill-child=KILL", "--", *argv]


async def check() -> None:
    """Return if builds can have their namespaces here.

    Raises:
        HostNotReady: they cannot; the hint says what to do.
    """
    try:
        await run(wrapped(["true"]), timeout_s=20)
    except FileNotFoundError as exc:
        raise HostNotReady(
            f"{exc.filename} is not installed", hint="run: sudo apt-get install util-linux"
        ) from exc
    except (HostCommandFailed, OperationTimeout) as exc:
        raise HostNotReady(
            f"template builds need namespaces, and this user may not make them: {exc.message}",
            hint=_advice(),
        ) from exc


def _advice() -> str:
    if os.geteuid() == 0:
        return "run the build where root may unshare mounts and processes"
    try:
        if _APPARMOR.read_text().strip() == "1":
            return "run: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0  (or build as root)"
    except OSError:
        pass
    return f"run: {_FIX}"


async def remove_image_tree(path: Path) -> None:
    """Remove a tree in which files may belong to users that only the namespace may act as."""
    if os.geteuid() != 0:
        await run(wrapped(["rm", "-rf", "--", str(path)]), timeout_s=300, check=False)
    await asyncio.to_thread(remove_tree, path)
