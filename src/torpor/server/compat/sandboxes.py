"""/pandastack/v1/sandboxes: their lives."""

from __future__ import annotations

from fastapi import APIRouter, Response

from torpor.errors import InvalidRequest
from torpor.model import SandboxFilter, SandboxState
from torpor.server.compat.deps import TheSandbox
from torpor.server.compat.dispatch import PREFIX
from torpor.server.compat.lookup import find_snapshot
from torpor.server.compat.wire import (
    CreateAsked,
    LifecycleAsked,
    LifecycleTold,
    SandboxesTold,
    SandboxTold,
    end_of,
)
from torpor.server.forks import every
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine

router = APIRouter(prefix=f"{PREFIX}/v1/sandboxes", tags=["pandastack"], responses=FAILURES)


@router.post("", status_code=201, response_model=SandboxTold)
async def pandastack_create_sandbox(body: CreateAsked, engine: Engine) -> Reply:
    """Make a sandbox from a template or a snapshot."""
    if body.from_snapshot is not None:
        origin = await find_snapshot(engine, body.from_snapshot)
        made = await engine.restore(origin.id, body.restore_spec())
    else:
        made = await engine.create(body.spec())
    return Reply(SandboxTold.of(made), 201)


@router.get("", response_model=SandboxesTold)
async def pandastack_list_sandboxes(engine: Engine) -> Reply:
    """List all sandboxes, also those that sleep."""
    found = [SandboxTold.of(info) async for info in every(engine, SandboxFilter())]
    return Reply(SandboxesTold(items=found))


@router.get("/{sandbox}", response_model=SandboxTold)
async def pandastack_get_sandbox(info: TheSandbox) -> Reply:
    """Return one sandbox."""
    return Reply(SandboxTold.of(info))


@router.delete("/{sandbox}", status_code=204)
async def pandastack_delete_sandbox(info: TheSandbox, engine: Engine) -> Response:
    """End and remove a sandbox; one that is not there is a 404."""
    await engine.delete(info.id)
    return Response(status_code=204)


@router.post("/{sandbox}/pause", status_code=204)
async def pandastack_pause_sandbox(info: TheSandbox, engine: Engine) -> Response:
    """Stop the machine's CPUs; its RAM stays."""
    await engine.pause(info.id)
    return Response(status_code=204)


@router.post("/{sandbox}/resume", status_code=204)
async def pandastack_resume_sandbox(info: TheSandbox, engine: Engine) -> Response:
    """Let a paused machine run on."""
    await engine.resume(info.id)
    return Response(status_code=204)


@router.post("/{sandbox}/hibernate", response_model=SandboxTold)
async def pandastack_hibernate_sandbox(info: TheSandbox, engine: Engine) -> Reply:
    """Put a sandbox to sleep; one that sleeps sleeps on."""
    if info.state is not SandboxState.HIBERNATED:
        await engine.hibernate(info.id)
    return Reply(SandboxTold.of(await engine.get(info.id)))


@router.post("/{sandbox}/wake", response_model=SandboxTold)
async def pandastack_wake_sandbox(info: TheSandbox, engine: Engine) -> Reply:
    """Let a sandbox go on; one that runs runs on."""
    if info.state is SandboxState.RUNNING:
        return Reply(SandboxTold.of(info))
    return Reply(SandboxTold.of(await engine.wake(info.id)))


@router.get("/{sandbox}/lifecycle", response_model=LifecycleTold)
async def pandastack_get_lifecycle(info: TheSandbox) -> Reply:
    """Return when the sandbox ends, and how."""
    return Reply(LifecycleTold.of(info))


@router.patch("/{sandbox}/lifecycle", response_model=LifecycleTold)
async def pandastack_set_lifecycle(info: TheSandbox, body: LifecycleAsked, engine: Engine) -> Reply:
    """Let the sandbox end `ttl_seconds` from now, or be hibernated (`persistent`) instead of deleted then."""
    if not body.model_fields_set & {"ttl_seconds", "persistent"}:
        raise InvalidRequest("ttl_seconds or persistent is needed")
    ttl = body.ttl_seconds if "ttl_seconds" in body.model_fields_set else info.ttl_seconds
    on_timeout = info.on_timeout if body.persistent is None else end_of(body.persistent)
    return Reply(LifecycleTold.of(await engine.set_ttl(info.id, ttl, on_timeout=on_timeout)))
