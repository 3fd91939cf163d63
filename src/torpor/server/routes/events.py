"""/v1/events: every change of state, as it happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from torpor.base.aio import closing
from torpor.model_events import StateEvent
from torpor.sandboxes.port import EnginePort
from torpor.server.replies import Streamed, event_stream, sse
from torpor.server.routes.deps import EVENTS, FAILURES, Engine, streams
from torpor.server.wire import Wire

router = APIRouter(prefix="/v1", tags=["events"], responses=FAILURES)


class EventWire(Wire):
    """Data of one event; its name is `kind`."""

    id: str
    kind: str
    object_id: str
    state: str
    at: datetime
    workspace: str | None
    details: dict[str, str | int | None]

    @staticmethod
    def of(event: StateEvent) -> EventWire:
        """Return `event` as JSON has it."""
        return EventWire(
            id=event.id,
            kind=event.kind,
            object_id=event.object_id,
            state=event.state,
            at=event.at,
            workspace=event.workspace,
            details=dict(event.details),
        )


@router.get(
    "/events",
    response_class=Response,
    responses=streams(EVENTS, "`sandbox`, `snapshot`, `template`; `gap` where some were missed."),
)
async def follow_events(
    engine: Engine,
    after: Annotated[str | None, Query(description="Id of the last event that was seen.")] = None,
    kind: Annotated[list[str] | None, Query(description="Only of these kinds.")] = None,
    object_id: Annotated[str | None, Query(description="Only of this one.")] = None,
    last_event_id: Annotated[
        str | None, Header(description="As `after`; browsers send it.")
    ] = None,
) -> Streamed:
    """Stream the workspace's changes of state from now on, or from behind an event that was seen."""
    frames = _frames(engine, after or last_event_id, frozenset(kind or ()), object_id)
    return await event_stream(frames, first_within_s=0.05)


async def _frames(
    engine: EnginePort, after: str | None, kinds: frozenset[str], object_id: str | None
) -> AsyncGenerator[bytes, None]:
    async with closing(engine.events(after=after)) as events:
        async for event in events:
            is_wanted = (not kinds or event.kind in kinds) and object_id in (None, event.object_id)
            if is_wanted or event.kind == "gap":
                yield sse(event.kind, EventWire.of(event), event_id=event.id)
