"""Starts processes by way of the spawner, and learns how every process below us ended."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import marshal
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from torpor_guest import errors, proctree, spawner
from torpor_guest.cgroups import Cgroups
from torpor_guest.errors import AgentError
from torpor_guest.spawner_link import Answer, Gone, NotTaken, OnExit, SpawnerLink
from torpor_guest.threads import in_own_thread

_PR_SET_CHILD_SUBREAPER = 36
START_LIMIT_S = 60.0
"""How long a start may take before the spawner is given up."""
_SPAWNERS_MOST = 2
"""How many spawners are asked for one start: one may just have died, before it took the request."""


class StartLost(AgentError):
    """Raised when whether a process was started is not known; if it was, it has been killed."""


@dataclass
class Program:
    """What a process is to become."""

    argv: list[bytes]
    programs: list[bytes]
    """Files to try, in order."""
    env: dict[bytes, bytes]
    cwd: bytes = b"/"
    user: tuple[int, int, list[int]] | None = None
    """uid, gid and groups; None: the agent's own."""
    has_terminal: bool = False
    """Whether its descriptors are a terminal, which is to control it."""


@dataclass
class Child:
    """A process that was started."""

    pid: int
    cgroup: str


class Launcher:
    """Owns the spawner, and the reaping of all our children."""

    def __init__(self, cgroups: Cgroups) -> None:
        self.cgroups = cgroups
        self._link: SpawnerLink | None = None
        self._links: dict[int, SpawnerLink] = {}
        """All spawners that have not been reaped, by pid."""
        self._orphans: dict[int, OnExit] = {}
        """Processes whose spawner died: our own children now."""
        self._turn = asyncio.Lock()
        self._groups = 0
        self._lingering: set[str] = set()
        self._launching: set[asyncio.Task[Child]] = set()

    def start(self) -> None:
        """Become the parent of all orphans below us, and start the spawner."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._open_link()

    async def launch(self, program: Program, fds: Sequence[int], on_exit: OnExit) -> Child:
        """Start `program` with stdin, stdout and stderr from `fds`; `on_exit` is told of its end.

        Raises:
            StartLost: whether it was started is not known; if it was, it has been killed. `on_exit` is not told.
            AgentError: it could not be started; nothing runs.
        """
        own = [os.dup(fd) for fd in fds]  # a cancelled caller closes its own before they are sent
        task = asyncio.get_running_loop().create_task(self._launch(program, own, on_exit))
        self._launching.add(task)
        task.add_done_callback(self._launching.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._end_unwanted)
            raise

    def _end_unwanted(self, task: asyncio.Task[Child]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.kill(task.result())
            self.release(task.result().cgroup)

    async def _launch(self, program: Program, fds: list[int], on_exit: OnExit) -> Child:
        try:
            async with self._turn:
                cgroup, answer = await self._ask(program, fds, on_exit)
        finally:
            for fd in fds:
                os.close(fd)
        if answer is None:
            await self._end_lost(program, cgroup)
            raise StartLost(
                errors.LOST,
                "the process that makes the agent's processes ended meanwhile;"
                " whether the command was started is not known",
            )
        kind, value, step = answer
        if kind == spawner.STARTED:
            return Child(value, cgroup)
        self.release(cgroup)
        raise _refusal(spawner.STEPS[step], value, program)

    async def _ask(
        self, program: Program, fds: list[int], on_exit: OnExit
    ) -> tuple[str, Answer | None]:
        """Return the cgroup and what the spawner answered; None: it took the request, and is gone."""
        parent = self.cgroups.parent
        for _ in range(_SPAWNERS_MOST):
            try:
                link = self._open_link()
            except OSError as exc:
                raise errors.from_os(exc, "start the process that makes processes") from exc
            self._groups += 1
            cgroup = f"{parent}/{os.getpid()}-{self._groups}" if parent else ""
            body = marshal.dumps(
                (
                    cgroup,
                    program.user,
                    program.cwd,
                    program.programs,
                    program.argv,
                    program.env,
                    program.has_terminal,
                )
            )
            request = len(body).to_bytes(4, "big") + body
            try:
                return cgroup, await link.ask(request, fds, on_exit, START_LIMIT_S)
            except Gone:  # it is not tried again
                return cgroup, None
            except NotTaken:
                if link.was_given_up:
                    break
        raise AgentError(
            errors.FAILED, "the agent cannot make processes; the command was not started"
        )

    async def _end_lost(self, program: Program, cgroup: str) -> None:
        """Kill what may have been started."""
        marker = program.env.get(os.fsencode(proctree.MARKER))
        if cgroup:
            self.cgroups.kill(cgroup)
        elif marker:
            await in_own_thread(proctree.kill_tree, -1, os.fsdecode(marker))
        self.release(cgroup)

    def kill(self, child: Child) -> None:
        """Kill a process that `launch` returned and that has not ended, with all that descends from it."""
        if child.cgroup:
            self.cgroups.kill(child.cgroup)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    def release(self, cgroup: str) -> None:
        """Remove `cgroup` now, or when the last process in it has ended."""
        if cgroup and not self.cgroups.remove(cgroup):
            self._lingering.add(cgroup)

    def close(self) -> None:
        """Let the spawner go."""
        if self._link:
            self._link.close()

    def _open_link(self) -> SpawnerLink:
        """Return a spawner that can be asked. Raises `OSError`."""
        if self._link is None or not self._link.is_open:
            self._link = SpawnerLink(str(self.cgroups.home or ""), self._on_news)
            self._links[self._link.pid] = self._link
        return self._link

    def _on_news(self) -> None:
        if self._lingering:
            self._remove_lingering()

    # The ends of processes

    def _reap(self) -> None:
        """Reap our own children: spawners, orphans, and what a spawner that died has left us."""
        dead = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid in self._links:
                dead.append(self._links[pid])
            else:
                self._ended(pid, status)
        for link in dead:
            self._spawner_gone(link)
        self._remove_lingering()

    def _spawner_gone(self, link: SpawnerLink) -> None:
        """After a spawner died: who of its own is not our child now had ended before, and nobody told how."""
        del self._links[link.pid]
        link.close()
        for pid, on_exit in link.children.items():
            try:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                on_exit(None)
            else:
                self._orphans[pid] = on_exit

    def _ended(self, pid: int, status: int) -> None:
        for children in (self._orphans, *(link.children for link in self._links.values())):
            on_exit = children.pop(pid, None)
            if on_exit:
                on_exit(status)
                return

    def _remove_lingering(self) -> None:
        self._lingering = {group for group in self._lingering if not self.cgroups.remove(group)}


def _refusal(step: str, number: int, program: Program) -> AgentError:
    what = {
        "cwd": f"the working directory {os.fsdecode(program.cwd)!r} cannot be entered",
        "program": f"the program {os.fsdecode(program.argv[0])!r} cannot be run",
        "user": "the user cannot be taken on",
    }.get(step, "the command cannot be started")
    code = errors.FAILED if step in ("user", "cgroup") else errors.INVALID
    if number == errno.E2BIG:
        code, what = (
            errors.LIMIT,
            "the command and its environment are too long for the guest's kernel",
        )
    name = errno.errorcode.get(number, str(number))
    return AgentError(code, f"{what}: {os.strerror(number)}", step=step, errno=name)
