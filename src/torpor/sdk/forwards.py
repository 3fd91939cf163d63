"""A local TCP port whose connections go to a port in a sandbox, through the daemon and the guest channel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from typing_extensions import override

from torpor.base.aio import both
from torpor.errors import Conflict, InvalidRequest, LimitExceeded, TorporError
from torpor.sdk.client import Client, connection
from torpor.sdk.sockets import PIECE_BYTES, Socket, opened

CONNECTIONS_MOST: Final = 512
"""Of one forward, at the same time."""
OnError = Callable[[TorporError], None]


class AsyncForward:
    """One forwarded port; as an asynchronous context manager it listens until the end.

    Every connection wakes the sandbox if it sleeps, and keeps it from falling asleep while it is open. One that was
    cut is reset, so that neither end takes a part for the whole.
    """

    def __init__(
        self,
        client: Client,
        sandbox_id: str,
        port: int,
        *,
        local_port: int = 0,
        local_host: str = "127.0.0.1",
        idle_seconds: int | None = None,
        on_error: OnError | None = None,
    ) -> None:
        for number, least in ((port, 1), (local_port, 0)):
            if not least <= number <= 65535:
                raise InvalidRequest(f"{number} is no port", hint=f"a port is {least} to 65535")
        self._client = client
        self._sandbox_id = sandbox_id
        self._wanted = (local_host, local_port)
        self._idle_seconds = idle_seconds
        self._on_error = on_error or (lambda _error: None)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.remote_port = port
        """The port in the sandbox."""
        self.host = local_host
        """Where it listens here."""
        self.port = local_port
        """The local port; 0 before it listens, if any was asked for."""

    @override
    def __repr__(self) -> str:
        return f"<AsyncForward {self.address} to port {self.remote_port} of {self._sandbox_id}>"

    @property
    def address(self) -> str:
        """`HOST:PORT`, to connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The same as a URL."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            NotFound: there is no such sandbox.
            Conflict: the local port cannot be had.
        """
        await connection(self._client).call("GET", f"/v1/sandboxes/{self._sandbox_id}")
        host, port = self._wanted
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=PIECE_BYTES, reuse_address=True
            )
        except OSError as exc:
            why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or exc
            raise Conflict(
                f"cannot listen on {host}:{port}: {why}",
                hint="choose another local port, or 0 for any",
                port=port,
            ) from exc
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Stop listening, and cut what is open."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=5)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        is_whole = False
        try:
            if len(self._connections) > CONNECTIONS_MOST:
                raise LimitExceeded(f"{CONNECTIONS_MOST} connections are open already")
            path = f"/v1/sandboxes/{self._sandbox_id}/ports/{self.remote_port}/tunnel"
            query = {"idle_seconds": self._idle_seconds}
            async with opened(connection(self._client), path, query) as tunnel:
                await both(_upward(reader, tunnel), _downward(tunnel, writer))
            is_whole = True
        except TorporError as error:
            self._on_error(error)
        except (OSError, asyncio.CancelledError):
            pass  # the local program left, or we are being closed
        finally:
            self._connections.discard(task)
            _close(writer, is_whole=is_whole)


async def _upward(reader: asyncio.StreamReader, tunnel: Socket) -> None:
    while data := await reader.read(PIECE_BYTES):
        await tunnel.send(data)
    await tunnel.tell(type="end")


async def _downward(tunnel: Socket, writer: asyncio.StreamWriter) -> None:
    while (message := await tunnel.receive()) is not None:
        if isinstance(message, bytes):
            writer.write(message)
            await writer.drain()
        elif message.get("type") == "end":
            writer.write_eof()


def _close(writer: asyncio.StreamWriter, *, is_whole: bool) -> None:
    if is_whole:
        writer.close()
        return
    link: socket.socket | None = writer.get_extra_info("socket")
    if link is not None:
        with contextlib.suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
