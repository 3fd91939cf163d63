"""Server-sent events from bytes, however they are cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from torpor.base.aio import closing
from torpor.errors import TorporError

EVENT_LIMIT_BYTES = 16 << 20
"""Longest event that is believed."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event; `name` is `message` when it was sent without one."""

    name: str
    data: Any


async def sse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[SseEvent]:
    """Yield the events in `chunks`; comments are dropped, and so is an event that was cut off.

    Raises:
        TorporError: an event is over the limit or its data is not JSON.
    """
    buffer = b""
    name, data = "message", b""
    async with closing(chunks) as pieces:
        async for chunk in pieces:
            *lines, buffer = (buffer + chunk).split(b"\n")
            if len(buffer) + len(data) > EVENT_LIMIT_BYTES:
                raise TorporError(f"the daemon sent an event over {EVENT_LIMIT_BYTES} bytes")
            for line in lines:
                if line.startswith(b"data: "):
                    data += line[6:]
                elif line.startswith(b"event: "):
                    name = line[7:].decode("ascii", "replace")
                elif not line and data:
                    yield SseEvent(name, _parse(data))
                    name, data = "message", b""


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as exc:
        raise TorporError(f"the daemon sent an event that is not JSON: {exc}") from exc
