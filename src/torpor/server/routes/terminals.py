"""/v1/sandboxes/{id}/terminals…: commands that run in a terminal, shown and typed into over WebSockets."""

from __future__ import annotations

from fastapi import APIRouter, Response, WebSocket

from torpor.errors import InvalidRequest
from torpor.model import ExecId, SandboxId
from torpor.server.execs import Start, new_exec_id
from torpor.server.guard import view_of
from torpor.server.lives import Lives
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Desk, Engine
from torpor.server.terminals import attend
from torpor.server.tunnels import tell_failure
from torpor.server.wire_exec import ExecWire
from torpor.server.wire_terminals import ResizeRequest, TerminalRequest

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["execs"], responses=FAILURES)


@router.post("/terminals", response_model=ExecWire, status_code=201)
async def open_terminal(sandbox_id: str, body: TerminalRequest, desk: Desk) -> Reply:
    """Start a command in a terminal, a login shell unless said otherwise; a WebSocket to …/terminals/{exec_id} shows it."""
    start = Start(spec=body.spec(), exec_id=new_exec_id(body.exec_id))
    return Reply(ExecWire.of(await desk.start(SandboxId(sandbox_id), start)), 201)


@router.post("/execs/{exec_id}/resize", status_code=204)
async def resize_terminal(
    sandbox_id: str, exec_id: str, body: ResizeRequest, engine: Engine
) -> Response:
    """Say how large the window of a command's terminal is now. No effect when it has ended."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        await guest.exec_resize(ExecId(exec_id), body.columns, body.rows)
    return Response(status_code=204)


@router.websocket("/terminals/{exec_id}")
async def attach_terminal(websocket: WebSocket, sandbox_id: str, exec_id: str) -> None:
    """Show a terminal from a byte offset on, and type into it; leaving it leaves the command running."""
    try:
        await attend(
            websocket,
            Lives(view_of(websocket)),
            SandboxId(sandbox_id),
            ExecId(exec_id),
            offset=_number(websocket, "offset") or 0,
            generation=_number(websocket, "generation"),
        )
    except Exception as exc:  # noqa: BLE001 - whatever it was, the client is told
        await tell_failure(websocket, exc)


def _number(websocket: WebSocket, name: str) -> int | None:
    text = websocket.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidRequest(f"{name} is {text[:50]!r}; a whole number is wanted")
    return int(text)
