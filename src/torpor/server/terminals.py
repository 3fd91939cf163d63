"""Terminals over WebSockets: bytes are what is shown and what is typed, JSON is about it.

To the client: `{"type": "started", …}` first, `{"type": "offset", "offset": N}` before bytes that do not follow on those before them,
binary messages, and `{"type": "exit", …}` or `{"type": "error", …}` last. From it: binary messages, `{"type": "input", "data": TEXT}`,
`{"type": "resize", "columns": N, "rows": N}`, `{"type": "signal", "signal": NAME}`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from starlette.websockets import WebSocket

from torpor.base.aio import both
from torpor.errors import Conflict, InvalidRequest, OperationTimeout, error_to_wire
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecEvent, ExecId, ExecOutput, ExecStarted, SandboxId
from torpor.server.lives import Lives
from torpor.server.query import to_bytes
from torpor.server.replies import to_json
from torpor.server.signals import signal_number
from torpor.server.tunnels import DONE, received
from torpor.server.wire_exec import ExecWire


class _Ended(Exception):
    """Raised when all has been shown."""


async def attend(
    websocket: WebSocket,
    lives: Lives,
    sandbox_id: SandboxId,
    exec_id: ExecId,
    *,
    offset: int,
    generation: int | None,
) -> None:
    """Show a terminal from a byte offset on and type into it, until its command or the client ends.

    Raises:
        NotFound: there is no such exec.
        Conflict: it has no terminal.
        GenerationChanged: the machine is not in the life of `generation`, or left it on the way.
        HungUp: the client left.
        InvalidRequest: it sent what makes no sense; the command runs on.
    """
    async with lives.enter(sandbox_id, generation) as (guest, life):
        if not (await guest.exec_get(exec_id)).terminal:
            raise Conflict(
                f"exec {exec_id} was started without a terminal",
                hint="follow it: torpor attach, GET …/execs/{exec_id}/stream",
            )
        async with guest.exec_attach(exec_id, stdout_offset=offset) as events:
            await websocket.accept()
            try:
                await both(_show(websocket, events, life), _take(websocket, guest, exec_id))
            except _Ended:
                await websocket.close(DONE)


async def _show(websocket: WebSocket, events: AsyncIterator[ExecEvent], life: int) -> None:
    expected: int | None = None
    async for event in events:
        if isinstance(event, ExecStarted):
            said = {"exec_id": event.exec_id, "pid": event.pid, "generation": life}
            await websocket.send_text(json.dumps({"type": "started", **said}))
        elif isinstance(event, ExecOutput):
            if event.offset != expected:
                await websocket.send_text(json.dumps({"type": "offset", "offset": event.offset}))
            expected = event.offset + len(event.data)
            await websocket.send_bytes(event.data)
        elif isinstance(event, ExecEnded):
            body = ExecWire.of(event.info).model_dump()
            await websocket.send_text(to_json({"type": "exit", **body}).decode("ascii"))
            raise _Ended


async def _take(websocket: WebSocket, guest: Guest, exec_id: ExecId) -> None:
    while True:
        message = await received(websocket)
        try:
            await _carry_out(message, guest, exec_id)
        except OperationTimeout as error:  # it reads nothing; what it shows is shown all the same
            told = {"type": "warning", "error": error_to_wire(error)}
            await websocket.send_text(to_json(told).decode("ascii"))
        except Conflict:
            continue  # it has just ended, and that is told


async def _carry_out(message: bytes | dict[str, object], guest: Guest, exec_id: ExecId) -> None:
    if isinstance(message, bytes):
        await guest.exec_stdin(exec_id, message)
        return
    kind = message.get("type")
    if kind == "input" and isinstance(data := message.get("data"), str):
        await guest.exec_stdin(exec_id, to_bytes(data, "data"))
    elif kind == "resize":
        await guest.exec_resize(exec_id, _side(message, "columns"), _side(message, "rows"))
    elif kind == "signal" and isinstance(signal := message.get("signal"), (str, int)):
        await guest.exec_signal(exec_id, signal_number(signal))
    else:
        raise InvalidRequest(
            f"a terminal takes no message of type {str(kind)[:50]!r} like this",
            hint="binary input; input with data; resize with columns and rows; signal with signal",
        )


def _side(message: dict[str, object], key: str) -> int:
    found = message.get(key)
    if not isinstance(found, int) or isinstance(found, bool):
        raise InvalidRequest(f"{key} is a whole number, not {str(found)[:50]!r}")
    return found
