"""The part of the client that serves a machine's memory socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from torpor.base.aio import Supervisor
from torpor.errors import GuestFailed, LimitExceeded, TorporError, error_to_wire
from torpor.guest.calls import Calls
from torpor_guest import protocol
from torpor_guest.protocol import ItemBuffer, ProtocolError
from torpor_guest.stream import Stream

Answer = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Carries a verb out and returns its answer as JSON; a `TorporError` is an answer too."""

AT_ONCE: Final = 8
"""Requests of one machine that are carried out at the same time; more wait in the guest."""


class MemoryCalls(Calls):
    """What is asked of a guest agent about memory: only that it hands over what programs ask."""

    async def serve_memory(self, answer: Answer) -> None:
        """See `Guest.serve_memory`."""
        stream = self._channel.start("memory.serve", {}, is_watched=False)
        supervisor = Supervisor(lambda _name, _error: None)  # each answers its own failure
        relay = _Relay(stream, answer, supervisor)
        try:
            while (piece := await self._channel.receive(stream, limit_s=None)) is not None:
                if piece[0] == protocol.CHANNEL_ITEMS:
                    await relay.take(piece[1])
            self._channel.result(stream)
        finally:
            self._channel.release(stream)
            await supervisor.aclose()


class _Relay:
    """Takes requests from one stream and sends their answers into it, whole and one after the other."""

    def __init__(self, stream: Stream, answer: Answer, supervisor: Supervisor) -> None:
        self._stream = stream
        self._answer = answer
        self._supervisor = supervisor
        self._buffer = ItemBuffer()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._sending = asyncio.Lock()

    async def take(self, data: bytes) -> None:
        """Take in bytes; a guest that asks faster than it is answered waits."""
        try:
            for request in self._buffer.feed(data):
                await self._slots.acquire()
                self._supervisor.launch(self._serve(request), name="memory request")
        except ProtocolError as exc:
            raise GuestFailed(f"the guest's request for its memory makes no sense: {exc}") from exc

    async def _serve(self, request: dict[str, Any]) -> None:
        try:
            body = await self._carried_out(request)
            number = request.get("id")
            frame = _line({"id": number if isinstance(number, int) else None, **body})
            async with self._sending:
                await self._stream.send(protocol.CHANNEL_BYTES, frame)
        finally:
            self._slots.release()

    async def _carried_out(self, request: dict[str, Any]) -> dict[str, Any]:
        verb, params = request.get("verb"), request.get("params")
        try:
            if not isinstance(verb, str) or not isinstance(params, dict):
                raise GuestFailed("the guest agent sent no verb")
            found = {"ok": await self._answer(verb, params)}
            if len(_line({"id": 0, **found})) > protocol.MAX_MESSAGE - 64:
                raise LimitExceeded(
                    f"the answer is over {protocol.MAX_MESSAGE} bytes",
                    hint="ask for less: one subject, one session, a smaller k",
                )
        except TorporError as exc:
            return {"error": error_to_wire(exc)}
        return found


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
