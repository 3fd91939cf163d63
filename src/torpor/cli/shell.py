"""`torpor shell` without a command: this terminal becomes one of the sandbox's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from torpor.base.aio import closing
from torpor.errors import GenerationChanged, InvalidRequest, TorporError

if TYPE_CHECKING:
    from torpor.sdk.terminals import AsyncTerminal

_LEAVE: Final = b"~."
"""After Enter: leave the terminal, and its command running."""
_SIGNALLED: Final = 128


class Left(Exception):
    """Raised when the person leaves, or is made to by a signal."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number


class Keys:
    """What is typed, without `~.` at the beginning of a line, which leaves; `~~` is one `~`."""

    def __init__(self) -> None:
        self._at_start = True
        self._held = False

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """Return what goes to the machine, and whether the person leaves."""
        found = bytearray()
        for value in data:
            byte = bytes([value])
            if self._held:
                self._held = False
                if byte == b".":
                    return bytes(found), True
                found += b"~" if byte == b"~" else b"~" + byte
                self._at_start = byte in b"\r\n"
            elif self._at_start and byte == b"~":
                self._held = True
            else:
                found += byte
                self._at_start = byte in b"\r\n"
        return bytes(found), False


def run(
    sandbox_id: str,
    *,
    attach: str | None,
    env: Mapping[str, str],
    cwd: str | None,
    user: str | None,
    timeout_seconds: float | None,
) -> int:
    """Show a login shell, or a terminal that was opened before, until it ends; return its exit code.

    Raises:
        InvalidRequest: our stdin or stdout is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest(
            "an interactive shell needs a terminal, and stdin or stdout is none",
            hint=f"torpor shell {sandbox_id} -c 'COMMAND', or torpor exec -i {sandbox_id} -- sh",
        )

    async def work() -> int:
        from torpor.sdk.sandbox import AsyncSandbox

        pty = AsyncSandbox.handle(sandbox_id).pty
        size = _window()
        if attach is None:
            terminal = await pty.create(
                columns=size.columns,
                rows=size.lines,
                env=env,
                cwd=cwd,
                user=user,
                term=os.environ.get("TERM"),
                timeout_seconds=timeout_seconds,
            )
        else:
            terminal = await pty.attach(attach)
            await terminal.resize(size.columns, size.lines)
        return await _Session(terminal, sandbox_id).run()

    return asyncio.run(work())


def _window() -> os.terminal_size:
    """Return the window's size as the terminal says it; COLUMNS and LINES may be those of another time."""
    for fd in (1, 0, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            if size.columns and size.lines:
                return size
    return shutil.get_terminal_size()


class _Session:
    """One person before one terminal."""

    def __init__(self, terminal: AsyncTerminal, sandbox_id: str) -> None:
        self._terminal = terminal
        self._sandbox_id = sandbox_id
        self._keys = Keys()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue(64)
        self._size_changed = asyncio.Event()
        self._is_awake = asyncio.Event()
        self._is_awake.set()
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> int:
        """Show it until its end, or until the person leaves."""
        with self._raw(), self._listening():
            try:
                return await self._until_end()
            except Left as left:
                leave = left
        where = f"torpor shell {self._sandbox_id} --attach {self._terminal.exec_id}"
        print(f"\nleft; it runs on, and is back with: {where}", file=sys.stderr)
        return _SIGNALLED + leave.number if leave.number else 0

    async def _until_end(self) -> int:
        work = {
            asyncio.ensure_future(each)  # noqa: TID251 - all are ended below
            for each in (self._show(), self._type(), self._resize())
        }
        try:
            done, _ = await asyncio.wait({*work, self._stop}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            return self._terminal.exit_code or 0
        finally:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _show(self) -> None:
        while True:
            try:
                async with closing(self._terminal.output()) as shown:
                    async for data in shown:
                        _write(data)
            except GenerationChanged:
                self._is_awake.clear()
                note = f"[{self._sandbox_id} sleeps or was put back: a key wakes it, ~. leaves]"
                _write(f"\r\n{note}\r\n".encode())
                self._keys = Keys()
                await self._is_awake.wait()
                self._size_changed.set()
            else:
                return

    async def _type(self) -> None:
        while True:
            data = await self._typed.get()
            if not self._is_awake.is_set():  # this key only wakes it
                self._is_awake.set()
                continue
            while not self._typed.empty():
                data += self._typed.get_nowait()
            with contextlib.suppress(TorporError):  # what shows it says what is wrong
                await self._terminal.send_input(data)

    async def _resize(self) -> None:
        while True:
            await self._size_changed.wait()
            self._size_changed.clear()
            size = _window()
            with contextlib.suppress(TorporError):
                await self._terminal.resize(size.columns, size.lines)

    # Our own terminal

    @contextlib.contextmanager
    def _raw(self) -> Iterator[None]:
        """Have every key go to the machine; our terminal is as it was on every way out."""
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        try:
            tty.setraw(fd, termios.TCSADRAIN)
            yield
        finally:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        loop, fd = self._loop, sys.stdin.fileno()
        loop.add_reader(fd, self._read)
        loop.add_signal_handler(signal.SIGWINCH, self._size_changed.set)
        enders = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
        for number in enders:
            loop.add_signal_handler(number, self._leave, number)
        try:
            yield
        finally:
            loop.remove_reader(fd)
            for number in (signal.SIGWINCH, *enders):
                loop.remove_signal_handler(number)

    def _read(self) -> None:
        if self._typed.full():  # the machine takes nothing; more waits in our own terminal
            self._loop.remove_reader(sys.stdin.fileno())
            self._loop.call_later(0.1, self._read_on)
            return
        try:
            data = os.read(sys.stdin.fileno(), 4096)
        except OSError:
            data = b""
        if not data:  # our terminal is gone
            self._leave(signal.SIGHUP)
            return
        typed, leaves = self._keys.take(data)
        if typed:
            self._typed.put_nowait(typed)
        if leaves:
            self._leave(0)

    def _read_on(self) -> None:
        if not self._stop.done():
            self._loop.add_reader(sys.stdin.fileno(), self._read)

    def _leave(self, number: int) -> None:
        if number:
            with contextlib.suppress(ValueError):
                self._loop.remove_reader(sys.stdin.fileno())
        if not self._stop.done():
            self._stop.set_exception(Left(number))


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
