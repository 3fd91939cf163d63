"""The outermost layer of a listener: names each request, and notes how it went: in figures, in the log, in a span."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.access.principal import Principal
from torpor.base.tracing import span
from torpor.server.access_log import AccessLog
from torpor.server.metrics import Metrics

_GIVEN_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class Upgrades(Protocol):
    """Takes connections over that ask for an upgrade."""

    def take(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        rest: bytes,
        connections: set[Any],
        note: Callable[[Scope, int, int, float], None],
    ) -> bool:
        """Take a connection over, or return False; `rest` came behind the request's head."""
        ...


class Watch:
    """ASGI middleware around a gate."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        log: AccessLog | None,
        upgrades: Upgrades | None = None,
    ) -> None:
        self.upgrades = upgrades
        """What takes over connections that the app itself does not upgrade."""
        self._app = app
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its id: the client's `X-Request-Id` if it can be one, else a fresh one."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = self.name(scope)
        answered = _Answered(send, request_id)
        begun = time.monotonic()
        parent = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers.items()
            if name in (b"traceparent", b"tracestate")
        }
        try:
            with span("request", parent=parent, request_id=request_id.decode("ascii")) as found:
                await self._app(scope, receive, answered.send)
                if found is not None:
                    found.update_name(f"{scope.get('method', 'WS')} {_route(scope)}")
                    found.set_attribute("http.response.status_code", answered.status)
        finally:
            self.note(scope, answered.status, answered.size, time.monotonic() - begun)

    def name(self, scope: Scope) -> bytes:
        """Give a request its id, and return it."""
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8).encode("ascii")
        scope.setdefault("state", {})["request_id"] = request_id.decode("ascii")
        return request_id

    def note(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        """Note how a request went."""
        method = "WEBSOCKET" if scope["type"] == "websocket" else scope["method"]
        route = _route(scope)
        shown = method if method in _METHODS or method == "WEBSOCKET" else "other"
        self._metrics.request(shown, route, status, seconds)
        if self._log is None:
            return
        principal: Principal | None = scope["state"].get("principal")
        client = scope.get("client")
        self._log.write(
            {
                "at": datetime.now(UTC).isoformat(),
                "request_id": scope["state"]["request_id"],
                "method": method[:32],
                "path": scope["path"][:1024],
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 1),
                "bytes": size,
                "client": client[0] if client else "unix",
                "token": None if principal is None else principal.token_id,
                "workspace": None if principal is None else principal.workspace,
            }
        )


class _Answered:
    """Sends an answer on with the request's id, and counts it."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self._header = (b"x-request-id", request_id)
        self.status = 0
        """0: it was not answered."""
        self.size = 0

    async def send(self, message: Message) -> None:
        """Send on."""
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            message["headers"] = [*message["headers"], self._header]
        elif kind == "websocket.accept":
            self.status = 101
            message["headers"] = [*message.get("headers", ()), self._header]
        else:
            said = message.get("bytes") or message.get("text") or ""
            self.size += len(message.get("body", b"")) + len(said)
        await self._send(message)


def _route(scope: Scope) -> str:
    """Return the path as it is declared; every path that is not is the same one."""
    return str(getattr(scope.get("route"), "path", "none"))
