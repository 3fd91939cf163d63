"""Requests that make something may come with an `Idempotency-Key`: however often one comes, it is done once."""

from __future__ import annotations

import json
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.access.ledger import ANSWER_MOST_BYTES, Answer, Ledger, Plan, Turn
from torpor.access.principal import Principal
from torpor.errors import NotFound, TorporError
from torpor.sandboxes.port import EnginePort
from torpor.server.replies import error_reply

KEYED = re.compile(
    r"/v1/(sandboxes|sandboxes/[^/]+/(snapshots|fork|fork-tree)|snapshots/[^/]+/(restore|fork))"
)
"""Paths whose POST makes something. What a route makes must come from the request's plan: see `EngineView`."""


class Replays:
    """ASGI middleware between the gate and the app."""

    def __init__(self, app: ASGIApp, ledger: Ledger, engine: EnginePort) -> None:
        self._app = app
        self._ledger = ledger
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry the request out, or answer as it was answered before."""
        key = _key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        body = await _whole(receive)
        if body is None:  # the client is gone
            return
        principal: Principal = scope["state"]["principal"]
        print_ = self._ledger.fingerprint(
            scope["path"].encode("utf-8", "surrogateescape"), scope["query_string"], body
        )
        captured = _Captured()
        try:
            async with self._ledger.turn(
                principal.workspace, key.decode("latin-1"), print_
            ) as turn:
                if turn.known is None:
                    scope["state"]["plan"] = turn.plan
                    try:
                        await self._app(scope, _given(body, receive), captured.take)
                    except Exception:
                        await captured.send_on(send)
                        raise
                    await self._judge(turn, captured)
                else:
                    captured.answered_before(turn.known)
        except TorporError as error:
            await error_reply(error)(scope, receive, send)
            return
        await captured.send_on(send)

    async def _judge(self, turn: Turn, captured: _Captured) -> None:
        """Say what is kept: a success, or a failure after which something is there.

        A failure that may pass leaves the turn open, so that the same request goes on where it was; one after
        which nothing is there gives the key back.
        """
        if captured.status < 400:
            if len(captured.body) <= ANSWER_MOST_BYTES:
                turn.outcome = Answer(captured.status, bytes(captured.body))
            return
        if _is_retryable(captured.body):
            return
        if await self._is_there(turn.plan):
            turn.outcome = Answer(captured.status, bytes(captured.body))
        else:
            turn.is_void = True

    async def _is_there(self, plan: Plan) -> bool:
        try:
            await self._engine.get(plan.sandbox())
        except NotFound:
            return False
        return True


class _Captured:
    """The answer of the app, held until it is written down."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self._messages: list[Message] = []

    async def take(self, message: Message) -> None:
        """Take what the app sends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")
        self._messages.append(message)

    def answered_before(self, answer: Answer) -> None:
        """Take an answer from before."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer.body)).encode("ascii")),
            (b"idempotency-replayed", b"true"),
        ]
        self._messages = [
            {"type": "http.response.start", "status": answer.status, "headers": headers},
            {"type": "http.response.body", "body": answer.body},
        ]

    async def send_on(self, send: Send) -> None:
        """Send it to the client."""
        for message in self._messages:
            await send(message)


def _key(scope: Scope) -> bytes | None:
    if scope["type"] != "http" or scope["method"] != "POST" or not KEYED.fullmatch(scope["path"]):
        return None
    return next((value for name, value in scope["headers"] if name == b"idempotency-key"), None)


async def _whole(receive: Receive) -> bytes | None:
    """Return the body, which the gate has bounded; None: the client hung up."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _given(body: bytes, receive: Receive) -> Receive:
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Message:
        return whole.pop() if whole else await receive()

    return given


def _is_retryable(body: bytes | bytearray) -> bool:
    try:
        return bool(json.loads(body)["retryable"])
    except (ValueError, KeyError, TypeError):
        return False
