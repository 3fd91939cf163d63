"""/v1/sandboxes/{id}/checks: whether a machine is as a checks file says, and a first file of one."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from torpor.model import SandboxId
from torpor.server.checks import check_frames, checked, first_file
from torpor.server.replies import Reply, Streamed, event_stream
from torpor.server.routes.deps import EVENTS, FAILURES, Engine, streams, until_hang_up
from torpor.server.wire_checks import (
    CheckFileWire,
    CheckInitRequest,
    CheckReportWire,
    CheckRequest,
)

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/checks", tags=["checks"], responses=FAILURES)


@router.post("", response_model=CheckReportWire)
async def run_checks(
    sandbox_id: str, body: CheckRequest, engine: Engine, request: Request
) -> Reply:
    """Run checks and answer with the report; hanging up ends them. A report whose verdict is `fail` is a success."""
    report = await until_hang_up(request, checked(engine, SandboxId(sandbox_id), body))
    return Reply(CheckReportWire.of(report))


@router.post(
    "/stream",
    response_class=Response,
    responses=streams(EVENTS, "`started`; `result` for each check; `report` or `error` last."),
)
async def stream_checks(sandbox_id: str, body: CheckRequest, engine: Engine) -> Streamed:
    """Run checks and stream each result as it comes, in `result` events after `started`, and the `report` last."""
    return await event_stream(check_frames(engine, SandboxId(sandbox_id), body))


@router.post("/init", response_model=CheckFileWire)
async def init_checks(
    sandbox_id: str, engine: Engine, request: Request, body: CheckInitRequest | None = None
) -> Reply:
    """Write a first checks file from what the machine is like now, which passes when it is run at once."""
    work = first_file(engine, SandboxId(sandbox_id), body or CheckInitRequest())
    found = await until_hang_up(request, work)
    return Reply(CheckFileWire(checks=found.text, left_out=found.left_out, notes=found.notes))
