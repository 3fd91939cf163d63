"""One command: its process, its output on its way into the spools, and its end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from torpor_guest import errors, proctree, terminal
from torpor_guest.errors import AgentError
from torpor_guest.gate import DISK
from torpor_guest.launcher import Child, Launcher
from torpor_guest.pump import Pump
from torpor_guest.scrollback import Scrollback
from torpor_guest.spool import Spool
from torpor_guest.terminal import Window

GRACE_S = 0.2
"""How long after the end of a command its output may stay open (held by a process in the background) before
the end is reported. What comes later still goes into the spool."""
_TIDY_S = 0.005
_CHUNK = 64 << 10
_STDIN_STALL_S = 60.0


@dataclass(frozen=True)
class Request:
    """What the host asked for, resolved."""

    exec_id: str
    command: Any
    user: str
    cwd: str
    background: bool
    timeout_s: float | None
    started_at: float
    has_terminal: bool = False


class Command:
    """A command that was started. Its end is what waitpid said, or `lost`; nothing else ends it."""

    def __init__(self, request: Request, spools: tuple[Spool | Scrollback, Spool]) -> None:
        self.request = request
        self.spools = spools
        self.state = "running"
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.timed_out = False
        self.oom_killed = False
        self.duration_ms: int | None = None
        self.followers: set[Callable[[int, int, bytes], None]] = set()
        """Called with stream, offset and data for new output, and with (-1, 0, b"") at the end."""
        self.on_end: Callable[[Command], None] = lambda command: None
        self.stdin_lock = asyncio.Lock()
        self._stdin_fd = -1
        self._status: int | None = None
        self._is_lost = False
        self._ended_s = 0.0
        self._pumps: list[Pump] = []
        self._timer: asyncio.TimerHandle | None = None
        self._launcher: Launcher | None = None
        self._cgroup = ""
        self._began_s = time.monotonic()

    def info(self) -> dict[str, Any]:
        """Return what is so about it, as the host reads it."""
        request, (out, err) = self.request, self.spools
        return {
            "exec_id": request.exec_id,
            "command": request.command,
            "state": self.state,
            "pid": self.pid,
            "user": request.user,
            "cwd": request.cwd,
            "background": request.background,
            "started_at": request.started_at,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "oom_killed": self.oom_killed,
            "duration_ms": self.duration_ms,
            "stdout_bytes": out.total,
            "stderr_bytes": err.total,
            "stdout_kept": out.kept,
            "stderr_kept": err.kept,
            "terminal": request.has_terminal,
            "stdout_begin": out.begin,
            "is_idle": self.is_at_prompt,
            "stdout_path": out.path if out.kept else "",
            "stderr_path": err.path if err.kept else "",
        }

    @property
    def is_running(self) -> bool:
        """Whether its end has not been reported yet."""
        return self.state == "running"

    @property
    def is_at_prompt(self) -> bool:
        """Whether it has a terminal in which nothing runs but itself: a shell that waits for a line."""
        if not self.request.has_terminal or not self.is_running or self._stdin_fd < 0:
            return False
        return terminal.foreground(self._stdin_fd) == self.pid

    @property
    def cgroup(self) -> str:
        """Its cgroup's folder; empty if it has none."""
        return self._cgroup

    # Life

    def exited(self, status: int | None) -> None:
        """Take in the wait status of its process; None: nobody can tell how it ended."""
        self._status, self._is_lost = status or 0, status is None
        self._ended_s = time.monotonic()
        if self.pid is not None:
            self._wind_up()

    def run(
        self, launcher: Launcher, child: Child, fds: tuple[int, int, int], executor: Executor
    ) -> None:
        """Go on with a process that was launched: `fds` are our ends of stdin (or -1), stdout and stderr."""
        self.pid, self._cgroup, self._launcher = child.pid, child.cgroup, launcher
        self._stdin_fd = fds[0]
        self._pumps = [
            Pump(self, which, fd, executor) for which, fd in enumerate(fds[1:]) if fd >= 0
        ]
        if self.request.timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(
                self.request.timeout_s, self._time_out
            )
        if self._status is not None:
            self._wind_up()

    def lose(self) -> None:
        """Note, instead of `run`, that nobody can tell whether it was started; if it was, it was killed."""
        self.state = "lost"

    def output(self, which: int, data: bytes) -> None:
        """Keep new output and tell who follows."""
        offset = self.spools[which].kept
        kept = self.spools[which].append(data)
        self.tell(which, offset, data if kept == len(data) else data[:kept])

    def tell(self, which: int, offset: int, data: bytes) -> None:
        """Tell who follows."""
        for follower in list(self.followers):
            follower(which, offset, data)

    def _time_out(self) -> None:
        if self._status is None:
            self.timed_out = True
            self.kill()

    def _wind_up(self) -> None:
        """Report the end if all output that the command itself wrote is here, else look again later."""
        if not self.is_running:
            return
        if self._timer:
            self._timer.cancel()
        if DISK.is_shut:  # its output cannot be kept now
            DISK.run(self._wind_up)
            return
        is_late = time.monotonic() - self._ended_s >= GRACE_S
        for pump in self._pumps:
            pump.drain()
        if all(pump.is_done(is_late) for pump in self._pumps):
            self._finish()
        else:
            wait_s = 0.02 if is_late else max(0.001, self._ended_s + GRACE_S - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wind_up)

    def pump_closed(self) -> None:
        """Note that an output came to its end."""
        if self._status is not None and all(pump.is_closed for pump in self._pumps):
            self._wind_up()
            self.rest()

    def shrink(self) -> None:
        """Keep less of what a terminal has shown, unless somebody reads it."""
        shown = self.spools[0]
        if isinstance(shown, Scrollback) and not self.followers:
            shown.shrink()

    def rest(self) -> None:
        """Close the spool files if nobody writes or follows them; they can still be read."""
        if not self.is_running and not self.followers and all(p.is_closed for p in self._pumps):
            for spool in self.spools:
                DISK.run(spool.close)

    def _finish(self) -> None:
        status = self._status
        if not self.is_running or status is None or self._launcher is None:
            return
        if self._is_lost:
            pass
        elif os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
            self.exit_code = 128 + self.signal
        else:
            self.exit_code = os.WEXITSTATUS(status)
        self.oom_killed = bool(self._cgroup) and (
            self._launcher.cgroups.oom_kills(self._cgroup) > 0
        )
        self.duration_ms = round((self._ended_s - self._began_s) * 1000)
        self.state = "lost" if self._is_lost else "exited"
        self.close_stdin()
        if (
            self.request.has_terminal
        ):  # hangs up on what is left in it, as a window that is closed does
            for pump in self._pumps:
                pump.close()
        self.on_end(self)
        self.tell(-1, 0, b"")
        # behind the answer, which somebody waits for
        asyncio.get_running_loop().call_later(_TIDY_S, self._launcher.release, self._cgroup)

    # What the host asks

    def kill(self) -> None:
        """Kill the whole process tree."""
        if self.pid is None or self._launcher is None:
            return
        if self._cgroup:
            self._launcher.cgroups.kill(self._cgroup)
        else:
            proctree.kill_tree(self.pid, self.request.exec_id)

    def send_signal(self, number: int) -> None:
        """Send a signal to the command's process group; 9 takes the whole tree."""
        if not 0 < number < signal.NSIG:
            raise AgentError(errors.INVALID, f"{number} is no signal")
        if self._status is not None or self.pid is None:
            return
        if number == signal.SIGKILL:
            self.kill()
            return
        group = terminal.foreground(self._stdin_fd) if self.request.has_terminal else None
        try:
            os.killpg(group or self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError as exc:
            raise errors.from_os(exc, f"signal {number} to pid {self.pid}") from exc

    def resize(self, window: Window) -> None:
        """Tell its terminal how large the window is now; it has no effect when the command has ended."""
        if not self.request.has_terminal:
            raise AgentError(
                errors.CONFLICT, f"exec {self.request.exec_id} was started without a terminal"
            )
        if self._stdin_fd >= 0:
            terminal.resize(self._stdin_fd, window)

    async def feed_stdin(self, data: bytes) -> None:
        """Write all of `data` to stdin, as fast as the command reads it.

        Raises:
            AgentError: the command has no stdin (any more), or takes nothing for a minute.
        """
        loop = asyncio.get_running_loop()
        start = 0
        while start < len(data):
            self.check_stdin()
            try:
                start += os.write(self._stdin_fd, data[start : start + _CHUNK])
            except BlockingIOError:
                fd, ready = self._stdin_fd, loop.create_future()
                loop.add_writer(fd, _settle, ready)
                timer = loop.call_later(_STDIN_STALL_S, _settle, ready)
                before = loop.time()
                try:
                    await ready
                finally:
                    timer.cancel()
                    if self._stdin_fd == fd:
                        loop.remove_writer(fd)
                if loop.time() - before >= _STDIN_STALL_S:
                    raise AgentError(
                        errors.TIMEOUT,
                        f"the command read nothing from stdin for {_STDIN_STALL_S:.0f} s",
                    ) from None
            except BrokenPipeError:
                self.close_stdin()
            except OSError as exc:
                if exc.errno != errno.EIO:  # so a terminal that nobody has open any more says it
                    raise
                self.close_stdin()

    def check_stdin(self) -> None:
        """Raise `AgentError` unless stdin is open."""
        if self._stdin_fd < 0:
            raise AgentError(
                errors.CONFLICT,
                f"exec {self.request.exec_id} takes no stdin",
                hint="it was started without stdin, closed it, or has ended",
            )

    async def end_stdin(self) -> None:
        """Say that no more comes; in a terminal as a person does, who may go on after it."""
        if self.request.has_terminal:
            await self.feed_stdin(terminal.END_OF_INPUT)
        else:
            self.close_stdin()

    def close_stdin(self) -> None:
        """Let the command read the end of its stdin."""
        if self._stdin_fd >= 0:
            asyncio.get_running_loop().remove_writer(self._stdin_fd)
            os.close(self._stdin_fd)
            self._stdin_fd = -1


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
