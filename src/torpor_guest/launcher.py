"""Starts processes by way of the spawner, and learns how every process below us ended."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import marshal
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from torpor_guest import errors, spawner
from torpor_guest.cgroups import Cgroups
from torpor_guest.errors import AgentError

OnExit = Callable[[Optional[int]], None]  # noqa: UP045  # evaluated in Python 3.9
"""Gets the wait status of a process; None: it has ended, and how is not known."""

_PR_SET_CHILD_SUBREAPER = 36
_START_LIMIT_S = 60.0


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


@dataclass
class Child:
    """A process that was started."""

    pid: int
    cgroup: str


@dataclass
class _Asked:
    """What the spawner is to answer."""

    answer: asyncio.Future[tuple[bytes, int, int]]
    on_exit: OnExit


class Launcher:
    """Owns the spawner, and the reaping of all our children."""

    def __init__(self, cgroups: Cgroups) -> None:
        self.cgroups = cgroups
        self._on_exit: dict[int, OnExit] = {}
        self._control: socket.socket | None = None
        self._spawner_pid = 0
        self._received = b""
        self._asked: _Asked | None = None
        self._turn = asyncio.Lock()
        self._groups = 0
        self._lingering: set[str] = set()
        self._launching: set[asyncio.Task[Child]] = set()

    def start(self) -> None:
        """Become the parent of all orphans below us, and start the spawner."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._start_spawner()

    async def launch(self, program: Program, fds: Sequence[int], on_exit: OnExit) -> Child:
        """Start `program` with stdin, stdout and stderr from `fds`; `on_exit` is told of its end.

        Raises:
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
                return await self._ask(program, fds, on_exit)
        finally:
            for fd in fds:
                os.close(fd)

    async def _ask(self, program: Program, fds: list[int], on_exit: OnExit) -> Child:
        loop = asyncio.get_running_loop()
        control = self._control or self._start_spawner()
        self._groups += 1
        parent = self.cgroups.parent
        cgroup = f"{parent}/{os.getpid()}-{self._groups}" if parent else ""
        asked = self._asked = _Asked(loop.create_future(), on_exit)
        timer = loop.call_later(_START_LIMIT_S, self._give_up)
        try:
            await self._send(control, program, cgroup, fds)
            kind, value, step = await asked.answer
        except OSError as exc:  # whether it was started is not known, so it is not tried again
            if cgroup:
                self.cgroups.kill(cgroup)
            self.release(cgroup)
            raise AgentError(errors.FAILED, "the agent cannot make processes") from exc
        finally:
            timer.cancel()
            self._asked = None
        if kind == spawner.STARTED:
            return Child(value, cgroup)
        self.release(cgroup)
        raise _refusal(spawner.STEPS[step], value, program)

    async def _send(
        self, control: socket.socket, program: Program, cgroup: str, fds: list[int]
    ) -> None:
        body = marshal.dumps(
            (cgroup, program.user, program.cwd, program.programs, program.argv, program.env)
        )
        data = len(body).to_bytes(4, "big") + body
        sent = socket.send_fds(control, [data], fds)
        if sent < len(data):
            await asyncio.get_running_loop().sock_sendall(control, data[sent:])

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
        self._drop_spawner()

    # The spawner

    def _start_spawner(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        script = str(Path(__file__).with_name("spawner.py"))
        fd = os.dup(theirs.fileno())
        theirs.close()
        os.set_inheritable(fd, True)
        try:
            self._spawner_pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", script, str(fd), str(self.cgroups.home or "")],
                {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
            )
        finally:
            os.close(fd)
        self._control, self._received = ours, b""
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)
        return ours

    def _on_readable(self) -> None:
        """Take what the spawner says; a command's end is told after its start."""
        control = self._control
        if control is None:
            return
        try:
            data = control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        size = spawner.RECORD.size
        while len(self._received) >= size:
            record, self._received = self._received[:size], self._received[size:]
            self._take(*spawner.RECORD.unpack(record))
        if not data:
            self._drop_spawner()
        elif self._lingering:
            self._remove_lingering()

    def _take(self, kind: bytes, value: int, more: int) -> None:
        if kind == spawner.ENDED:
            self._ended(value, more)
        elif self._asked and not self._asked.answer.done():
            if kind == spawner.STARTED:
                self._on_exit[value] = self._asked.on_exit
            self._asked.answer.set_result((kind, value, more))

    def _give_up(self) -> None:
        """End a spawner that does not answer; who waits is told."""
        if self._spawner_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._spawner_pid, signal.SIGKILL)
        self._drop_spawner()

    def _drop_spawner(self) -> None:
        if self._control:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._asked and not self._asked.answer.done():
            self._asked.answer.set_exception(ConnectionResetError("the spawner is gone"))

    # The ends of processes

    def _reap(self) -> None:
        """Reap our own children: the spawner, orphans, and what a spawner that died has left us."""
        is_orphaned = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid == self._spawner_pid:
                is_orphaned = True
            self._ended(pid, status)
        if is_orphaned:
            self._spawner_gone()
        self._remove_lingering()

    def _spawner_gone(self) -> None:
        """After the spawner died: whoever is not our child now had ended before, and nobody told how."""
        self._spawner_pid = 0
        while self._control is not None:  # what it had still said
            self._on_readable()
        for pid in list(self._on_exit):
            try:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._ended(pid, None)

    def _ended(self, pid: int, status: int | None) -> None:
        on_exit = self._on_exit.pop(pid, None)
        if on_exit:
            on_exit(status)

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
