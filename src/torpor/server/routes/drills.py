"""/v1/drills and …/drills: proofs that snapshots can be restored, and the schedules that ask for them."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from fastapi import APIRouter, Depends, Query, Request, Response

from torpor.errors import WrongState
from torpor.recovery.drills.desk import DrillDesk
from torpor.recovery.drills.words import text
from torpor.server.guard import principal_of
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES
from torpor.server.wire_drills import (
    DrillListWire,
    DrillRequest,
    DrillWire,
    ScheduleListWire,
    ScheduleRequest,
    ScheduleWire,
)

router = APIRouter(prefix="/v1", tags=["drills"], responses=FAILURES)


def _desk_of(request: Request) -> DrillDesk:
    return cast(DrillDesk, request.app.state.recovery.drills)


Drills = Annotated[DrillDesk, Depends(_desk_of)]


@router.post("/snapshots/{snapshot_id}/drills", status_code=201, response_model=DrillWire)
async def drill_snapshot(
    snapshot_id: str, drills: Drills, body: DrillRequest | None = None
) -> Reply:
    """Restore a snapshot into an isolated clone, look at it and throw it away. Answers as soon as that has begun."""
    return Reply(
        DrillWire.of(await drills.begin(snapshot_id, (body or DrillRequest()).spec())), 201
    )


@router.post("/sandboxes/{sandbox_id}/drills", status_code=201, response_model=DrillWire)
async def drill_sandbox(sandbox_id: str, drills: Drills, body: DrillRequest | None = None) -> Reply:
    """Do the same with the sandbox's newest, oldest and a random snapshot in turn; the sandbox is not touched."""
    return Reply(DrillWire.of(await drills.begin(sandbox_id, (body or DrillRequest()).spec())), 201)


@router.get("/drills", response_model=DrillListWire)
async def list_drills(
    request: Request, drills: Drills, target: str | None = None, limit: int = 100
) -> Reply:
    """List drills, newest first: all, or those of one sandbox or snapshot (`target`)."""
    principal = principal_of(request)
    workspace = None if principal.sees_all else principal.workspace
    return Reply(DrillListWire.of(await drills.list(target, workspace=workspace, limit=limit)))


@router.get("/drills/{drill_id}", response_model=DrillWire)
async def get_drill(
    drill_id: str,
    drills: Drills,
    wait_seconds: Annotated[
        float, Query(ge=0, le=60, description="Answer when there are news, or after so long.")
    ] = 0,
) -> Reply:
    """Return one drill."""
    return Reply(DrillWire.of(await drills.get(drill_id, wait_seconds=wait_seconds)))


@router.get(
    "/drills/{drill_id}/evidence",
    response_class=Response,
    responses={200: {"content": {"application/json": {}, "text/plain": {}}}},
)
async def get_evidence(
    drill_id: str, drills: Drills, format: Literal["json", "text"] = "json"
) -> Response:
    """Return the evidence of a drill that is over."""
    found = await drills.evidence(drill_id)
    if found is None:
        info = await drills.get(drill_id)
        raise WrongState(
            f"drill {drill_id} has no evidence: {info.step if info.is_open else 'its file is gone'}",
            hint="wait for its end" if info.is_open else None,
        )
    if format == "text":
        return Response(text(found), media_type="text/plain; charset=utf-8")
    return Reply(found)


@router.post(
    "/snapshots/{snapshot_id}/drill-schedules", status_code=201, response_model=ScheduleWire
)
async def schedule_snapshot_drills(
    snapshot_id: str, body: ScheduleRequest, drills: Drills
) -> Reply:
    """Begin a drill of a snapshot again and again, by the clock."""
    found = await drills.add_schedule(snapshot_id, body.spec(), body.schedule)
    return Reply(ScheduleWire.of(found), 201)


@router.post(
    "/sandboxes/{sandbox_id}/drill-schedules", status_code=201, response_model=ScheduleWire
)
async def schedule_sandbox_drills(sandbox_id: str, body: ScheduleRequest, drills: Drills) -> Reply:
    """Begin a drill of the sandbox's snapshots in turn again and again, by the clock."""
    found = await drills.add_schedule(sandbox_id, body.spec(), body.schedule)
    return Reply(ScheduleWire.of(found), 201)


@router.get("/drill-schedules", response_model=ScheduleListWire)
async def list_drill_schedules(request: Request, drills: Drills) -> Reply:
    """List the schedules of drills, the one that comes first first."""
    principal = principal_of(request)
    found = [info for info in await drills.schedules() if principal.sees(info.workspace)]
    return Reply(ScheduleListWire.of(found))


@router.delete("/drill-schedules/{schedule_id}", response_model=ScheduleWire)
async def delete_drill_schedule(schedule_id: str, drills: Drills) -> Reply:
    """Begin no more drills by this schedule; one that runs goes on."""
    return Reply(ScheduleWire.of(await drills.drop_schedule(schedule_id)))
