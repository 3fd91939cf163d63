"""A program on a line: its stdin is the line it is held by, the end of its output is kept.

When we die, the kernel closes the line. A program that watches its stdin therefore notices, and lets go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from torpor_guest import proctree
from torpor_guest.launcher import Child, Launcher, Program
from torpor_guest.threads import in_own_thread

TAIL_BYTES = 2000
_READ_BYTES = 64 << 10
_LINE_BYTES = 64 << 10
_LINES_MOST = 64
_REAP_S = 5.0


class Tether:
    """A started program. Its output beyond a bounded tail, and lines that nobody asks for, are dropped."""

    def __init__(self, launcher: Launcher, marker: str) -> None:
        self._launcher = launcher
        self._marker = marker
        self._loop = asyncio.get_running_loop()
        self._child: Child | None = None
        self._stdin = -1
        self._outputs: list[int] = []
        self._tail = bytearray()
        self._line = bytearray()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(_LINES_MOST)
        self._status: asyncio.Future[int] = self._loop.create_future()

    @staticmethod
    async def start(launcher: Launcher, program: Program, *, marker: str) -> Tether:
        """Start `program`. It and all that descends from it have `marker` in their environment.

        Raises:
            AgentError: it could not be started; nothing runs.
        """
        program.env[os.fsencode(proctree.MARKER)] = os.fsencode(marker)
        tether = Tether(launcher, marker)
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        tether._stdin, tether._outputs = in_write, [out_read, err_read]
        try:
            for fd in (in_write, out_read, err_read):
                os.set_blocking(fd, False)
            await tether._launch(program, (in_read, out_write, err_write))
        except BaseException:
            await tether.kill()
            tether._close()
            raise
        finally:
            for fd in (in_read, out_write, err_write):
                os.close(fd)
        for fd in tether._outputs:  # none if it has ended already
            tether._loop.add_reader(fd, tether._take, fd)
        return tether

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return not self._status.done()

    @property
    def tail(self) -> str:
        """The end of what it wrote, as text."""
        return self._tail.decode("utf-8", "replace").strip()

    async def until_end(self, limit_s: float) -> int | None:
        """Return its exit status (minus the signal that ended it); None: it still runs."""
        await asyncio.wait([self._status], timeout=max(0.0, limit_s))
        return os.waitstatus_to_exitcode(self._status.result()) if self._status.done() else None

    async def line(self, limit_s: float) -> bytes | None:
        """Return the next line of its stdout; None: it ended, or wrote none in time."""
        getting = self._loop.create_task(self._lines.get())
        try:
            await asyncio.wait([getting], timeout=max(0.0, limit_s))
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()

    def say(self, line: bytes) -> bool:
        """Write a short line to its stdin; return whether it could be."""
        try:
            return self._stdin >= 0 and os.write(self._stdin, line + b"\n") == len(line) + 1
        except OSError:
            return False

    def let_go(self) -> None:
        """Close its stdin."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    async def end(self, grace_s: float) -> bool:
        """Close its stdin; if that does not end it in time, kill it. Return whether it ended by itself."""
        self.let_go()
        by_itself = await self.until_end(grace_s) is not None
        if not by_itself:
            await self.kill()
        return by_itself

    async def kill(self) -> None:
        """Kill it with its whole tree, and wait for its end."""
        self.let_go()
        if self._child is None or not self.is_running:
            return
        if self._child.cgroup:
            self._launcher.cgroups.kill(self._child.cgroup)
        else:
            await in_own_thread(proctree.kill_tree, self._child.pid, self._marker)
        await asyncio.wait([self._status], timeout=_REAP_S)

    def terminate(self) -> None:
        """Ask it, and its process group, to end."""
        if self._child is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGTERM)

    async def _launch(self, program: Program, fds: tuple[int, int, int]) -> None:
        """Launch it. When cancelled, first see whether something was started, so that it can be killed."""
        launching = self._loop.create_task(self._launcher.launch(program, fds, self._on_exit))
        try:
            await asyncio.shield(launching)
        except asyncio.CancelledError:
            await asyncio.wait([launching])
            raise
        finally:
            if launching.done() and not launching.cancelled() and not launching.exception():
                self._child = launching.result()
                if self._status.done():  # it ended before we knew its group
                    self._launcher.release(self._child.cgroup)

    def _on_exit(self, status: int | None) -> None:
        for fd in self._outputs:
            self._take(fd)
        self._close()
        if self._child is not None:
            self._launcher.release(self._child.cgroup)
        if not self._status.done():
            # how it ended may not be known; then it counts as killed, not as having done its work
            self._status.set_result(signal.SIGKILL if status is None else status)
        self._put(None)

    def _take(self, fd: int) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(fd)
            return
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        if fd == self._outputs[0]:
            *lines, rest = (bytes(self._line) + data).split(b"\n")
            self._line = bytearray(rest[-_LINE_BYTES:])
            for line in lines:
                self._put(line[:_LINE_BYTES])

    def _put(self, line: bytes | None) -> None:
        if self._lines.full():
            self._lines.get_nowait()
        self._lines.put_nowait(line)

    def _close(self) -> None:
        self.let_go()
        for fd in self._outputs:
            self._loop.remove_reader(fd)
            os.close(fd)
        self._outputs = []
