"""/v1/sandboxes/{id}/exec…: commands in a guest, their streams, input, signals; and its processes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from torpor.errors import InvalidRequest
from torpor.model import ExecId, SandboxId
from torpor.server.exec_output import STREAMS, SseEncoder
from torpor.server.execs import Start, new_exec_id
from torpor.server.pages import Cursor, Limit, page_of
from torpor.server.replies import Reply, Streamed, event_stream
from torpor.server.routes.deps import EVENTS, FAILURES, Desk, Engine, streams, until_hang_up
from torpor.server.signals import signal_number
from torpor.server.wire_exec import (
    OUTPUT_LIMIT_BYTES,
    OUTPUT_LIMIT_MAX_BYTES,
    ExecListWire,
    ExecRequest,
    ExecResultWire,
    ExecWire,
    ProcessListWire,
    ProcessWire,
    SignalRequest,
    StdinRequest,
)

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["execs"], responses=FAILURES)


def _start(body: ExecRequest) -> Start:
    return Start(
        spec=body.spec(),
        exec_id=new_exec_id(body.exec_id),
        stdin=body.stdin_bytes(),
        kill_on_disconnect=body.kill_on_disconnect,
    )


@router.post(
    "/exec",
    response_model=ExecResultWire,
    responses={202: {"model": ExecWire, "description": "`background`: the command runs."}},
)
async def exec_command(sandbox_id: str, body: ExecRequest, request: Request, desk: Desk) -> Reply:
    """Run a command and answer when it has ended; a client that hangs up leaves it running."""
    start, found = _start(body), SandboxId(sandbox_id)
    if body.background:
        return Reply(ExecWire.of(await desk.start(found, start)), 202)
    limit = OUTPUT_LIMIT_BYTES if body.output_limit_bytes is None else body.output_limit_bytes
    return Reply(await until_hang_up(request, desk.run(found, start, limit_bytes=limit)))


@router.post(
    "/exec/stream",
    response_class=Response,
    responses=streams(EVENTS, "`started`, `stdout`, `stderr`; `exit` or `error` last."),
)
async def exec_stream(sandbox_id: str, body: ExecRequest, desk: Desk) -> Streamed:
    """Run a command and stream events: `started`, `stdout`, `stderr`, and `exit` or `error` last."""
    start = _start(body)
    encoder = SseEncoder(limit_bytes=body.output_limit_bytes, streams=frozenset(STREAMS))
    return await event_stream(
        desk.frames(SandboxId(sandbox_id), start.exec_id, encoder, start=start)
    )


@router.get("/execs", response_model=ExecListWire)
async def list_execs(sandbox_id: str, engine: Engine, limit: Limit, cursor: Cursor) -> Reply:
    """List the execs that the guest's agent knows, running and ended."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        known = await guest.exec_list()
    found, after = page_of(known, lambda info: info.exec_id, limit, cursor)
    return Reply(ExecListWire(items=[ExecWire.of(info) for info in found], next_cursor=after))


@router.get("/execs/{exec_id}", response_model=ExecWire)
async def get_exec(sandbox_id: str, exec_id: str, engine: Engine) -> Reply:
    """Return what is so about one exec."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        return Reply(ExecWire.of(await guest.exec_get(ExecId(exec_id))))


@router.get(
    "/execs/{exec_id}/stream",
    response_class=Response,
    responses=streams(EVENTS, "As POST …/exec/stream."),
)
async def attach_exec(
    sandbox_id: str,
    exec_id: str,
    desk: Desk,
    stdout_offset: Annotated[int, Query(ge=0)] = 0,
    stderr_offset: Annotated[int, Query(ge=0)] = 0,
    output_limit_bytes: Annotated[int | None, Query(ge=0, le=OUTPUT_LIMIT_MAX_BYTES)] = None,
    wanted: Annotated[
        str, Query(alias="streams", description="`stdout`, `stderr` or both.")
    ] = "stdout,stderr",
    generation: Annotated[
        int | None,
        Query(description="Of the event `started`: refuse to follow another life of the machine."),
    ] = None,
) -> Streamed:
    """Follow an exec from byte offsets on; any number of clients may, and each may come back."""
    names = frozenset(wanted.split(","))
    if not names <= frozenset(STREAMS):
        raise InvalidRequest(f"streams {wanted!r} is not of stdout, stderr", hint="stdout,stderr")
    frames = desk.frames(
        SandboxId(sandbox_id),
        ExecId(exec_id),
        SseEncoder(limit_bytes=output_limit_bytes, streams=names),
        stdout_offset=stdout_offset,
        stderr_offset=stderr_offset,
        generation=generation,
    )
    return await event_stream(frames)


@router.post("/execs/{exec_id}/stdin", status_code=204)
async def write_stdin(
    sandbox_id: str, exec_id: str, body: StdinRequest, engine: Engine
) -> Response:
    """Write to a command's stdin; answers when the guest has taken all."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        await guest.exec_stdin(ExecId(exec_id), body.content(), eof=body.eof)
    return Response(status_code=204)


@router.post("/execs/{exec_id}/signal", status_code=204)
async def send_signal(
    sandbox_id: str, exec_id: str, body: SignalRequest, engine: Engine
) -> Response:
    """Send a signal to a command; KILL ends its whole process tree. No effect when it has ended."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        await guest.exec_signal(ExecId(exec_id), signal_number(body.signal))
    return Response(status_code=204)


@router.get("/processes", response_model=ProcessListWire)
async def list_processes(sandbox_id: str, engine: Engine) -> Reply:
    """List the guest's processes."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        found = await guest.processes()
    return Reply(ProcessListWire(items=[ProcessWire.of(info) for info in found]))
