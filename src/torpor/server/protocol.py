"""HTTP connections as this daemon keeps them: few that idle, none that trickles, failures in one flat shape."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from torpor.errors import InvalidRequest, OperationTimeout, RateLimited, TorporError
from torpor.server import limits
from torpor.server.compat.dispatch import is_compat
from torpor.server.replies import error_reply
from torpor.server.watch import Watch

log = logging.getLogger(__name__)

INTERIM_S = 10.0
"""Seconds of silence after which a client of PandaStack's API is told that its request is being carried out.

It hangs up after 30 s without a byte, on a command that runs longer as on a fork that takes longer. An interim
answer (`100 Continue`) is such a byte, and HTTP/1.1 lets a server send any number of them before the answer."""


class Connection(H11Protocol):
    """One connection. A head that does not come in time ends it, and so does a newcomer when all are idle."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_due: asyncio.TimerHandle | None = None
        self._interim_due: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()
        self._is_upgraded = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is being carried out."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()
        if len(self.connections) > limits.CONNECTIONS_MOST and not self._make_room():
            self._refuse(
                RateLimited(
                    f"the daemon has {limits.CONNECTIONS_MOST} connections in use",
                    hint="connect again in a moment",
                    retry_after_seconds=1,
                )
            )

    def _make_room(self) -> bool:
        """Close the connection that was idle longest; return whether there was one."""
        idle = [
            c
            for c in self.connections
            if isinstance(c, Connection)
            and c is not self
            and c.is_idle
            and not c.transport.is_closing()
        ]
        if not idle:
            return False
        min(idle, key=lambda c: c._idle_since).transport.abort()
        return True

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._end_interim()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_upgraded:
            return
        if not self.is_idle or self.transport.is_closing():
            self._expect_nothing()
            # what closes has been refused, and what was no HTTP has no scope
            is_open = not self.transport.is_closing()
            if is_open and self._interim_due is None and is_compat(self.scope):
                self._interim_due = self.loop.call_later(INTERIM_S, self._say_interim)
        elif self._head_due is None:
            self._expect_head()

    @override
    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        self._expect_nothing()  # the keep-alive's limit holds now
        self._end_interim()
        super().on_response_complete()

    @override
    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._is_upgraded = True
        self._expect_nothing()
        watch = self.config.app
        if isinstance(watch, Watch) and watch.upgrades is not None:
            rest = self.conn.trailing_data[0]
            scope = dict(self.scope)
            watch.name(scope)
            if watch.upgrades.take(scope, self.transport, rest, self.connections, watch.note):
                self.connections.discard(self)
                return
        super().handle_websocket_upgrade(event)

    def _expect_head(self) -> None:
        self._head_due = self.loop.call_later(limits.HEAD_LIMIT_S, self._head_is_late)

    def _expect_nothing(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _say_interim(self) -> None:
        """Let the client know that its request is not forgotten, until the answer begins."""
        self._interim_due = None
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_started or self.transport.is_closing():
            return
        if self.conn.their_http_version == b"1.1":
            event = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(event))
            self._interim_due = self.loop.call_later(INTERIM_S, self._say_interim)

    def _end_interim(self) -> None:
        if self._interim_due is not None:
            self._interim_due.cancel()
            self._interim_due = None

    def _head_is_late(self) -> None:
        self._head_due = None
        if self.is_idle and not self.transport.is_closing():
            self._refuse(
                OperationTimeout(
                    f"timeout: no whole request came within {limits.HEAD_LIMIT_S:g} s",
                    hint="connect again",
                )
            )

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(
            InvalidRequest(
                "this is not a request in HTTP/1.1",
                hint=f"a request line and headers, {limits.HEAD_LIMIT_BYTES >> 10} KiB at most",
            )
        )

    def _refuse(self, error: TorporError) -> None:
        """Answer with an error and close; where an answer is under way already, only close."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # its request has no answer but this one
            cycle.message_event.set()
        reply = error_reply(error)
        reply.headers["connection"] = "close"
        try:
            for event in (
                h11.Response(
                    status_code=reply.status_code, headers=reply.raw_headers, reason=b"Error"
                ),
                h11.Data(data=bytes(reply.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            self.transport.abort()
            return
        self.transport.close()


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket of ours. What comes between a client's messages takes no memory without end."""

    @override
    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            self.transport.pause_reading()  # a client has nothing to say before it is answered

    @override
    async def send(self, message: Any) -> None:
        kind = message["type"]
        if kind == "websocket.send" and (self.close_sent or self.transport.is_closing()):
            raise ClientDisconnected  # it is gone, or broke the protocol's rules and was told so
        await super().send(message)
        if kind == "websocket.accept":
            self.transport.resume_reading()
        elif kind == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # else each refusal is an error in the log

    @override
    def handle_ping(self) -> None:
        if self.transport.is_closing():
            return
        super().handle_ping()
        if self.transport.get_write_buffer_size() > limits.UNREAD_MOST_BYTES:
            log.warning("a WebSocket was cut: its client sends pings and reads nothing")
            self.transport.abort()

    @override
    def handle_cont(self, event: Frame) -> None:
        if self.transport.is_closing():
            return
        super().handle_cont(event)
        if len(self.frames) > limits.FRAGMENTS_MOST:
            log.warning(
                "a WebSocket was cut: a message came in over %d frames", limits.FRAGMENTS_MOST
            )
            self.transport.abort()

    @override
    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            data = b"".join(self.frames)
            try:
                data.decode()
            except UnicodeDecodeError:  # what a client sends is no error of ours
                self.frames = []
                self.conn.send_close(CloseCode.INVALID_DATA, "a text message is UTF-8")
                self.handle_parser_exception()
                return
            self.frames = [data]
        super().send_receive_event_to_app()
