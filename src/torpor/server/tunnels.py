"""Raw bytes to a port in a machine over a WebSocket: binary messages are bytes, `{"type": "end"}` ends a direction."""

from __future__ import annotations

import json
from collections.abc import Callable

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.utils import ClientDisconnected

from torpor.base.aio import both
from torpor.errors import InvalidRequest, TorporError, error_to_wire
from torpor.guest.port import PortStream
from torpor.server.carry import not_idle
from torpor.server.replies import as_torpor_error, error_reply, to_json

END = {"type": "end"}
DONE, UNFIT, FAILED = 1000, 1008, 1011
"""Codes with which we close: all went well, the client sent what makes no sense, or an error was told before."""


class HungUp(Exception):
    """Raised when the client is gone."""


async def tunnel(websocket: WebSocket, stream: PortStream, *, idle_s: float) -> None:
    """Carry bytes between an accepted WebSocket and a port until both directions have ended.

    Raises:
        HungUp: the client left before.
        InvalidRequest: it sent what makes no sense.
        OperationTimeout: nothing moved for `idle_s` seconds.
    """
    async with not_idle(idle_s) as note:
        await both(_upward(websocket, stream, note), _downward(websocket, stream, note))


async def _upward(websocket: WebSocket, stream: PortStream, note: Callable[[], None]) -> None:
    has_ended = False
    while not has_ended:
        data = await received(websocket)
        note()
        if isinstance(data, bytes):
            await stream.write(data)
        elif data == END:
            has_ended = True
            await stream.end()
        else:
            raise InvalidRequest(
                "a tunnel takes bytes in binary messages",
                hint='and the text {"type": "end"} when no more come',
            )


async def _downward(websocket: WebSocket, stream: PortStream, note: Callable[[], None]) -> None:
    while data := await stream.read():
        note()
        await websocket.send_bytes(data)
    await websocket.send_text(json.dumps(END))


async def received(websocket: WebSocket) -> bytes | dict[str, object]:
    """Return the next message: bytes, or the JSON object in a text.

    Raises:
        HungUp: the client is gone.
        InvalidRequest: a text is no JSON object.
    """
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise HungUp
    data = message.get("bytes")
    if data is not None:
        return bytes(data)
    try:
        found = json.loads(message.get("text") or "")
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest("a text message is a JSON object", hint="bytes go in binary") from exc
    if not isinstance(found, dict):
        raise InvalidRequest("a text message is a JSON object", hint="bytes go in binary")
    return found


async def tell_failure(websocket: WebSocket, failure: Exception) -> None:
    """Tell a client what went wrong: as the answer to its handshake, or as the last message."""
    if isinstance(failure, (HungUp, WebSocketDisconnect, ClientDisconnected)):
        return
    error = failure if isinstance(failure, TorporError) else as_torpor_error(failure)
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.send_denial_response(error_reply(error))
        return
    code = UNFIT if isinstance(error, InvalidRequest) else FAILED
    try:
        text = to_json({"type": "error", "error": error_to_wire(error)}).decode("ascii")
        await websocket.send_text(text)
        await websocket.close(code)
    except (RuntimeError, WebSocketDisconnect):
        return  # it is gone, too
