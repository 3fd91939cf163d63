"""/v1/watches and …/watch: checks that are run on a machine again and again, outside any change."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request

from torpor.model import SandboxId
from torpor.recovery.watches.desk import WatchDesk
from torpor.server.guard import principal_of
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES
from torpor.server.wire_watches import WatchListWire, WatchRequest, WatchWire

router = APIRouter(prefix="/v1", tags=["watches"], responses=FAILURES)


def _desk_of(request: Request) -> WatchDesk:
    return cast(WatchDesk, request.app.state.recovery.watches)


Watches = Annotated[WatchDesk, Depends(_desk_of)]


@router.get("/watches", response_model=WatchListWire)
async def list_watches(request: Request, watches: Watches) -> Reply:
    """List the watches, those that fail first."""
    principal = principal_of(request)
    workspace = None if principal.sees_all else principal.workspace
    return Reply(WatchListWire.of(await watches.list(workspace=workspace)))


@router.put("/sandboxes/{sandbox_id}/watch", response_model=WatchWire)
async def put_watch(sandbox_id: str, body: WatchRequest, watches: Watches) -> Reply:
    """Watch a sandbox, in place of the watch that it has. It is not put back by itself: what fails is told."""
    return Reply(WatchWire.of(await watches.put(SandboxId(sandbox_id), body.spec())))


@router.get("/sandboxes/{sandbox_id}/watch", response_model=WatchWire)
async def get_watch(sandbox_id: str, watches: Watches) -> Reply:
    """Return a sandbox's watch, and what it found last."""
    return Reply(WatchWire.of(await watches.get(SandboxId(sandbox_id))))


@router.delete("/sandboxes/{sandbox_id}/watch", response_model=WatchWire)
async def delete_watch(sandbox_id: str, watches: Watches) -> Reply:
    """Watch a sandbox no more."""
    return Reply(WatchWire.of(await watches.drop(SandboxId(sandbox_id))))


@router.post("/sandboxes/{sandbox_id}/watch/look", response_model=WatchWire)
async def look_at_sandbox(sandbox_id: str, watches: Watches) -> Reply:
    """Look at a watched sandbox now, and answer with what was found."""
    return Reply(WatchWire.of(await watches.look(SandboxId(sandbox_id))))
