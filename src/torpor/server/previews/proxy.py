"""Carries HTTP requests to a program in a machine, each over a connection of its own, both bodies as they come."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send

from torpor.base.aio import Supervisor, finish
from torpor.errors import (
    GuestFailed,
    InvalidRequest,
    OperationTimeout,
    PortClosed,
    RateLimited,
    TorporError,
)
from torpor.guest.port import PortStream
from torpor.sandboxes.port import EnginePort
from torpor.server import limits
from torpor.server.carry import HEAD_WAIT_S, IDLE_S, not_idle
from torpor.server.hosts import Hosts
from torpor.server.metrics import Metrics
from torpor.server.previews.door import COOKIE, Pass, PreviewDoor
from torpor.server.previews.heads import answer_headers, cookie_of, path_of, request_headers
from torpor.server.previews.names import Target, target_of
from torpor.server.replies import STALL_S, Reply, as_torpor_error, error_reply
from torpor.server.view import EngineView

AT_ONCE_MOST: Final = 256
"""Requests to previews of one sandbox that are carried out at the same time, WebSockets included."""
_ROUTE: Final = "preview"
_STATUS_MOST: Final = 599


class Route:
    """Stands for all previews in the log and in figures."""

    path = _ROUTE


class Previews:
    """ASGI middleware of a TCP listener: requests for a preview's name are carried into its machine."""

    def __init__(
        self, app: ASGIApp, hosts: Hosts, door: PreviewDoor, engine: EnginePort, metrics: Metrics
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._engine = engine
        self._metrics = metrics
        self._under_way: Counter[str] = Counter()
        self.door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry a preview's request, or pass another on."""
        target = self.target(scope) if scope["type"] in ("http", "websocket") else None
        if target is None:
            await self._app(scope, receive, send)
            return
        try:
            if len(scope["headers"]) > limits.HEADERS_MOST:
                raise RateLimited(f"more than {limits.HEADERS_MOST} headers")
            admitted = self.door.admit(scope, target)
            scope["state"]["principal"] = admitted.principal
            if _is_visit(scope, admitted):
                await _redirected(scope, admitted)(scope, receive, send)
                return
            await self._carried(scope, receive, send, target, admitted)
        except TorporError as error:
            await error_reply(error)(scope, receive, send)

    def target(self, scope: Scope) -> Target | None:
        """Return what a request's Host names, if it is a preview."""
        found = target_of(dict(scope["headers"]).get(b"host"), self._hosts)
        if found is not None:
            scope["route"] = Route
        return found

    @asynccontextmanager
    async def opened(self, target: Target, admitted: Pass) -> AsyncIterator[PortStream]:
        """Enter with a connection to the port; a sandbox that sleeps is woken. Raises `RateLimited`, too."""
        view = EngineView(self._engine, admitted.principal, self._metrics)
        with self._counted(target.sandbox_id):
            async with view.guest(target.sandbox_id) as guest, guest.open_port(target.port) as port:
                yield port

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        if self._under_way[name] >= AT_ONCE_MOST:
            raise RateLimited(
                f"{AT_ONCE_MOST} requests to previews of this sandbox are under way",
                hint="wait until some are answered",
                retry_after_seconds=1,
            )
        self._under_way[name] += 1
        try:
            yield
        finally:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    async def _carried(
        self, scope: Scope, receive: Receive, send: Send, target: Target, admitted: Pass
    ) -> None:
        exchange = Exchange(scope, receive, send, admitted)
        try:
            async with self.opened(target, admitted) as port:
                await exchange.run(port)
        except (
            Exception
        ) as exc:  # whatever it was: an answer that was begun is cut, and never ended
            error = as_torpor_error(exc)
            if not exchange.has_begun and not exchange.is_gone:
                raise error from exc


class Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, admitted: Pass) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._admitted = admitted
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.HEAD_LIMIT_BYTES)
        self.has_begun = False
        """Whether the browser has got the beginning of an answer."""
        self.is_gone = False
        """Whether the browser hung up."""

    async def run(self, port: PortStream) -> None:
        """Carry the request and its answer over `port`.

        Raises:
            PortClosed, GuestFailed, OperationTimeout: there is no answer, or no more of it.
        """
        supervisor = Supervisor(lambda _name, _error: None)  # what matters of it is raised here
        sending = supervisor.spawn(self._upward(port), name="preview request")
        answering = supervisor.spawn(self._downward(port), name="preview answer")
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not isinstance(sending.exception(), PortClosed):
                sending.result()
                if self.is_gone:
                    return
                watching = supervisor.spawn(self._until_gone(), name="preview hang-up")
                await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    return
            await answering
        finally:
            await finish(supervisor.aclose(within_s=5), within_s=10)

    async def _upward(self, port: PortStream) -> None:
        """Send the request on."""
        try:
            await self._send_on(port)
        except h11.LocalProtocolError as exc:
            raise InvalidRequest(f"the request cannot be passed on: {exc}") from exc

    async def _send_on(self, port: PortStream) -> None:
        scope = self._scope
        request = h11.Request(
            method=scope["method"],
            target=path_of(scope, self._admitted.query),
            headers=request_headers(scope, self._admitted, is_upgrade=False),
        )
        await port.write(self._http.send(request) or b"")
        more = True
        while more:
            message = await self._next()
            if message is None:
                self.is_gone = True
                return
            body, more = message
            if body:
                await port.write(self._http.send(h11.Data(data=body)) or b"")
        await port.write(self._http.send(h11.EndOfMessage()) or b"")

    async def _next(self) -> tuple[bytes, bool] | None:
        try:
            async with asyncio.timeout(limits.BODY_SILENCE_S):
                message = await self._receive()
        except TimeoutError as exc:
            raise OperationTimeout(
                f"timeout: no byte of the request's body came for {limits.BODY_SILENCE_S:g} s",
                hint="send it again",
            ) from exc
        if message["type"] != "http.request":
            return None
        return message.get("body", b""), message.get("more_body", False)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True

    async def _downward(self, port: PortStream) -> None:
        """Send the answer back."""
        async with not_idle(HEAD_WAIT_S, "the program in the machine did not answer"):
            event = await self._event(port)
            while isinstance(event, h11.InformationalResponse):
                event = await self._event(port)
        if not isinstance(event, h11.Response):
            raise PortClosed("the program in the machine closed the connection without an answer")
        if event.status_code > _STATUS_MOST:
            raise GuestFailed(f"the program in the machine answered with {event.status_code}")
        headers = answer_headers(event.headers, self._admitted, self._scope)
        await self._sent({"status": event.status_code, "headers": headers})
        self.has_begun = True
        async with not_idle(IDLE_S, "the program in the machine sent nothing more") as note:
            while True:
                event = await self._event(port)
                note()
                if isinstance(event, h11.EndOfMessage):
                    break
                if not isinstance(event, h11.Data):
                    raise PortClosed("the program in the machine broke its answer off")
                await self._sent({"body": bytes(event.data), "more_body": True})
        await self._sent({"body": b"", "more_body": False})

    async def _event(self, port: PortStream) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return cast("h11.Event | type[h11.PAUSED]", event)
                self._http.receive_data(await port.read())
            except h11.RemoteProtocolError as exc:
                raise GuestFailed(f"the program in the machine does not speak HTTP: {exc}") from exc

    async def _sent(self, message: dict[str, object]) -> None:
        kind = "http.response.start" if "status" in message else "http.response.body"
        try:
            async with asyncio.timeout(STALL_S):
                await self._send({"type": kind, **message})
        except TimeoutError as exc:
            raise OperationTimeout(f"timeout: the browser read nothing for {STALL_S:g} s") from exc


def _is_visit(scope: Scope, admitted: Pass) -> bool:
    """Return whether a person opened a link: then the browser is sent on, so that the link is not in its bar."""
    headers = dict(scope["headers"])
    return (
        admitted.link is not None
        and scope["type"] == "http"
        and scope["method"] == "GET"
        and (
            headers.get(b"sec-fetch-mode") == b"navigate"
            or b"text/html" in headers.get(b"accept", b"")
        )
    )


def _redirected(scope: Scope, admitted: Pass) -> Reply:
    path = path_of(scope, admitted.query).decode("latin-1")
    # never `//host`, which would lead elsewhere, nor what browsers read as that
    reply = Reply({COOKIE: "kept as a cookie"}, 303, {"location": "/" + path.lstrip("/\\")})
    reply.headers["referrer-policy"] = "no-referrer"
    reply.headers["cache-control"] = "no-store"
    reply.raw_headers.extend(cookie_of(admitted, scope))
    return reply
