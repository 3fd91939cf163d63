"""What the daemon answers with: ASCII JSON, and streams that notice when nobody listens any more."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from torpor.base.aio import Supervisor
from torpor.base.plain import to_plain
from torpor.errors import TorporError, error_to_wire
from torpor.server.pump import Pump

log = logging.getLogger(__name__)

KEEPALIVE_S = 10.0
"""Seconds of silence after which a stream sends a comment; clients give up after 30."""

STALL_S = 600.0
"""Seconds that a client may leave a full stream unread before it is cut off."""


def to_json(value: object) -> bytes:
    """Return `value` as ASCII JSON on one line; lone surrogates (raw bytes of file names) are escaped."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=_plain).encode(
        "ascii"
    )


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


class Reply(Response):
    """A JSON reply of a wire model."""

    media_type = "application/json"

    def __init__(
        self, value: object, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(to_json(value), status_code, headers)


RETRY_AFTER_S = 5
"""Said when there is no room now and nothing tells when there will be."""


def error_reply(error: TorporError) -> Reply:
    """Return the flat JSON reply for `error`; where waiting helps it says how long."""
    reply = Reply(error_to_wire(error), error.http_status)
    wait_s = error.facts.get("retry_after_seconds")
    if wait_s is None and error.retryable and error.http_status in (429, 503, 507):
        wait_s = RETRY_AFTER_S
    if wait_s is not None:
        reply.headers["retry-after"] = str(wait_s)
    return reply


def as_torpor_error(error: Exception) -> TorporError:
    """Return `error` itself if it is one of ours, else log it and return a plain internal error."""
    if isinstance(error, TorporError):
        return error
    log.error("unexpected %s", type(error).__name__, exc_info=error)
    return TorporError(
        f"the daemon failed: {type(error).__name__}", hint="the daemon's log has the details"
    )


class Last(bytes):
    """A chunk after which its stream is over: it is sent together with the stream's end."""


def sse(event: str | None, data: object, *, event_id: str | None = None) -> bytes:
    """Return one server-sent event with JSON data on one line."""
    head = b"" if event is None else b"event: %s\n" % event.encode("ascii")
    if event_id is not None:
        head += b"id: %s\n" % event_id.encode("ascii")
    return head + b"data: " + to_json(data) + b"\n\n"


def sse_error(error: TorporError) -> bytes:
    """Return the `error` event for `error`; always the last of its stream."""
    return Last(sse("error", error_to_wire(error)))


def json_line_error(error: TorporError) -> bytes:
    """Return the last line of a JSON-lines stream that failed."""
    return to_json(error_to_wire(error)) + b"\n"


class Streamed(Response):
    """A reply whose bytes come from a pump; made by `streamed`.

    The client's hanging up stops the source at once. A source that fails ends the stream with
    `on_error`'s frame, or, without one, cuts the connection so that the client cannot take a part for all.
    """

    def __init__(
        self,
        pump: Pump[bytes],
        first: list[bytes],
        *,
        media_type: str,
        keepalive: bytes | None,
        on_error: Callable[[TorporError], bytes] | None,
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-store"}, media_type)
        del self.headers["content-length"]
        self._pump = pump
        self._first = first
        self._keepalive = keepalive
        self._on_error = on_error

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, until it or the client ends."""
        hang_up = Supervisor(lambda _name, _error: None).spawn(
            _disconnected(receive), name="hang-up"
        )
        hang_up.add_done_callback(lambda _task: self._pump.stop())
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            chunks = self._first
            while await self._sent(send, chunks):
                chunks = await self._next()
        finally:
            hang_up.cancel()
            await self._pump.aclose()

    async def _next(self) -> list[bytes]:
        """Return what is to be sent next; nothing if the stream has to be cut."""
        try:
            return await self._pump.get_ready(within_s=KEEPALIVE_S if self._keepalive else None)
        except StopAsyncIteration:
            return [Last()]
        except TimeoutError:
            assert self._keepalive is not None
            return [self._keepalive]
        except Exception as exc:  # noqa: BLE001 - whatever the source raised; it is reported, not lost
            error = as_torpor_error(exc)
            if self._on_error is not None:
                return [Last(self._on_error(error))]
            log.warning("a stream was cut: %s", error.message)
            return []

    async def _sent(self, send: Send, chunks: list[bytes]) -> bool:
        """Send chunks; return whether the stream goes on."""
        if not chunks:
            return False
        is_last = isinstance(chunks[-1], Last)
        try:
            async with asyncio.timeout(STALL_S):
                await send(
                    {
                        "type": "http.response.body",
                        "body": b"".join(chunks),
                        "more_body": not is_last,
                    }
                )
        except TimeoutError:
            log.warning("a stream was cut: its client read nothing for %g s", STALL_S)
            return False
        return not is_last


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def streamed(
    source: AsyncGenerator[bytes, None],
    *,
    media_type: str,
    first_within_s: float = 15.0,
    keepalive: bytes | None = None,
    on_error: Callable[[TorporError], bytes] | None = None,
) -> Streamed:
    """Return a reply that streams `source`.

    It waits up to `first_within_s` seconds for the first chunk, so that a failure before it is raised here
    and gets its own HTTP status.
    """
    pump = Pump(source)
    first: list[bytes] = [b""]
    try:
        first = await pump.get_ready(within_s=first_within_s)
    except (StopAsyncIteration, TimeoutError):
        pass
    except BaseException:
        await pump.aclose()
        raise
    return Streamed(pump, first, media_type=media_type, keepalive=keepalive, on_error=on_error)


async def event_stream(
    source: AsyncGenerator[bytes, None], *, first_within_s: float = 15.0
) -> Streamed:
    """Return a server-sent event stream of the frames in `source`; a late failure is its last event."""
    return await streamed(
        source,
        media_type="text/event-stream; charset=utf-8",
        first_within_s=first_within_s,
        keepalive=b": keepalive\n\n",
        on_error=sse_error,
    )
