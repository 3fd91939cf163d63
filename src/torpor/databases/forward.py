"""Ports of this host's loopback that lead to databases' machines, through the guest channel."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from torpor.base.aio import Supervisor, finish
from torpor.errors import (
    GenerationChanged,
    GuestFailed,
    HostNotReady,
    PortClosed,
    TorporError,
)
from torpor.guest.port import PortStream
from torpor.model_databases import LOOPBACK, DatabaseId

CONNECTIONS_MOST: Final = 400
"""To one database at one time; the next is closed at once, as a server that is full does."""
_CHUNK: Final = 64 << 10
_BACKLOG: Final = 128
_RESET: Final = b"\1\0\0\0\0\0\0\0"
"""`struct linger`: on, 0 seconds."""

Serve = Callable[[DatabaseId, "Client"], Awaitable[None]]


class Client:
    """A client's connection, in the words of `PortStream`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Return the next bytes; empty when the client sends no more."""
        try:
            return await self._reader.read(_CHUNK)
        except OSError as exc:
            raise PortClosed(f"the client broke off: {exc.strerror or exc}") from exc

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client takes none."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as exc:
            raise PortClosed(f"the client broke off: {exc.strerror or exc}") from exc

    async def end(self) -> None:
        """Say that no more is sent."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def cut(self) -> None:
        """Reset the connection, so that the client does not take a part for the whole."""
        found: socket.socket | None = self._writer.get_extra_info("socket")
        if found is not None:
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()

    def close(self) -> None:
        """Close the connection; what was written still arrives."""
        self._writer.close()


async def carry(one: PortStream | Client, other: PortStream | Client) -> None:
    """Carry bytes both ways until both directions have ended.

    Raises:
        PortClosed, GuestFailed: one end broke off, or its channel was cut.
    """
    supervisor = Supervisor(lambda _name, _error: None)  # the failure is raised here
    ways = [
        supervisor.spawn(_one_way(one, other), name="to the database"),
        supervisor.spawn(_one_way(other, one), name="from the database"),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in ways:
            if way.done():
                way.result()
    finally:
        await finish(supervisor.aclose(), within_s=10)


async def _one_way(source: PortStream | Client, target: PortStream | Client) -> None:
    while data := await source.read():
        await target.write(data)
    await target.end()


class Forwards:
    """The listeners of all databases."""

    def __init__(self, serve: Serve, report: Callable[[str, BaseException], None]) -> None:
        self._serve = serve
        self._tasks = Supervisor(report)
        self._listeners: dict[DatabaseId, asyncio.Server] = {}
        self._open: dict[DatabaseId, set[Client]] = {}

    async def listen(self, database_id: DatabaseId, port: int | None) -> int:
        """Listen for a database's clients on its port, or on another if that is taken; return the port. Idempotent.

        Raises:
            HostNotReady: the host lets us listen on none.
        """
        found = self._listeners.get(database_id)
        if found is not None:
            return int(found.sockets[0].getsockname()[1])
        try:
            server = await self._listening(database_id, port or 0)
        except OSError as exc:
            if port is None or exc.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise HostNotReady(f"no port of {LOOPBACK} can be had: {exc.strerror}") from exc
            server = await self._listening(database_id, 0)
        self._listeners[database_id] = server
        return int(server.sockets[0].getsockname()[1])

    async def _listening(self, database_id: DatabaseId, port: int) -> asyncio.Server:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accepted(database_id, Client(reader, writer))

        return await asyncio.start_server(
            accept, LOOPBACK, port, limit=_CHUNK, backlog=_BACKLOG, reuse_address=True
        )

    async def _accepted(self, database_id: DatabaseId, client: Client) -> None:
        mine = self._open.setdefault(database_id, set())
        if len(mine) >= CONNECTIONS_MOST:
            client.cut()
            return
        mine.add(client)
        work = self._tasks.spawn(self._served(database_id, client), name=f"client {database_id}")
        try:
            await asyncio.wait({work})
        finally:
            mine.discard(client)
            client.close()

    async def _served(self, database_id: DatabaseId, client: Client) -> None:
        try:
            await self._serve(database_id, client)
        except (PortClosed, GuestFailed, GenerationChanged):
            client.cut()  # one end is gone, or the machine slept: the client sees its connection break
        except TorporError:
            client.cut()
            raise

    def cut(self, database_id: DatabaseId) -> None:
        """Break off all of a database's connections; new ones are taken."""
        for client in list(self._open.get(database_id, ())):
            client.cut()

    async def close(self, database_id: DatabaseId) -> None:
        """Listen no more for a database, and break its connections off. Idempotent."""
        server = self._listeners.pop(database_id, None)
        if server is not None:
            server.close()
        self.cut(database_id)
        self._open.pop(database_id, None)

    async def aclose(self) -> None:
        """Stop listening."""
        for database_id in list(self._listeners):
            await self.close(database_id)
        await self._tasks.aclose()
