"""Holding still what acts by itself, in a machine that is only looked at: schedulers, and an agent's own.

Control groups are frozen and processes stopped, which takes effect at once and asks nobody. Timers are systemd's
own, so it is told to stop them; a user's are held with the manager that would start what they name. Nothing lets go:
such a machine is thrown away.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor_guest import errors, proctree
from torpor_guest.errors import AgentError
from torpor_guest.kernel import Kernel
from torpor_guest.programs import Programs

CGROUPS = "/sys/fs/cgroup"
SYSTEMD = "/run/systemd/system"
"""Is there when systemd runs the machine."""
_SLICES = ("system.slice", "user.slice")
_USER_MANAGER = re.compile(r"user@[0-9]+\.service")
_DEPTH_MOST = 8
_MOST = 100
_TEXT_MOST = 256
_TIMERS_LIMIT_S = 60.0


@dataclass(frozen=True)
class Wanted:
    """What is to be held."""

    units: tuple[str, ...]
    """Patterns of the names of services."""
    processes: tuple[str, ...]
    """Regular expressions that are found in command lines."""

    @staticmethod
    def parse(raw: object) -> Wanted:
        """Return what the host asks for, or raise `AgentError`."""
        if not isinstance(raw, dict):
            raise AgentError(errors.INVALID, "what is to be held still is no object")
        return Wanted(_texts(raw, "units"), _texts(raw, "processes"))


class Stillness:
    """Holds things still; may be asked again for more."""

    def __init__(self, kernel: Kernel, programs: Programs) -> None:
        self._kernel = kernel
        self._programs = programs

    async def hold(self, wanted: Wanted) -> dict[str, Any]:
        """Hold; return the groups that are frozen and the processes that are stopped. Nothing may be frozen on disk.

        Raises:
            AgentError: something is there and could not be held.
        """
        held = self.hold_at_once(wanted)
        await self.stop_timers()
        return held

    def hold_at_once(self, wanted: Wanted) -> dict[str, Any]:
        """Hold all but timers, which asks nobody and writes nothing. Raises `AgentError`."""
        patterns = [_compiled(text) for text in wanted.processes]
        groups = self._freeze(wanted.units)
        return {"groups": groups, "processes": _stop(patterns) if patterns else []}

    def _freeze(self, units: Sequence[str]) -> list[str]:
        root, frozen = self._kernel.path(CGROUPS), []
        own = proctree.cgroup_of(os.getpid()).lstrip("/")
        for group in _groups(root):
            name = group.name
            is_manager = name == "init.scope" and _USER_MANAGER.fullmatch(group.parent.name)
            if not is_manager and not any(fnmatch.fnmatchcase(name, unit) for unit in units):
                continue
            place = str(group.relative_to(root))
            if own == place or own.startswith(f"{place}/"):
                continue
            try:
                (group / "cgroup.freeze").write_bytes(b"1")
            except FileNotFoundError:  # it has ended
                continue
            except OSError as exc:
                raise AgentError(errors.FAILED, f"hold {name}: {exc.strerror or exc}") from exc
            frozen.append(place[:_TEXT_MOST])
        return frozen[:_MOST]

    async def stop_timers(self) -> None:
        """Have systemd, if there is one, stop its timers. Raises `AgentError`."""
        if not self._kernel.path(SYSTEMD).is_dir():
            return
        argv = ["systemctl", "stop", "*.timer"]
        status, said = await self._programs.run(argv, timeout_s=_TIMERS_LIMIT_S)
        if status != 0:
            raise AgentError(
                errors.FAILED, f"the timers could not be stopped: {said[-200:].strip()}"
            )


def _groups(root: Path) -> Iterator[Path]:
    """Yield the control groups of the system's and the users' services."""
    pending = [(root / name, 1) for name in _SLICES]
    while pending:
        folder, depth = pending.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            found = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
            yield from found
            if depth < _DEPTH_MOST:
                pending += [(path, depth + 1) for path in found]


def _stop(patterns: Sequence[re.Pattern[str]]) -> list[str]:
    """Stop the processes whose command line has one of these in it; not what we run ourselves."""
    own = proctree.cgroup_of(os.getpid())
    stopped = []
    for process in proctree.scan().values():
        command = proctree.command_of(process)
        if process.is_kernel or not any(pattern.search(command) for pattern in patterns):
            continue
        if _is_ours(process, own):
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)
            stopped.append(command[:_TEXT_MOST])
    return stopped[:_MOST]


def _is_ours(process: proctree.Process, own: str) -> bool:
    """Return whether a process is the agent's own; `own` is its control group. All orphans are its children."""
    if process.pid in (1, os.getpid()):
        return True
    if own in ("", "/"):
        return process.ppid == os.getpid()
    return proctree.cgroup_of(process.pid) == own


def _texts(raw: dict[str, Any], name: str) -> tuple[str, ...]:
    found = raw.get(name, [])
    if (
        not isinstance(found, list)
        or len(found) > _MOST
        or not all(isinstance(text, str) and 0 < len(text) <= _TEXT_MOST for text in found)
    ):
        raise AgentError(errors.INVALID, f"{name} is no list of up to {_MOST} texts")
    return tuple(found)


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as exc:
        raise AgentError(errors.INVALID, f"{text!r} is no regular expression: {exc}") from exc
