"""Which requests are in PandaStack's API: those below its prefix, and those that a client of it sends to `/v1`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/pandastack"
"""Where the routes are; `PANDASTACK_API=http://HOST:PORT/pandastack` names them outright."""

AGENTS = b"pandastack-"
"""How the `User-Agent` of PandaStack's own clients begins (`pandastack-py/0.10.0`)."""


class Dispatch:
    """ASGI middleware before the gate: a client of PandaStack finds its routes at `/v1`, where it looks for them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, under its route's own path."""
        if scope["type"] in ("http", "websocket") and _is_misplaced(scope):
            # in place: who looks at the scope afterwards (access log, connection) shall see the path that was served
            scope["path"] = PREFIX + scope["path"]
            scope["raw_path"] = PREFIX.encode("ascii") + (scope.get("raw_path") or b"")
        await self._app(scope, receive, send)


def is_compat(scope: Mapping[str, object]) -> bool:
    """Return whether a request is in PandaStack's API, before or after `Dispatch` has seen it."""
    return str(scope.get("path", "")).startswith(f"{PREFIX}/") or _is_misplaced(scope)


def _is_misplaced(scope: Mapping[str, object]) -> bool:
    if not str(scope.get("path", "")).startswith("/v1/"):
        return False
    return any(
        name == b"user-agent" and value.lower().startswith(AGENTS)
        for name, value in cast(Iterable[tuple[bytes, bytes]], scope["headers"])
    )
