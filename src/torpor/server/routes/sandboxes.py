"""/v1/sandboxes: their lives, and their consoles."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from torpor.base.aio import closing
from torpor.errors import InvalidRequest
from torpor.model import SandboxFilter, SandboxId, SandboxState, SnapshotId
from torpor.sandboxes.port import EnginePort
from torpor.server.exec_output import incomplete_tail, text_of
from torpor.server.query import raw_query
from torpor.server.replies import Last, Reply, Streamed, event_stream, sse, streamed
from torpor.server.routes.deps import FAILURES, Engine, streams
from torpor.server.wire import (
    CreateRequest,
    LifecycleRequest,
    LifecycleWire,
    SandboxPageWire,
    SandboxWire,
)
from torpor.server.wire_usage import UsageWire

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"], responses=FAILURES)

_METADATA = "metadata."


@router.post("", status_code=201, response_model=SandboxWire)
async def create_sandbox(body: CreateRequest, engine: Engine) -> Reply:
    """Make a sandbox from a template, or from a snapshot; the answer comes when its agent answers."""
    if body.from_snapshot is not None:
        info = await engine.restore(SnapshotId(body.from_snapshot), body.restore_spec())
        return Reply(SandboxWire.of(info), 201)
    return Reply(SandboxWire.of(await engine.create(body.spec())), 201)


@router.get("", response_model=SandboxPageWire)
async def list_sandboxes(
    request: Request,
    engine: Engine,
    state: Annotated[
        list[str] | None,
        Query(description="One or more states, also comma-separated; default: all but `deleted`."),
    ] = None,
    template: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> Reply:
    """List sandboxes, newest first; `metadata.KEY=VALUE` keeps those with that metadata."""
    metadata = {
        name.removeprefix(_METADATA): value
        for name, value in raw_query(request)
        if name.startswith(_METADATA)
    }
    page = await engine.list(
        SandboxFilter(
            states=_states(state or []),
            template=template,
            metadata=metadata,
            limit=limit,
            cursor=cursor,
        )
    )
    return Reply(SandboxPageWire.of(page))


def _states(texts: list[str]) -> tuple[SandboxState, ...]:
    words = [word for text in texts for word in text.split(",") if word]
    try:
        return tuple(SandboxState(word) for word in words)
    except ValueError as exc:
        raise InvalidRequest(f"{exc}", hint=f"states are: {', '.join(SandboxState)}") from exc


@router.get("/{sandbox_id}", response_model=SandboxWire)
async def get_sandbox(sandbox_id: str, engine: Engine) -> Reply:
    """Return one sandbox; also a deleted one, for a day."""
    return Reply(SandboxWire.of(await engine.get(SandboxId(sandbox_id))))


@router.delete("/{sandbox_id}", status_code=204)
async def delete_sandbox(sandbox_id: str, engine: Engine) -> Response:
    """End and remove a sandbox, from any state."""
    await engine.delete(SandboxId(sandbox_id))
    return Response(status_code=204)


@router.post("/{sandbox_id}/pause", status_code=204)
async def pause_sandbox(sandbox_id: str, engine: Engine) -> Response:
    """Stop the machine's CPUs; its RAM stays."""
    await engine.pause(SandboxId(sandbox_id))
    return Response(status_code=204)


@router.post("/{sandbox_id}/resume", status_code=204)
async def resume_sandbox(sandbox_id: str, engine: Engine) -> Response:
    """Let a paused machine run on."""
    await engine.resume(SandboxId(sandbox_id))
    return Response(status_code=204)


@router.get("/{sandbox_id}/lifecycle", response_model=LifecycleWire)
async def get_lifecycle(sandbox_id: str, engine: Engine) -> Reply:
    """Return when the sandbox ends, and how, and when it sleeps."""
    return Reply(LifecycleWire.of(await engine.get(SandboxId(sandbox_id))))


@router.patch("/{sandbox_id}/lifecycle", response_model=LifecycleWire)
async def set_lifecycle(sandbox_id: str, body: LifecycleRequest, engine: Engine) -> Reply:
    """Let the sandbox end `ttl_seconds` from now, or sleep after `idle_seconds` without work."""
    found = SandboxId(sandbox_id)
    if "idle_seconds" in body.model_fields_set:
        await engine.set_idle(found, body.idle_seconds)
    if "ttl_seconds" in body.model_fields_set:
        await engine.set_ttl(found, body.ttl_seconds, on_timeout=body.on_timeout)
    return Reply(LifecycleWire.of(await engine.get(found)))


@router.get("/{sandbox_id}/usage", response_model=UsageWire)
async def get_usage(sandbox_id: str, engine: Engine) -> Reply:
    """Return what the machine takes, and has used since its VMM was started; a sandbox that sleeps is not woken."""
    return Reply(UsageWire.of(await engine.usage(SandboxId(sandbox_id))))


@router.get(
    "/{sandbox_id}/logs",
    response_class=Response,
    responses=streams("text/plain", "The log; with `follow` events of text/event-stream."),
)
async def get_logs(sandbox_id: str, engine: Engine, follow: bool = False) -> Streamed:
    """Return the console log as plain text; with `follow` as events `{"chunk"}` until the machine ends."""
    found = SandboxId(sandbox_id)
    await engine.get(found)
    if follow:
        return await event_stream(_console_frames(engine, found), first_within_s=1.0)
    return await streamed(_console(engine, found), media_type="text/plain; charset=utf-8")


async def _console(engine: EnginePort, sandbox_id: SandboxId) -> AsyncGenerator[bytes, None]:
    async with closing(engine.console(sandbox_id)) as chunks:
        async for data in chunks:
            yield data


async def _console_frames(engine: EnginePort, sandbox_id: SandboxId) -> AsyncGenerator[bytes, None]:
    held = b""
    async with closing(engine.console(sandbox_id, follow=True)) as chunks:
        async for data in chunks:
            whole = held + data
            cut = len(whole) - incomplete_tail(whole)
            held = whole[cut:]
            if cut:
                yield _console_frame(whole[:cut])
    if held:
        yield _console_frame(held)
    yield Last(sse("done", {}))


def _console_frame(data: bytes) -> bytes:
    text, exact = text_of(data)
    return sse(None, {"chunk": text} if exact is None else {"chunk": text, "b64": exact})
