"""Ports on the machine's own loopback that lead to the host: a program connects, and the host takes the connection.

`inlet.serve` listens as long as its stream lasts, and tells the number of each connection; `inlet.take` carries the bytes
of one. What the host does not take in time is closed, so that a program never waits on nobody.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import Any

from torpor_guest import errors, protocol
from torpor_guest.errors import AgentError
from torpor_guest.paths import number
from torpor_guest.ports import LOOPBACK, RESET_ON_CLOSE, carry
from torpor_guest.stream import Stream

MAX_WAITING = 64
MAX_INLETS = 64
TAKE_S = 30.0
AGAIN_S = 0.2
"""How long nothing is accepted after a refusal that passes."""
_PASSES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)

_log = logging.getLogger("torpor")


class InletMethods:
    """Methods on ports that lead to the host."""

    def __init__(self) -> None:
        self._waiting: dict[int, socket.socket] = {}
        self._last = 0
        self._inlets = 0

    async def serve(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Listen on a port and send the number of each connection, until the host ends it.

        What the kernel refuses for want of room is tried again; any other refusal ends it, and is told.
        """
        port = _port(params)
        if self._inlets >= MAX_INLETS:
            raise AgentError(errors.LIMIT, f"{MAX_INLETS} ports lead to the host already")
        loop, mine = asyncio.get_running_loop(), set[int]()
        with _listening(port) as listener:
            self._inlets += 1
            accepting = loop.create_task(self._accept(stream, listener, mine, port))
            ending = loop.create_task(_until_end(stream))
            try:
                await _say(stream, {"port": port})
                await asyncio.wait((accepting, ending), return_when=asyncio.FIRST_COMPLETED)
                (ending if ending.done() else accepting).result()
                return {}
            finally:
                self._inlets -= 1
                # before anything is awaited: a host that has connected anew listens on that port at once
                loop.remove_reader(listener)
                listener.close()
                accepting.cancel()
                ending.cancel()
                await asyncio.gather(accepting, ending, return_exceptions=True)
                for key in mine:
                    self._forget(key)

    async def _accept(
        self, stream: Stream, listener: socket.socket, mine: set[int], port: int
    ) -> None:
        loop, is_refused = asyncio.get_running_loop(), False
        while True:
            try:
                link, _ = await loop.sock_accept(listener)
            except OSError as exc:
                if exc.errno not in _PASSES:
                    raise errors.from_os(exc, f"port {port} of the machine broke") from exc
                if not is_refused:
                    _log.warning("port %d accepts nothing for now: %s", port, exc.strerror)
                is_refused = True
                await asyncio.sleep(AGAIN_S)
                continue
            is_refused = False
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            if len(self._waiting) >= MAX_WAITING:
                link.close()
                continue
            self._last += 1
            self._waiting[self._last] = link
            mine.add(self._last)
            loop.call_later(TAKE_S, self._forget, self._last)
            await _say(stream, {"connection": self._last})

    def _forget(self, key: int) -> None:
        found = self._waiting.pop(key, None)
        if found is not None:
            found.close()

    async def take(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Carry the bytes of a connection both ways until both ends have ended."""
        key = number(params, "connection", None)
        link = None if key is None else self._waiting.pop(key, None)
        if link is None:
            raise AgentError(errors.NOT_FOUND, f"connection {key} does not wait any more")
        with link:  # reset, unless it ended well
            port = link.getsockname()[1]
            await _say(stream, {"connected": LOOPBACK[0]})
            return await carry(stream, link, port)


def _listening(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setblocking(False)
        found.bind((LOOPBACK[0], port))
        found.listen(MAX_WAITING)
    except OSError as exc:
        found.close()
        raise AgentError(
            errors.CONFLICT,
            f"port {port} of the machine cannot be listened on: {exc.strerror or exc}",
            hint="something in it listens there already; choose another port",
            port=port,
            errno=errors.name_of(exc),
        ) from exc
    return found


async def _until_end(stream: Stream) -> None:
    while await stream.receive() is not None:
        pass


async def _say(stream: Stream, item: dict[str, Any]) -> None:
    await stream.send(protocol.CHANNEL_ITEMS, protocol.pack_json(item) + b"\n")


def _port(params: dict[str, Any]) -> int:
    port = number(params, "port", None)
    if port is None or not 1 <= port <= 65535:
        raise AgentError(errors.INVALID, f"a port is 1 to 65535, got {port!r}")
    return port
