"""One output of a command on its way from its pipe or terminal to where it is kept."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Protocol

from torpor_guest.gate import DISK
from torpor_guest.scrollback import Scrollback
from torpor_guest.spool import Spool

_CHUNK = 64 << 10
_F_GETPIPE_SZ = 1032
_PTY_BYTES = 64 << 10
"""As much as a terminal holds, and more."""


class Owner(Protocol):
    """The command."""

    @property
    def spools(self) -> Sequence[Spool | Scrollback]:
        """Where its outputs are kept."""
        ...

    def output(self, which: int, data: bytes) -> None:
        """Keep new output and tell who follows."""
        ...

    def tell(self, which: int, offset: int, data: bytes) -> None:
        """Tell who follows of what is kept."""
        ...

    def pump_closed(self) -> None:
        """Note that an output came to its end."""
        ...


class Pump:
    """Moves one output from its pipe into the spool."""

    def __init__(self, command: Owner, which: int, fd: int, executor: Executor) -> None:
        self.is_closed = False
        self._command = command
        self._which = which
        self._fd = fd
        self._executor = executor
        self._is_writing = False
        self._since_exit = 0
        self._saw_empty = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._on_readable)

    def drain(self) -> None:
        """Read what is there; called when the command has ended."""
        while not (self.is_closed or self._is_writing or self._has_all()):
            size = self._on_readable()
            if size < 0:
                self._saw_empty = True
            else:
                self._since_exit += size

    def is_done(self, is_late: bool) -> bool:
        """Whether all that the ended command wrote has been taken, and the wait for others is over."""
        if self.is_closed:
            return True
        return is_late and not self._is_writing and self._has_all()

    def _has_all(self) -> bool:
        """Whether nothing that was in the pipe at the command's end is there still."""
        return self._saw_empty or self._since_exit > self._size()

    def _size(self) -> int:
        try:
            return fcntl.fcntl(self._fd, _F_GETPIPE_SZ)
        except OSError:  # a terminal
            return _PTY_BYTES

    def close(self) -> None:
        """Read no more."""
        if not self.is_closed:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self.is_closed = True

    def _on_readable(self) -> int:
        """Move one piece; return its size, or -1 when there was none."""
        if DISK.is_shut:  # until then the command waits on its full pipe, and nothing is lost
            self._loop.remove_reader(self._fd)
            DISK.run(self._watch)
            return -1
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return -1
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self.is_closed = True
            self._command.pump_closed()
        elif self._command.spools[self._which].is_quick:
            self._command.output(self._which, data)
        else:
            self._is_writing = True
            self._loop.remove_reader(self._fd)
            spool = self._command.spools[self._which]
            offset = spool.kept
            future = self._loop.run_in_executor(self._executor, spool.append, data)
            future.add_done_callback(lambda done: self._written(offset, data, done.result()))
        return len(data)

    def _written(self, offset: int, data: bytes, kept: int) -> None:
        self._is_writing = False
        self._watch()
        self._command.tell(self._which, offset, data[:kept])

    def _watch(self) -> None:
        """Have it read when there is something."""
        if not (self.is_closed or self._is_writing):
            self._loop.add_reader(self._fd, self._on_readable)
