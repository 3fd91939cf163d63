"""/v1/sandboxes/{id}/contexts…: interpreters that keep their state, and code that runs in them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from torpor.contexts import desk
from torpor.model import SandboxId
from torpor.model_contexts import ContextId
from torpor.server.contexts import code_frames, code_run
from torpor.server.pages import Cursor, Limit, page_of
from torpor.server.replies import Reply, Streamed, event_stream
from torpor.server.routes.deps import EVENTS, FAILURES, Engine, streams, until_hang_up
from torpor.server.wire_contexts import (
    CodeRequest,
    CodeRunWire,
    ContextListWire,
    ContextRequest,
    ContextWire,
    DefaultCodeRequest,
)

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["contexts"], responses=FAILURES)

_EVENTS = "`started`; `stdout`, `stderr`, `result`, `raised` as they come; `done` or `error` last."


@router.post("/contexts", response_model=ContextWire, status_code=201)
async def create_context(
    sandbox_id: str, engine: Engine, request: Request, body: ContextRequest | None = None
) -> Reply:
    """Make a context and answer when its interpreter is ready; hanging up ends it."""
    spec = (body or ContextRequest()).spec()
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        info = await until_hang_up(request, desk.create(guest, spec))
    return Reply(ContextWire.of(info), 201)


@router.get("/contexts", response_model=ContextListWire)
async def list_contexts(sandbox_id: str, engine: Engine, limit: Limit, cursor: Cursor) -> Reply:
    """List the sandbox's contexts, oldest first."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        known = await desk.list_contexts(guest)
    found, after = page_of(known, lambda info: info.id, limit, cursor)
    return Reply(ContextListWire(items=[ContextWire.of(info) for info in found], next_cursor=after))


@router.get("/contexts/{context_id}", response_model=ContextWire)
async def get_context(sandbox_id: str, context_id: str, engine: Engine) -> Reply:
    """Return one context."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        return Reply(ContextWire.of(await desk.get(guest, ContextId(context_id))))


@router.delete("/contexts/{context_id}", status_code=204)
async def delete_context(sandbox_id: str, context_id: str, engine: Engine) -> Response:
    """End a context and all that runs in it."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        await desk.delete(guest, ContextId(context_id))
    return Response(status_code=204)


@router.post("/contexts/{context_id}/interrupt", status_code=204)
async def interrupt_context(sandbox_id: str, context_id: str, engine: Engine) -> Response:
    """Interrupt what a context runs, as Ctrl-C would; no effect when nothing runs."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        await desk.interrupt(guest, ContextId(context_id))
    return Response(status_code=204)


@router.post("/contexts/{context_id}/restart", response_model=ContextWire)
async def restart_context(sandbox_id: str, context_id: str, engine: Engine) -> Reply:
    """Start a context's interpreter anew: what runs is ended, and what had been set is gone."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        return Reply(ContextWire.of(await desk.restart(guest, ContextId(context_id))))


@router.post("/contexts/{context_id}/run", response_model=CodeRunWire)
async def run_in_context(
    sandbox_id: str, context_id: str, body: CodeRequest, engine: Engine, request: Request
) -> Reply:
    """Run code and answer when it has ended; an error that it raises is part of the answer."""
    work = code_run(engine, SandboxId(sandbox_id), ContextId(context_id), body.spec())
    return await asyncio.to_thread(Reply, await until_hang_up(request, work))


@router.post(
    "/contexts/{context_id}/run/stream",
    response_class=Response,
    responses=streams(EVENTS, _EVENTS),
)
async def stream_in_context(
    sandbox_id: str, context_id: str, body: CodeRequest, engine: Engine
) -> Streamed:
    """Run code and stream what comes of it; `done` or `error` is last."""
    return await event_stream(
        code_frames(engine, SandboxId(sandbox_id), ContextId(context_id), body.spec())
    )


@router.post("/run", response_model=CodeRunWire)
async def run_code(
    sandbox_id: str, body: DefaultCodeRequest, engine: Engine, request: Request
) -> Reply:
    """Run code in the sandbox's default context of a language, which is made when it is first needed."""
    work = code_run(engine, SandboxId(sandbox_id), body.language, body.spec())
    return await asyncio.to_thread(Reply, await until_hang_up(request, work))


@router.post("/run/stream", response_class=Response, responses=streams(EVENTS, _EVENTS))
async def stream_code(sandbox_id: str, body: DefaultCodeRequest, engine: Engine) -> Streamed:
    """As POST …/run, but stream what comes of it; `done` or `error` is last."""
    return await event_stream(
        code_frames(engine, SandboxId(sandbox_id), body.language, body.spec())
    )
