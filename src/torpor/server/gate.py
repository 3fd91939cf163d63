"""What every request passes first: the token, the size limit, and the daemon's name on every answer."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor import __version__
from torpor.errors import LimitExceeded, NotAuthenticated, TorporError
from torpor.server.replies import error_reply

BODY_LIMIT_BYTES = 16 << 20
"""Largest body of a request that is read as a whole. PUT bodies are streamed and have no limit here."""


class Gate:
    """ASGI middleware; with `token` None everyone who reaches the socket may come in."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = token
        self._headers = [
            (b"x-torpor-version", __version__.encode("ascii")),
            (b"x-torpor-pid", str(os.getpid()).encode("ascii")),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it here with the error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        try:
            self._check_token(scope["headers"])
            if scope["method"] != "PUT":
                receive = await _bounded(scope["headers"], receive)
        except TorporError as error:
            await error_reply(error)(scope, receive, named)
            return
        await self._app(scope, receive, named)

    def _check_token(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self._token is None:
            return
        for name, value in headers:
            if name == b"authorization":
                scheme, _, shown = value.partition(b" ")
                if scheme.lower() == b"bearer" and secrets.compare_digest(
                    shown.strip(), self._token.encode()
                ):
                    return
                raise NotAuthenticated(
                    "the token is not valid",
                    hint="use TORPOR_TOKEN, or what is in the daemon's file `token`",
                )
        raise NotAuthenticated(
            "a token is needed on TCP",
            hint="send `Authorization: Bearer TOKEN` (SDK: TORPOR_TOKEN)",
        )


async def _bounded(headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> Receive:
    """Read the whole body, within the limit, and return a `receive` that plays it back."""
    found = {
        name: value for name, value in headers if name in (b"content-length", b"transfer-encoding")
    }
    if not found or found.get(b"content-length") == b"0":
        return receive
    if int(found.get(b"content-length", b"0")) > BODY_LIMIT_BYTES:
        raise _too_large()
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return receive
        body += message.get("body", b"")
        if len(body) > BODY_LIMIT_BYTES:
            raise _too_large()
        more = message.get("more_body", False)
    whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def replay() -> Message:
        return whole.pop() if whole else await receive()

    return replay


def _too_large() -> LimitExceeded:
    return LimitExceeded(
        f"the request's body is over {BODY_LIMIT_BYTES >> 20} MiB",
        hint="send large content as a file: PUT /v1/sandboxes/{id}/fs",
        limit_bytes=BODY_LIMIT_BYTES,
    )
