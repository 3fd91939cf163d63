"""/pandastack/v1/sandboxes/{sandbox}/exec…: commands."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from torpor.errors import InvalidRequest
from torpor.model import ExecSpec
from torpor.server.compat.deps import TheSandbox
from torpor.server.compat.dispatch import PREFIX
from torpor.server.compat.wire import Asked
from torpor.server.compat.words import sse_failure
from torpor.server.exec_output import STREAMS, SseEncoder
from torpor.server.execs import Start, new_exec_id
from torpor.server.query import to_bytes
from torpor.server.replies import Reply, Streamed, streamed
from torpor.server.routes.deps import EVENTS, FAILURES, Desk, streams, until_hang_up
from torpor.server.wire import Wire
from torpor.server.wire_exec import TIMEOUT_MAX_S, ExecResultWire

OUTPUT_LIMIT_BYTES = 16 << 20
"""Of each stream in an answer; what is left out is said in it, and is in a file of the sandbox."""

router = APIRouter(
    prefix=f"{PREFIX}/v1/sandboxes/{{sandbox}}", tags=["pandastack"], responses=FAILURES
)


class ExecAsked(Asked):
    """What POST …/exec takes."""

    cmd: str
    timeout_seconds: float | None = Field(
        None, le=TIMEOUT_MAX_S, description="Then the whole tree is killed; null, 0: no limit."
    )

    def start(self) -> Start:
        """Return the command; it ends when its client is gone, who could not ask for it again."""
        to_bytes(self.cmd, "cmd")
        limit = self.timeout_seconds
        if limit is not None and not limit >= 0:
            raise InvalidRequest(f"timeout_seconds is {limit:g}; 0 or more is wanted")
        spec = ExecSpec(command=self.cmd, timeout_seconds=limit or None)
        return Start(spec=spec, exec_id=new_exec_id(None), kill_on_disconnect=True)


class ExecTold(Wire):
    """How a command ended."""

    stdout: str
    stderr: str
    exit_code: int
    exit: int
    duration_ms: int


@router.post("/exec", response_model=ExecTold)
async def pandastack_exec(info: TheSandbox, body: ExecAsked, request: Request, desk: Desk) -> Reply:
    """Run a command and answer when it has ended."""
    work = desk.run(info.id, body.start(), limit_bytes=OUTPUT_LIMIT_BYTES)
    found = await until_hang_up(request, work)
    assert isinstance(found, ExecResultWire)
    return Reply(
        ExecTold(
            stdout=found.stdout,
            stderr=found.stderr,
            exit_code=found.exit_code,
            exit=found.exit_code,
            duration_ms=found.duration_ms or 0,
        )
    )


@router.post(
    "/exec/stream",
    response_class=Response,
    responses=streams(EVENTS, "`stdout`, `stderr`; `exit` or `error` last."),
)
async def pandastack_exec_stream(info: TheSandbox, body: ExecAsked, desk: Desk) -> Streamed:
    """Run a command and stream events; `exit` or `error` is always the last."""
    start = body.start()
    encoder = SseEncoder(limit_bytes=None, streams=frozenset(STREAMS))
    return await streamed(
        desk.frames(info.id, start.exec_id, encoder, start=start),
        media_type="text/event-stream; charset=utf-8",
        keepalive=b": keepalive\n\n",
        on_error=sse_failure,
    )
