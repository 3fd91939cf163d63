"""/v1/sandboxes/{id}/holds: leases that keep a sandbox from falling asleep by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import Field

from torpor.model import SandboxId
from torpor.server.holds import SECONDS_MOST, HoldDesk
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.wire import Wire

router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/holds", tags=["sandboxes"], responses=FAILURES
)


def _desk_of(request: Request) -> HoldDesk:
    return cast(HoldDesk, request.app.state.holds)


Holds = Annotated[HoldDesk, Depends(_desk_of)]
HoldId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Chosen by the client.")]


class HoldRequest(Wire):
    """What renewing a hold takes; nothing is needed."""

    seconds: Annotated[
        int, Field(ge=1, le=SECONDS_MOST, description="From now until it ends unless renewed.")
    ] = 60


class HoldWire(Wire):
    """One hold."""

    hold_id: str
    sandbox_id: str
    expires_at: datetime


class HoldListWire(Wire):
    """The holds of one sandbox."""

    holds: list[HoldWire]


@router.get("", response_model=HoldListWire)
async def list_holds(sandbox_id: str, engine: Engine, holds: Holds) -> Reply:
    """List the holds of a sandbox that this listener was asked for."""
    found = SandboxId(sandbox_id)
    await engine.get(found)
    now = datetime.now(UTC)
    return Reply(
        HoldListWire(
            holds=[
                HoldWire(
                    hold_id=hold_id, sandbox_id=found, expires_at=now + timedelta(seconds=left)
                )
                for hold_id, left in holds.of(found)
            ]
        )
    )


@router.post("/{hold_id}", response_model=HoldWire)
async def renew_hold(
    sandbox_id: str, hold_id: HoldId, holds: Holds, body: HoldRequest | None = None
) -> Reply:
    """Keep a sandbox awake until the hold expires or is released; makes the hold if there is none."""
    seconds = (body or HoldRequest()).seconds
    expires_at = await holds.renew(SandboxId(sandbox_id), hold_id, seconds)
    return Reply(HoldWire(hold_id=hold_id, sandbox_id=sandbox_id, expires_at=expires_at))


@router.delete("/{hold_id}", status_code=204)
async def release_hold(sandbox_id: str, hold_id: HoldId, engine: Engine, holds: Holds) -> Response:
    """End a hold; one that has ended already is no error."""
    await engine.get(SandboxId(sandbox_id))
    await holds.release(SandboxId(sandbox_id), hold_id)
    return Response(status_code=204)
