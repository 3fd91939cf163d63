"""What the routes are handed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from torpor.access.ledger import Plan
from torpor.base.aio import Supervisor, finish
from torpor.sandboxes.port import EnginePort
from torpor.server.execs import ExecDesk
from torpor.server.guard import databases_of, view_of
from torpor.server.view_databases import DatabasesView
from torpor.server.wire import ErrorWire

T = TypeVar("T")

FAILURES: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorWire, "description": "Any failure, with the status of its class."}
}
"""What every route may answer besides its success."""


EVENTS = "text/event-stream"


def streams(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a route whose success is a stream."""
    schema = {"type": "string", "format": "binary"} if media_type != EVENTS else {"type": "string"}
    return {200: {"description": description, "content": {media_type: {"schema": schema}}}}


def engine_of(request: Request) -> EnginePort:
    """Return the engine as the request sees it: its workspace, and no other."""
    return view_of(request)


def databases_view(request: Request) -> DatabasesView:
    """Return the databases as the request sees them."""
    return databases_of(request)


def planned_tree(request: Request) -> str | None:
    """Return the id that a fork's tree is to have; None: any."""
    plan: Plan | None = getattr(request.state, "plan", None)
    return None if plan is None else plan.tree


def desk_of(request: Request) -> ExecDesk:
    """Return the app's desk for execs."""
    return cast(ExecDesk, request.app.state.desk)


Engine = Annotated[EnginePort, Depends(engine_of)]
Desk = Annotated[ExecDesk, Depends(desk_of)]
Databases = Annotated[DatabasesView, Depends(databases_view)]
PlannedTree = Annotated[str | None, Depends(planned_tree)]


async def until_hang_up(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it when the client hangs up.

    Raises:
        ClientDisconnect: the client is gone; `work` was cancelled and has ended.
    """
    supervisor = Supervisor(lambda _name, _error: None)  # the failure of `work` is raised below
    task = supervisor.spawn(work, name=f"{request.method} {request.url.path}")
    listener = supervisor.spawn(_gone(request), name="hang-up")
    try:
        await asyncio.wait({task, listener}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return await task
        task.cancel()
        await _ended(task)
        raise ClientDisconnect
    finally:
        listener.cancel()
        if not task.done():
            task.cancel()
            await finish(_ended(task), within_s=10)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})
