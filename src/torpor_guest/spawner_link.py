"""The agent's end of one spawner: what it is asked, what it says, and which commands are its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from torpor_guest import spawner

OnExit = Callable[[Optional[int]], None]  # noqa: UP045  # evaluated in Python 3.9
"""Gets the wait status of a process; None: it has ended, and how is not known."""
Answer = tuple[bytes, int, int]
"""A record of the spawner's, STARTED or FAILED."""

SCRIPT = str(Path(__file__).with_name("spawner.py"))
_DEATH_LIMIT_S = 1.0
"""How long a spawner that was killed may take to die; one that sits in a broken file system never does."""


class NotTaken(Exception):
    """Raised when the spawner is gone and has not taken the whole request: nothing was started."""


class Gone(Exception):
    """Raised when the spawner is gone and has taken the request: whether a process was started is not known."""


@dataclass
class _Asked:
    """What the spawner is to answer; None: it is gone."""

    answer: asyncio.Future[Answer | None]
    on_exit: OnExit


class SpawnerLink:
    """One spawner, from its start to its death. Belongs to the loop's thread."""

    def __init__(self, home: str, on_news: Callable[[], None]) -> None:
        self.children: dict[int, OnExit] = {}
        """The processes that it has started and not told the end of."""
        self.was_given_up = False
        self._on_news = on_news
        self._received = b""
        self._asked: _Asked | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._left_unread = False
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fd = os.dup(theirs.fileno())
        theirs.close()
        os.set_inheritable(fd, True)
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", SCRIPT, str(fd), home],
                {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
            )
        except OSError:
            ours.close()
            raise
        finally:
            os.close(fd)
        self._control: socket.socket | None = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._control is not None

    async def ask(
        self, request: bytes, fds: Sequence[int], on_exit: OnExit, limit_s: float
    ) -> Answer:
        """Return its answer; one that does not answer within `limit_s` seconds is killed. Ask one at a time.

        Raises:
            NotTaken: it is gone, and nothing was started.
            Gone: it is gone, and whether something was started is not known.
        """
        loop = asyncio.get_running_loop()
        asked = self._asked = _Asked(loop.create_future(), on_exit)
        self._timer = loop.call_later(limit_s, self._give_up)
        is_sent = False
        try:
            with contextlib.suppress(OSError):
                is_sent = await self._send(request, fds, asked)
            if is_sent and (said := await asked.answer):
                return said
        finally:
            self._timer.cancel()
            self._asked = None
        self.close()
        if is_sent and not self._left_unread:
            raise Gone
        raise NotTaken

    async def _send(self, request: bytes, fds: Sequence[int], asked: _Asked) -> bool:
        """Return whether all was sent; else the spawner is gone."""
        control = self._control
        if control is None:
            return False
        rest = memoryview(request)
        rest = rest[socket.send_fds(control, [rest], fds) :]
        while rest:
            if not await self._has_room(control, asked):
                return False
            with contextlib.suppress(BlockingIOError):
                rest = rest[control.send(rest) :]
        return True

    async def _has_room(self, control: socket.socket, asked: _Asked) -> bool:
        """Wait until more can be sent; return False if it is gone."""
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        loop.add_writer(control.fileno(), _settle, room)
        try:
            either: list[asyncio.Future[Any]] = [room, asked.answer]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._control is control:
                loop.remove_writer(control.fileno())
        return not asked.answer.done()

    def _give_up(self) -> None:
        """Kill it. The end of its socket tells what it had taken; if that does not come either, close ours."""
        if self._asked and not self._asked.answer.done():
            self.was_given_up = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._timer = asyncio.get_running_loop().call_later(_DEATH_LIMIT_S, self.close)

    def close(self) -> None:
        """Take what it has said, and let it go."""
        while self._read():
            pass
        self._drop()

    def _on_readable(self) -> None:
        self._read()
        self._on_news()

    def _read(self) -> bool:
        """Take one piece of what it says; return whether there was one. A command's end is told after its start."""
        if self._control is None:
            return False
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:  # so the kernel tells that it died with something unread
            self._left_unread, data = True, b""
        self._received += data
        size = spawner.RECORD.size
        while len(self._received) >= size:
            record, self._received = self._received[:size], self._received[size:]
            self._take(*spawner.RECORD.unpack(record))
        if not data:
            self._drop()
        return bool(data)

    def _take(self, kind: bytes, value: int, more: int) -> None:
        if kind == spawner.ENDED:
            on_exit = self.children.pop(value, None)
            if on_exit:
                on_exit(more)
        elif self._asked and not self._asked.answer.done():
            if kind == spawner.STARTED:
                self.children[value] = self._asked.on_exit
            self._asked.answer.set_result((kind, value, more))

    def _drop(self) -> None:
        if self._control is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._control.fileno())
            loop.remove_writer(self._control.fileno())
            self._control.close()
            self._control = None
        if self._asked and not self._asked.answer.done():
            self._asked.answer.set_result(None)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
