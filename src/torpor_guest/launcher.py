"""Starts processes from the spares that the spawner made, and learns how every child of ours ended."""

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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor_guest import errors
from torpor_guest.cgroups import Cgroups
from torpor_guest.errors import AgentError

SPARES = 2
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
class Spare:
    """A process that waits for a command."""

    pid: int
    cgroup: str
    link: socket.socket


class Launcher:
    """Owns the spawner, the spares and the reaping of all our children."""

    def __init__(self, cgroups: Cgroups) -> None:
        self.cgroups = cgroups
        self._on_exit: dict[int, Callable[[int], None]] = {}
        self._spares: deque[Spare] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._asked = 0
        self._control: socket.socket | None = None
        self._spawner_pid = 0
        self._lingering: set[str] = set()

    def start(self) -> None:
        """Become the parent of all orphans below us, and ask for the first spares."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._refill()

    async def launch(
        self, program: Program, fds: Sequence[int], on_exit: Callable[[int], None]
    ) -> Spare:
        """Start `program` with stdin, stdout and stderr from `fds`; `on_exit` gets its wait status.

        Raises:
            AgentError: it could not be started; nothing runs.
        """
        while True:
            spare = await self._take()
            self._on_exit[spare.pid] = on_exit
            try:
                failure = await self._hand_over(spare, program, fds)
            except (BrokenPipeError, ConnectionResetError):  # the spare died before its time
                self._on_exit.pop(spare.pid, None)
                self.release(spare.cgroup)
                continue
            finally:
                spare.link.close()
                asyncio.get_running_loop().call_later(0.005, self._refill)
            if not failure:
                return spare
            self._on_exit.pop(spare.pid, None)
            self.release(spare.cgroup)
            raise _refusal(failure, program)

    def kill(self, spare: Spare) -> None:
        """Kill a process that `launch` returned and that has not ended, with all that descends from it."""
        if spare.cgroup:
            self.cgroups.kill(spare.cgroup)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(spare.pid, signal.SIGKILL)

    def release(self, cgroup: str) -> None:
        """Remove `cgroup` now, or when the last process in it has ended."""
        if cgroup and not self.cgroups.remove(cgroup):
            self._lingering.add(cgroup)

    def close(self) -> None:
        """Let the spawner and the spares go."""
        if self._control:
            self._control.close()
        for spare in self._spares:
            spare.link.close()

    async def _hand_over(self, spare: Spare, program: Program, fds: Sequence[int]) -> bytes:
        """Give the command to the spare; return what it says went wrong, or nothing."""
        loop = asyncio.get_running_loop()
        body = marshal.dumps(
            (program.user, program.cwd, program.programs, program.argv, program.env)
        )
        data = len(body).to_bytes(4, "big") + body
        sent = socket.send_fds(spare.link, [data], list(fds))
        if sent < len(data):
            await loop.sock_sendall(spare.link, data[sent:])
        return await loop.sock_recv(spare.link, 64)

    async def _take(self) -> Spare:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_LIMIT_S
        while not self._spares:
            self._refill()
            waiter = loop.create_future()
            self._waiters.append(waiter)
            timer = loop.call_at(deadline, _fail_late, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        return self._spares.popleft()

    def _refill(self) -> None:
        wanted = SPARES + len(self._waiters) - len(self._spares) - self._asked
        if self._control is None:
            self._start_spawner()
        assert self._control is not None
        for _ in range(wanted):
            try:
                self._control.send(b"+")
            except OSError:  # full, or the spawner is dying: its end makes us start another
                return
            self._asked += 1

    def _start_spawner(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        script = str(Path(__file__).with_name("spawner.py"))
        fd = os.dup(theirs.fileno())
        theirs.close()
        os.set_inheritable(fd, True)
        try:
            self._spawner_pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", script, str(fd), str(self.cgroups.parent or "")],
                {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
            )
        finally:
            os.close(fd)
        self._control, self._asked = ours, 0
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_spare, ours)

    def _on_spare(self, control: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(control, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._drop_spawner()
            return
        self._asked = max(0, self._asked - 1)
        pid, _, cgroup = data.partition(b" ")
        os.set_inheritable(fds[0], False)
        link = socket.socket(fileno=fds[0])
        link.setblocking(False)
        if pid:
            self._spares.append(Spare(int(pid), os.fsdecode(cgroup), link))
            waiting = next((waiter for waiter in self._waiters if not waiter.done()), None)
            if waiting:
                waiting.set_result(None)
        else:
            link.close()
            self._refill()

    def _drop_spawner(self) -> None:
        if self._control:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
            self._asked = 0

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid == self._spawner_pid:
                self._drop_spawner()
                asyncio.get_running_loop().call_later(0.2, self._refill)
            for spare in [s for s in self._spares if s.pid == pid]:
                self._spares.remove(spare)
                spare.link.close()
                self.release(spare.cgroup)
            on_exit = self._on_exit.pop(pid, None)
            if on_exit:
                on_exit(status)
        self._lingering = {group for group in self._lingering if not self.cgroups.remove(group)}


def _fail_late(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(AgentError(errors.FAILED, "the agent cannot make processes"))


def _refusal(failure: bytes, program: Program) -> AgentError:
    step, _, number = failure.decode("ascii", "replace").partition(" ")
    reason = os.strerror(int(number)) if number.isdigit() else failure.decode("ascii", "replace")
    what = {
        "cwd": f"the working directory {os.fsdecode(program.cwd)!r} cannot be entered",
        "program": f"the program {os.fsdecode(program.argv[0])!r} cannot be run",
        "user": "the user cannot be taken on",
    }.get(step, "the command cannot be started")
    code = errors.FAILED if step in ("user", "stdio") else errors.INVALID
    if number == str(errno.E2BIG):
        code, what = (
            errors.LIMIT,
            "the command and its environment are too long for the guest's kernel",
        )
    facts = (
        {"step": step, "errno": errno.errorcode.get(int(number), "")} if number.isdigit() else {}
    )
    return AgentError(code, f"{what}: {reason}", **facts)
