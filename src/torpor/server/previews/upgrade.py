"""WebSockets through a preview: the handshake is carried as a request is, and from then on the bytes as they are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import h11
from starlette.types import Scope
from typing_extensions import override

from torpor.base.aio import Supervisor, both
from torpor.errors import GuestFailed, InvalidRequest, PortClosed, TorporError
from torpor.guest.port import PortStream
from torpor.server import limits
from torpor.server.carry import HEAD_WAIT_S, IDLE_S, not_idle
from torpor.server.previews.door import Pass
from torpor.server.previews.heads import answer_headers, path_of, request_headers
from torpor.server.previews.names import Target
from torpor.server.previews.proxy import Previews
from torpor.server.replies import as_torpor_error, error_reply

_CHUNK: Final = 64 << 10
_SWITCHED: Final = 101


class Upgraded(asyncio.StreamReaderProtocol):
    """What is left of an HTTP connection that a preview took over; the server ends it as it ends its own."""

    def __init__(self, reader: asyncio.StreamReader, connections: set[Any]) -> None:
        super().__init__(reader)
        self._connections = connections
        self._link: asyncio.BaseTransport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link = transport
        self._connections.add(self)
        super().connection_made(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, as the server ends."""
        if isinstance(self._link, asyncio.Transport):
            self._link.abort()


class Upgrades:
    """Carries the upgrade requests of one listener that are for previews."""

    def __init__(self, previews: Previews) -> None:
        self._previews = previews
        self._supervisor = Supervisor(lambda _name, _error: None)  # each answers its own failure

    def take(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        rest: bytes,
        connections: set[Any],
        note: Any,
    ) -> bool:
        """Take a connection over if its request is for a preview; `rest` came behind the request's head."""
        scope["type"] = "websocket"
        target = self._previews.target(scope)
        if target is None:
            scope["type"] = "http"
            return False
        reader = asyncio.StreamReader(limit=_CHUNK)
        protocol = Upgraded(reader, connections)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            reader.feed_data(rest)
        writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        self._supervisor.launch(
            self._serve(scope, target, reader, writer, note), name="preview upgrade"
        )
        return True

    async def aclose(self) -> None:
        """End all."""
        await self._supervisor.aclose(within_s=2)

    async def _serve(
        self,
        scope: Scope,
        target: Target,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        note: Any,
    ) -> None:
        begun = time.monotonic()
        exchange = _Exchange(scope, reader, writer)
        try:
            admitted = self._previews.door.admit(scope, target)
            scope["state"]["principal"] = admitted.principal
            async with self._previews.opened(target, admitted) as port:
                await exchange.run(port, admitted)
            writer.close()
        except (
            ConnectionError
        ):  # the browser is gone: what goes wrong in the machine has errors of its own
            exchange.was_cut = True
        except Exception as exc:  # noqa: BLE001 - whatever it was: it is answered if it can be, and else cut
            await exchange.fail(as_torpor_error(exc))
        finally:
            writer.transport.abort() if exchange.was_cut else writer.close()
            note(scope, exchange.status, exchange.size, time.monotonic() - begun)


class _Exchange:
    """One handshake and what follows it."""

    def __init__(
        self, scope: Scope, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._scope = scope
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.size = 0
        self.was_cut = False

    async def fail(self, error: TorporError) -> None:
        """Answer with an error, or cut what was begun."""
        if self.status:
            self.was_cut = True
            return
        reply = error_reply(error)
        self.status = reply.status_code
        with contextlib.suppress(ConnectionError):
            await self._say(reply.status_code, list(reply.raw_headers), bytes(reply.body))

    async def run(self, port: PortStream, admitted: Pass) -> None:
        """Carry the handshake over `port`, and what follows until both directions have ended."""
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.HEAD_LIMIT_BYTES)
        headers = request_headers(self._scope, admitted, is_upgrade=True)
        try:
            request = h11.Request(
                method="GET", target=path_of(self._scope, admitted.query), headers=headers
            )
            await port.write(http.send(request) or b"")
            http.send(h11.EndOfMessage())
        except h11.LocalProtocolError as exc:
            raise InvalidRequest(f"the handshake cannot be passed on: {exc}") from exc
        async with not_idle(HEAD_WAIT_S, "the program in the machine did not answer"):
            event = await _event(http, port)
        if isinstance(event, h11.InformationalResponse) and event.status_code == _SWITCHED:
            await self._switched(http, event, port, admitted)
        elif isinstance(event, h11.Response):
            await self._declined(http, event, port, admitted)
        else:
            raise PortClosed("the program in the machine closed the connection without an answer")

    async def _switched(
        self,
        http: h11.Connection,
        event: h11.InformationalResponse,
        port: PortStream,
        admitted: Pass,
    ) -> None:
        said = dict(event.headers)
        headers = answer_headers(event.headers, admitted, self._scope)
        headers += [(b"connection", b"Upgrade"), (b"upgrade", said.get(b"upgrade", b"websocket"))]
        self.status = _SWITCHED
        self._writer.write(_head(_SWITCHED, b"Switching Protocols", headers))
        self._writer.write(http.trailing_data[0])
        await self._writer.drain()
        async with not_idle(IDLE_S) as note:
            await both(self._upward(port, note), self._downward(port, note))

    async def _declined(
        self, http: h11.Connection, event: h11.Response, port: PortStream, admitted: Pass
    ) -> None:
        """Pass on the answer of a program that does not switch."""
        headers = answer_headers(event.headers, admitted, self._scope)
        self.status = event.status_code
        body = bytearray()
        async with not_idle(IDLE_S):
            async for piece in _body(http, port):
                body += piece
                if len(body) > limits.SMALL_BODY_BYTES:
                    raise GuestFailed("the program's answer to a handshake is too long")
        await self._say(event.status_code, headers, bytes(body))

    async def _say(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        kept = [
            pair for pair in headers if pair[0].lower() not in (b"content-length", b"connection")
        ]
        length = b"%d" % len(body)
        kept += [(b"content-length", length), (b"connection", b"close")]
        self._writer.write(_head(status, b"Answer", kept) + body)
        self.size += len(body)
        await self._writer.drain()

    async def _upward(self, port: PortStream, note: Any) -> None:
        while data := await self._reader.read(_CHUNK):
            note()
            await port.write(data)
        await port.end()

    async def _downward(self, port: PortStream, note: Any) -> None:
        while data := await port.read():
            note()
            self.size += len(data)
            self._writer.write(data)
            await self._writer.drain()
        with contextlib.suppress(OSError):  # the browser is gone
            self._writer.write_eof()


async def _event(http: h11.Connection, port: PortStream) -> Any:
    while True:
        try:
            event = http.next_event()
            if event is not h11.NEED_DATA and not (
                isinstance(event, h11.InformationalResponse) and event.status_code != _SWITCHED
            ):
                return event
            if event is h11.NEED_DATA:
                http.receive_data(await port.read())
        except h11.RemoteProtocolError as exc:
            raise GuestFailed(f"the program in the machine does not speak HTTP: {exc}") from exc


async def _body(http: h11.Connection, port: PortStream) -> AsyncIterator[bytes]:
    while True:
        event = await _event(http, port)
        if isinstance(event, h11.EndOfMessage):
            return
        if not isinstance(event, h11.Data):
            raise PortClosed("the program in the machine broke its answer off")
        yield bytes(event.data)


def _head(status: int, reason: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [b"HTTP/1.1 %d %s" % (status, reason), *(b"%s: %s" % pair for pair in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"
