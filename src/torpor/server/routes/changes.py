"""/v1/changes and …/changes: transactions on sandboxes that end kept or rolled back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Depends, Query, Request, Response

from torpor.base.aio import closing
from torpor.errors import NotFound
from torpor.model import SandboxId
from torpor.model_changes import ChangeInfo
from torpor.recovery.changes.desk import ChangeDesk
from torpor.recovery.changes.page import page
from torpor.recovery.changes.words import text
from torpor.sandboxes.port import EnginePort
from torpor.server.guard import principal_of
from torpor.server.replies import Last, Reply, Streamed, event_stream, sse
from torpor.server.routes.deps import EVENTS, FAILURES, Engine, streams
from torpor.server.wire_changes import (
    BlockFailure,
    ChangeListWire,
    ChangeRequest,
    ChangeWire,
    WordRequest,
    event_data,
)

router = APIRouter(prefix="/v1", tags=["changes"], responses=FAILURES)

_AT_ONCE = 100
"""Changes that are read at a time for a workspace that sees some of them."""
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


def _desk_of(request: Request) -> ChangeDesk:
    return cast(ChangeDesk, request.app.state.recovery.changes)


Changes = Annotated[ChangeDesk, Depends(_desk_of)]


@router.post("/sandboxes/{sandbox_id}/changes", status_code=201, response_model=ChangeWire)
async def begin_change(sandbox_id: str, body: ChangeRequest, changes: Changes) -> Reply:
    """Begin a change: snapshot, change, verify, and keep or roll back. Answers as soon as it has begun.

    What reaches the outside world while it runs is not undone by a rollback.
    """
    return Reply(ChangeWire.of(await changes.begin(SandboxId(sandbox_id), body.spec())), 201)


@router.get("/sandboxes/{sandbox_id}/changes", response_model=ChangeListWire)
async def list_changes_of_sandbox(
    sandbox_id: str, changes: Changes, engine: Engine, limit: int = 100
) -> Reply:
    """List the changes of one sandbox, also of a deleted one, newest first."""
    found = await changes.list(SandboxId(sandbox_id), limit=limit)
    if not found:
        await engine.get(SandboxId(sandbox_id))
    return Reply(ChangeListWire.of(found))


@router.get("/changes", response_model=ChangeListWire)
async def list_changes(
    request: Request,
    changes: Changes,
    engine: Engine,
    sandbox_id: str | None = None,
    limit: int = 100,
) -> Reply:
    """List all changes, or those of one sandbox, newest first."""
    wanted = None if sandbox_id is None else SandboxId(sandbox_id)
    if principal_of(request).sees_all:
        return Reply(ChangeListWire.of(await changes.list(wanted, limit=limit)))
    return Reply(ChangeListWire.of(await _seen(changes, engine, wanted, limit)))


async def _seen(
    changes: ChangeDesk, engine: EnginePort, sandbox_id: SandboxId | None, limit: int
) -> list[ChangeInfo]:
    """Return the newest changes that the request sees, however many newer ones others have."""
    found: list[ChangeInfo] = []
    is_ours: dict[SandboxId, bool] = {}
    size, skip = limit if limit < 1 else max(limit, _AT_ONCE), 0
    while len(found) < limit or not skip:
        some = await changes.list(sandbox_id, limit=size, skip=skip)
        for info in some:
            if info.sandbox_id not in is_ours:
                is_ours[info.sandbox_id] = await _sees(engine, info.sandbox_id)
            if is_ours[info.sandbox_id]:
                found.append(info)
        if len(some) < size:
            break
        skip += size
    return found[:limit]


async def _sees(engine: EnginePort, sandbox_id: SandboxId) -> bool:
    try:
        await engine.get(sandbox_id)
    except NotFound:
        return False
    return True


@router.get("/changes/{change_id}", response_model=ChangeWire)
async def get_change(change_id: str, changes: Changes) -> Reply:
    """Return one change."""
    return Reply(ChangeWire.of(await changes.get(change_id)))


@router.get(
    "/changes/{change_id}/report",
    response_class=Response,
    responses={200: {"content": {"application/json": {}, "text/plain": {}, "text/html": {}}}},
)
async def report_change(
    change_id: str,
    changes: Changes,
    format: Annotated[
        Literal["json", "text", "html"],
        Query(description="`html`: one page that needs nothing else."),
    ] = "json",
) -> Response:
    """Return the evidence of a change, so far or for good."""
    report = await changes.report(change_id)
    if format == "json":
        return Reply(report)
    if format == "text":
        return Response(text(report), media_type="text/plain; charset=utf-8")
    headers = {"content-security-policy": _PAGE_POLICY, "x-content-type-options": "nosniff"}
    return Response(page(report), media_type="text/html; charset=utf-8", headers=headers)


@router.get(
    "/changes/{change_id}/events",
    response_class=Response,
    responses=streams(EVENTS, "`state` first; `step`, `output`, `check`; `done` or `error` last."),
)
async def follow_change(change_id: str, changes: Changes, after: int = 0) -> Streamed:
    """Stream what happens to a change until it is over; with `after` without the events up to that number."""
    return await event_stream(_events(changes, change_id, after))


async def _events(changes: ChangeDesk, change_id: str, after: int) -> AsyncGenerator[bytes, None]:
    async with closing(changes.events(change_id, after)) as events:
        async for event in events:
            yield sse(event.name, event_data(event))
    yield Last(sse("done", ChangeWire.of(await changes.get(change_id))))


@router.post("/changes/{change_id}/confirm", response_model=ChangeWire)
async def confirm_change(
    change_id: str, changes: Changes, body: WordRequest | None = None
) -> Reply:
    """Keep a change that is on probation, now."""
    return Reply(ChangeWire.of(await changes.confirm(change_id, by=(body or WordRequest()).by)))


@router.post("/changes/{change_id}/rollback", response_model=ChangeWire)
async def reject_change(change_id: str, changes: Changes, body: WordRequest | None = None) -> Reply:
    """Undo a change that is open, whatever it does now; answers as soon as that has begun."""
    word = body or WordRequest()
    return Reply(ChangeWire.of(await changes.reject(change_id, why=word.why, by=word.by)))


@router.post("/changes/{change_id}/lease", response_model=ChangeWire)
async def renew_change(change_id: str, changes: Changes) -> Reply:
    """Say that the client of a `block` still works; one that is not heard of is rolled back."""
    return Reply(ChangeWire.of(await changes.renew(change_id)))


@router.post("/changes/{change_id}/done", response_model=ChangeWire)
async def finish_change(change_id: str, changes: Changes) -> Reply:
    """Say that the client of a `block` has made its change, so that it is verified."""
    return Reply(ChangeWire.of(await changes.done(change_id)))


@router.post("/changes/{change_id}/abort", response_model=ChangeWire)
async def abort_change(change_id: str, changes: Changes, body: BlockFailure | None = None) -> Reply:
    """Say that the client of a `block` failed to make its change, so that it is undone."""
    why = (body or BlockFailure()).why or "whoever made the change failed"
    return Reply(ChangeWire.of(await changes.reject(change_id, why=why, ending="client")))
