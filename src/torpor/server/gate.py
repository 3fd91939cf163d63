"""What every request passes first, one gate a listener: who asks, how much, how large; and headers on every answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor import __version__
from torpor.access.opening import Access
from torpor.access.principal import HOST, Principal
from torpor.base.aio import Supervisor
from torpor.errors import (
    LimitExceeded,
    NotAuthenticated,
    OperationTimeout,
    RateLimited,
    TorporError,
)
from torpor.server import limits
from torpor.server.hosts import Hosts
from torpor.server.previews.door import PreviewDoor
from torpor.server.replies import error_reply

Headers = Mapping[bytes, bytes]

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""On every answer over TCP, where browsers come from, that does not say otherwise. None allows a page from
elsewhere anything: CORS stays closed."""


class Door(Protocol):
    """Decides who comes in by a listener."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """What is put on its answers."""
        ...

    def admit(self, scope: Scope, headers: Headers) -> Principal:
        """Return who asks. Raises `NotAuthenticated`, `NotAllowed`, `RateLimited` or `InvalidRequest`."""
        ...


class UnixDoor:
    """Lets in whoever could open the socket: its mode is the lock."""

    headers: Sequence[tuple[bytes, bytes]] = ()

    def admit(self, scope: Scope, headers: Headers) -> Principal:
        """Return the host's own user."""
        return HOST


