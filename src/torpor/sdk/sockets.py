"""WebSockets to the daemon: opened as requests are sent, with errors of the one kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from torpor.errors import DaemonUnreachable, TorporError, error_from_wire
from torpor.sdk.client import Connection, ConnectionLost, DaemonSilent, Query, failure_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

OPEN_LIMIT_S: Final = 120.0
"""Seconds that opening may take: the sandbox may have to be woken."""
_CONNECT_LIMIT_S: Final = 10.0
_MESSAGE_MOST_BYTES: Final = 4 << 20
PIECE_BYTES: Final = 64 << 10


class Socket:
    """An open WebSocket: bytes are content, JSON objects are about it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        """Send bytes, as fast as the daemon takes them. Raises `ConnectionLost`."""
        with _lost():
            for start in range(0, len(data), PIECE_BYTES):
                await self._socket.send(data[start : start + PIECE_BYTES])

    async def tell(self, **message: object) -> None:
        """Send a JSON object. Raises `ConnectionLost`."""
        with _lost():
            await self._socket.send(json.dumps(message))

    async def receive(self) -> bytes | dict[str, Any] | None:
        """Return the next message; None when the daemon closed because all was said.

        Raises:
            TorporError: what the daemon told.
            ConnectionLost: the connection broke.
        """
        from websockets.exceptions import ConnectionClosedOK

        with _lost():
            try:
                message = await self._socket.recv()
            except ConnectionClosedOK:
                return None
        if isinstance(message, bytes):
            return message
        found: dict[str, Any] = json.loads(message)
        if found.get("type") == "error":
            raise error_from_wire(found["error"])
        return found


@contextlib.asynccontextmanager
async def opened(
    connection: Connection, path: str, query: Query = (), *, limit_s: float = OPEN_LIMIT_S
) -> AsyncIterator[Socket]:
    """Enter with an open WebSocket.

    Raises:
        TorporError: what the daemon answered instead.
        DaemonUnreachable: no daemon answers and none could be started.
        DaemonSilent: it did not answer in time.
    """
    try:
        socket = await _connected(connection, path, query, limit_s)
    except OSError:
        if not await connection.ensure_daemon():
            raise _unreachable() from None
        try:
            socket = await _connected(connection, path, query, limit_s)
        except OSError as exc:
            raise _unreachable() from exc
    try:
        yield Socket(socket)
    finally:
        await _closed(socket)


async def _connected(
    connection: Connection, path: str, query: Query, limit_s: float
) -> ClientConnection:
    from websockets.asyncio.client import connect, unix_connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    url = "ws" + connection.address(path, query).removeprefix("http")
    headers = dict(connection.headers)
    options: dict[str, Any] = {
        "additional_headers": headers,
        "user_agent_header": headers.pop("user-agent", None),
        "compression": None,
        "max_size": _MESSAGE_MOST_BYTES,
        "max_queue": (4, 1),
        "open_timeout": limit_s,
        "close_timeout": 2,
        "ping_interval": None,  # a daemon whose machine takes nothing answers none, and is none the worse for it
        "proxy": None,
    }
    try:
        if connection.uds is not None:
            return await unix_connect(connection.uds, url, **options)
        return await connect(url, **options)
    except InvalidStatus as exc:
        raise failure_of(exc.response.status_code, bytes(exc.response.body or b"")) from exc
    except InvalidHandshake as exc:
        raise ConnectionLost(f"{path}: the daemon did not shake hands: {exc}") from exc
    except TimeoutError as exc:
        raise DaemonSilent(f"{path}: the daemon was silent for {limit_s:g} s") from exc


async def _closed(socket: ClientConnection) -> None:
    closing = asyncio.ensure_future(socket.close())  # noqa: TID251 - it is awaited here, also when we are cancelled
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        socket.transport.abort()
        raise


@contextlib.contextmanager
def _lost() -> Any:
    from websockets.exceptions import ConnectionClosed

    try:
        yield
    except ConnectionClosed as exc:
        raise ConnectionLost(f"the connection to the daemon broke: {exc}") from exc


def _unreachable() -> TorporError:
    return DaemonUnreachable(
        "no daemon answers",
        hint="is TORPOR_URL or TORPOR_HOME right? `torpor serve` starts a daemon",
    )
