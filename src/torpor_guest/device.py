"""The agent's end of the byte stream: a virtio-serial port, vsock where there is no port, or a Unix socket in tests.

A virtio-serial port is not like a socket. While nobody has the host end open, a read returns nothing at once
and poll says HUP all the time; opening it twice is EBUSY; the host's bytes come 4 KiB a read. So the port is
watched through an edge-triggered epoll of its own: the kernel wakes its waiters when bytes come, when there is
room again, and when the host end opens or closes, and at no other time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
from collections import deque
from pathlib import Path
from typing import Protocol

PORT_NAME = "torpor.agent0"
VSOCK_PORT = 1024
"""Where the agent listens in a machine that has vsock and no such port, as Firecracker's."""
_PORTS = Path("/sys/class/virtio-ports")
_DEVICES = Path("/sys/bus/virtio/devices")
_VSOCK_ID = 19
"""Virtio's number for a socket device."""
_HOST_CID = 2
_READ_BYTES = 64 << 10
_TURN_BYTES = 64 << 10
_CLOGGED_BYTES = 256 << 10
_JOIN_BYTES = 32 << 10
_AWAY_ERRNOS = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)  # the last: vsock after a reset
_log = logging.getLogger("torpor")
_AWAY_CHECK_S = 1.0
"""How often a port whose host end is closed is read again, should a wake-up have been missed."""


class Owner(Protocol):
    """Who is told what happens on a device."""

    def received(self, data: bytes) -> None:
        """Take in bytes from the host."""
        ...

    def clogged(self, is_clogged: bool) -> None:
        """Note whether too much waits to be written."""
        ...

    def host_left(self) -> None:
        """Note that the host end was closed; it may come back."""
        ...


def find_port(name: str = PORT_NAME) -> Path | None:
    """Return the device of the virtio-serial port called `name`; None if there is none (yet)."""
    for entry in sorted(_PORTS.glob("*/name")):
        with contextlib.suppress(OSError):
            if entry.read_text().strip() == name:
                return Path("/dev") / entry.parent.name
    return None


class Device:
    """Non-blocking I/O on a descriptor, with a queue for what cannot be written yet."""

    def __init__(self, fd: int, owner: Owner, *, is_port: bool) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._owner = owner
        self._is_port = is_port
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._is_clogged = False
        self._is_away = False
        self._is_flush_due = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._epoll = select.epoll()
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        self._loop.add_reader(self._epoll.fileno(), self._on_event)
        self._loop.call_soon(self._read)

    def write(self, data: bytes) -> None:
        """Write `data`, now or as soon as the host takes it."""
        if self.closed.done():
            return
        self._queue.append(memoryview(data))
        self._queued += len(data)
        if self._queued >= _JOIN_BYTES:
            self._flush()
        elif not self._is_flush_due:  # so that small frames of one turn go out as one write
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def drop_queue(self) -> None:
        """Forget what was not written yet; a half-written frame is dropped by the reader's CRC."""
        self._queue.clear()
        self._queued = 0
        self._clog(False)

    def close(self) -> None:
        """Close the descriptor."""
        if not self.closed.done():
            self.closed.set_result(None)
            self._let_go()

    def _fail(self, exc: OSError) -> None:
        """Give up: the port was unplugged, or worse. Whoever waits for `closed` gets `exc`."""
        if not self.closed.done():
            self.closed.set_exception(exc)
            self._let_go()
            self._owner.host_left()

    def _let_go(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        os.close(self._fd)

    def _on_event(self) -> None:
        self._epoll.poll(0)
        self._flush()
        self._read()

    def _read(self) -> None:
        data, end = self._gather()
        if data or isinstance(end, BlockingIOError):
            self._is_away = False
        if data:
            self._owner.received(data)
        if self.closed.done() or isinstance(end, BlockingIOError):
            return
        if end is None:
            self._loop.call_soon(self._read)  # others have their turn; edges are not repeated
        elif end.errno in _AWAY_ERRNOS:
            self._left()
        else:
            self._fail(end)

    def _gather(self) -> tuple[bytes, OSError | None]:
        """Return what is there, a turn's worth at most, and why there is no more: a port gives 4 KiB a read."""
        pieces: list[bytes] = []
        size = 0
        while size < _TURN_BYTES:
            try:
                piece = os.read(self._fd, _READ_BYTES)
            except OSError as exc:
                return b"".join(pieces), exc
            if not piece:
                return b"".join(pieces), BrokenPipeError(errno.EPIPE, "the host end is closed")
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces), None

    def _left(self) -> None:
        if not self._is_away:
            self._is_away = True
            self.drop_queue()
            self._owner.host_left()
        if not self._is_port:
            self.close()
        elif not self.closed.done():
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.call_later(_AWAY_CHECK_S, self._on_event)

    def _flush(self) -> None:
        self._is_flush_due = False
        while self._queue and not self.closed.done():
            if len(self._queue) > 1 and self._queued <= _JOIN_BYTES:
                self._queue = deque([memoryview(b"".join(self._queue))])
            piece = self._queue[0]
            try:
                written = os.write(self._fd, piece)
            except BlockingIOError:
                break
            except OSError as exc:
                if exc.errno not in _AWAY_ERRNOS:
                    self._fail(exc)
                    return
                self.drop_queue()  # the host end went away; the read says so too
                return
            self._queued -= written
            if written < len(piece):
                self._queue[0] = piece[written:]
            else:
                self._queue.popleft()
        if self._is_clogged != (self._queued > _CLOGGED_BYTES):
            self._clog(not self._is_clogged)

    def _clog(self, is_clogged: bool) -> None:
        if self._is_clogged != is_clogged:
            self._is_clogged = is_clogged
            self._owner.clogged(is_clogged)