class TcpDoor:
    """Lets in who shows a token, under a name that is ours, not too often."""

    headers: Sequence[tuple[bytes, bytes]] = SECURITY_HEADERS

    def __init__(
        self,
        access: Access,
        hosts: Hosts,
        *,
        per_s: float = limits.REQUESTS_PER_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._hosts = hosts
        self._per_s, self._now_s = per_s, now_s
        self._requests = limits.Buckets(per_s, per_s * limits.BURST_S, now_s)
        self._failures = limits.Buckets(limits.FAILURES_PER_S, limits.FAILURES_BURST, now_s)
        self._supervisor = Supervisor(lambda _name, _error: None)  # when it was used is a courtesy

    @property
    def hosts(self) -> Hosts:
        """The names that are answered to."""
        return self._hosts

    def preview_door(self) -> PreviewDoor:
        """Return what lets in to the previews of this listener."""
        return PreviewDoor(self._access, per_s=self._per_s, now_s=self._now_s)

    def admit(self, scope: Scope, headers: Headers) -> Principal:
        """Return whom the token stands for."""
        self._hosts.check(headers.get(b"host"), headers.get(b"origin"))
        client = scope.get("client")
        address = str(client[0]) if client else ""
        self._failures.check(address)
        # who shows none guesses none: a web page, which can show none, must not shut the user's programs out
        shown = _shown(scope, headers)
        try:
            found = self._access.tokens.check(shown)
        except NotAuthenticated:
            self._failures.take(address)
            raise
        assert found.token is not None
        self._requests.take(found.token.id)
        now = self._access.clock.now()
        if self._access.tokens.is_use_due(found.token, now):
            self._supervisor.launch(
                self._access.tokens.note_use(found.token.id, now), name="token used"
            )
        return found


def _shown(scope: Scope, headers: Headers) -> str:
    given = headers.get(b"authorization")
    if given is not None:
        scheme, _, shown = given.partition(b" ")
        if scheme.lower() == b"bearer":
            return str(shown.strip(), "latin-1")
        raise NotAuthenticated(
            "the Authorization header is not of the kind Bearer",
            hint="send `Authorization: Bearer TOKEN`",
        )
    if scope["type"] == "websocket":  # browsers cannot set headers there
        found = parse_qs(scope["query_string"].decode("latin-1")).get("access_token")
        if found:
            return str(found[0])
    raise NotAuthenticated(
        "a token is needed on TCP",
        hint="send `Authorization: Bearer TOKEN` (SDK: TORPOR_TOKEN); "
        "make one on the daemon's host: torpor token create NAME --scope use",
    )


class Gate:
    """ASGI middleware: lets a request through to the app with its principal, or answers it with the error."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door
        self._in_flight: Counter[str] = Counter()
        self._buffered_bytes = 0
        self._own_headers = (
            (b"x-torpor-version", __version__.encode("ascii")),
            (b"x-torpor-pid", str(os.getpid()).encode("ascii")),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it here with the error."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def named(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                said = {name for name, _ in message["headers"]}
                more = [pair for pair in self._door.headers if pair[0] not in said]
                message["headers"] = [*message["headers"], *self._own_headers, *more]
            await send(message)

        try:
            principal = self._admit(scope)
        except TorporError as error:
            await _refuse(error, scope, receive, named)
            return
        name = principal.token_id or ""
        self._in_flight[name] += 1
        buffered = _Buffered()
        try:
            if scope["type"] == "http":
                receive = await self._bounded(scope, receive, buffered)
            await self._app(scope, receive, named)
        except _Refused as refused:
            await error_reply(refused.error)(scope, receive, named)
        finally:
            self._buffered_bytes -= buffered.size
            self._in_flight[name] -= 1
            if not self._in_flight[name]:
                del self._in_flight[name]

    def _admit(self, scope: Scope) -> Principal:
        if len(scope["headers"]) > limits.HEADERS_MOST:
            raise LimitExceeded(
                f"the request has {len(scope['headers'])} headers; {limits.HEADERS_MOST} are allowed"
            )
        principal = self._door.admit(scope, dict(scope["headers"]))
        token_id = principal.token_id
        if token_id is not None and self._in_flight[token_id] >= limits.IN_FLIGHT_MOST:
            raise RateLimited(
                f"this token has {limits.IN_FLIGHT_MOST} requests under way",
                hint="wait until some are answered",
                retry_after_seconds=1,
            )
        scope.setdefault("state", {})["principal"] = principal
        return principal

    async def _bounded(self, scope: Scope, receive: Receive, buffered: _Buffered) -> Receive:
        """Return a `receive` that gives the whole body at once; a streamed one it only watches.

        Raises:
            _Refused: it is too large, too slow, or there is no room for it now.
        """
        found = {
            name: value
            for name, value in scope["headers"]
            if name in (b"content-length", b"transfer-encoding")
        }
        # chunks count before a length, also before a length of 0
        if b"transfer-encoding" not in found and found.get(b"content-length", b"0") == b"0":
            return receive
        limit = limits.body_limit(scope["method"], scope["path"])
        if limit is None:
            return _watched(receive)
        length = found.get(b"content-length", b"0")
        if len(length) > 15 or int(length) > limit:
            raise _Refused(_too_large(limit))
        body = bytearray()
        more = True
        while more:
            message = await _within(receive)
            if message["type"] == "http.disconnect":
                return _again(message)
            piece = message.get("body", b"")
            self._hold(len(piece), buffered)
            body += piece
            if len(body) > limit:
                raise _Refused(_too_large(limit))
            more = message.get("more_body", False)
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return replay

    def _hold(self, size: int, buffered: _Buffered) -> None:
        if self._buffered_bytes + size > limits.BUFFERED_MOST_BYTES:
            raise _Refused(
                RateLimited(
                    "the daemon holds as many requests' bodies as it may",
                    hint="send it again in a moment",
                    retry_after_seconds=1,
                )
            )
        buffered.size += size
        self._buffered_bytes += size


class _Buffered:
    """How much of the listener's room for bodies one request takes."""

    size = 0


class _Refused(Exception):
    """Carries the answer for a request whose body is not taken."""

    def __init__(self, error: TorporError) -> None:
        super().__init__(error.message)
        self.error = error


async def _refuse(error: TorporError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
    reply = error_reply(error)
    if isinstance(error, NotAuthenticated):
        reply.headers["www-authenticate"] = "Bearer"
    await reply(scope, receive, send)


async def _within(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(limits.BODY_SILENCE_S):
            return await receive()
    except TimeoutError:
        raise _Refused(
            OperationTimeout(
                f"timeout: no byte of the request's body came for {limits.BODY_SILENCE_S:g} s",
                hint="send it again",
            )
        ) from None


def _watched(receive: Receive) -> Receive:
    """Return a `receive` that gives up a body that does not go on."""
    is_over = False

    async def watched() -> Message:
        nonlocal is_over
        if is_over:
            return await receive()
        try:
            message = await _within(receive)
        except _Refused as refused:
            raise refused.error from None
        is_over = not message.get("more_body", False)
        return message

    return watched


def _again(message: Message) -> Receive:
    async def again() -> Message:
        return message

    return again


def _too_large(limit: int) -> LimitExceeded:
    return LimitExceeded(
        f"the request's body is over {limit >> 20} MiB",
        hint="send large content as a file: PUT /v1/sandboxes/{id}/fs",
        limit_bytes=limit,
    )