def has_vsock() -> bool:
    """Return whether the machine has a virtio socket device."""
    for entry in _DEVICES.glob("*/device"):
        with contextlib.suppress(OSError, ValueError):
            if int(entry.read_text(), 16) == _VSOCK_ID:
                return True
    return False


async def serve_host(owner: Owner, attach: Attach) -> None:
    """Serve the virtio-serial port until it is unplugged, or vsock; whichever of them there is (first)."""
    while True:
        path = find_port()
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            await _serve_fd(fd, owner, attach, is_port=True)
            return
        if has_vsock():
            with socket.socket(socket.AF_VSOCK) as listener:
                listener.bind((socket.VMADDR_CID_ANY, VSOCK_PORT))
                listener.listen(4)
                await serve_vsock(listener, owner, attach)
        await asyncio.sleep(0.1)


async def serve_vsock(
    listener: socket.socket, owner: Owner, attach: Attach, *, host: object = _HOST_CID
) -> None:
    """Serve one host connection after the other; a new one takes the place of the one before.

    A snapshot cuts the connection of the machine that it is taken of, and of all that go on from it; the listener
    stays. Only the host is listened to: a program in the machine may have a way to connect, too.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    serving: asyncio.Task[None] | None = None
    try:
        while True:
            link, address = await loop.sock_accept(listener)
            if address[0] != host:
                link.close()
                continue
            if serving is not None:
                await _stopped(serving)
            serving = loop.create_task(_serve_link(link, owner, attach))
    finally:
        if serving is not None:
            await _stopped(serving)


async def _serve_link(link: socket.socket, owner: Owner, attach: Attach) -> None:
    try:
        await _serve_fd(link.detach(), owner, attach, is_port=False)
    except (
        OSError
    ) as exc:  # a connection that broke in a way of its own; the next is served all the same
        _log.warning("the host's connection broke: %s", exc)
    finally:
        owner.host_left()


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def serve_fd(fd: int, owner: Owner, attach: Attach) -> None:
    """Serve a connected socket until the other end closes it."""
    os.set_inheritable(fd, False)
    await _serve_fd(fd, owner, attach, is_port=False)


async def serve_socket(path: Path, owner: Owner, attach: Attach) -> None:
    """Serve the Unix socket at `path`, one connection after the other, as QEMU's chardev does."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listener:
        _listen(listener, path)
        listener.setblocking(False)
        while True:
            link, _ = await loop.sock_accept(listener)
            await _serve_fd(link.detach(), owner, attach, is_port=False)


def _listen(listener: socket.socket, path: Path) -> None:
    """Listen at `path`, which appears when connections are taken and not before."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{folder}/.{path.name}.new"  # the kernel's limit is 108 bytes
        with contextlib.suppress(FileNotFoundError):
            os.unlink(short)
        listener.bind(short)
        listener.listen(4)
        os.rename(short, path)
    finally:
        os.close(folder)


class Attach(Protocol):
    """Is told on which device the channel goes on."""

    def __call__(self, device: Device) -> None:
        """Go on with this device."""
        ...


async def _serve_fd(fd: int, owner: Owner, attach: Attach, *, is_port: bool) -> None:
    device = Device(fd, owner, is_port=is_port)
    try:
        attach(device)
        await asyncio.shield(device.closed)  # whoever ends us does not end that: it is closed below
    finally:
        device.close()
