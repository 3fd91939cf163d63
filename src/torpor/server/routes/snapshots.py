"""/v1/snapshots and …/snapshots: points of sandboxes' lives, and new sandboxes from them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from torpor.model import SandboxId, SnapshotId, SnapshotReason
from torpor.model_quiesce import quiesce_spec
from torpor.server import forks
from torpor.server.pages import Cursor, Limit, page_of
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.wire import SandboxWire
from torpor.server.wire_quiesce import QuiesceTestRequest, QuiesceWire
from torpor.server.wire_snapshots import (
    ForkRequest,
    ForkWire,
    RestoreRequest,
    SnapshotDeletedWire,
    SnapshotListWire,
    SnapshotRequest,
    SnapshotWire,
    VerifyWire,
)

router = APIRouter(prefix="/v1", tags=["snapshots"], responses=FAILURES)


@router.post("/sandboxes/{sandbox_id}/snapshots", status_code=201, response_model=SnapshotWire)
async def take_snapshot(
    sandbox_id: str, engine: Engine, body: SnapshotRequest | None = None
) -> Reply:
    """Take a snapshot of a running, paused or hibernated sandbox, which goes on as it was."""
    wish = body or SnapshotRequest()
    info = await engine.snapshot(
        SandboxId(sandbox_id),
        label=wish.label,
        consistency=wish.consistency,
        metadata=wish.metadata or {},
        quiesce=wish.spec(),
        volumes=wish.volumes,
    )
    return Reply(SnapshotWire.of(info), 201)


@router.post("/sandboxes/{sandbox_id}/quiesce/test", response_model=QuiesceWire)
async def try_quiesce(
    sandbox_id: str, engine: Engine, body: QuiesceTestRequest | None = None
) -> Reply:
    """Bring a running sandbox's programs to rest and release them, without a snapshot.

    The answer says what came of each hook; a hook that fails is in it, and no failure of the request.
    """
    request = body or QuiesceTestRequest()
    spec = quiesce_spec(request.quiesce, on_failure=request.on_quiesce_failure)
    return Reply(QuiesceWire.of(await engine.test_quiesce(SandboxId(sandbox_id), spec)))


@router.get("/sandboxes/{sandbox_id}/snapshots", response_model=SnapshotListWire)
async def list_snapshots_of_sandbox(
    sandbox_id: str, engine: Engine, limit: Limit, cursor: Cursor
) -> Reply:
    """List the snapshots taken of one sandbox, also of a deleted one, newest first."""
    found = await engine.snapshots(SandboxId(sandbox_id))
    if not found:
        await engine.get(SandboxId(sandbox_id))
    page, after = page_of(found, lambda info: info.id, limit, cursor)
    return Reply(SnapshotListWire.of(page, after))


@router.get("/snapshots", response_model=SnapshotListWire)
async def list_snapshots(
    engine: Engine,
    limit: Limit,
    cursor: Cursor,
    sandbox_id: str | None = None,
    label: str | None = None,
    reason: SnapshotReason | None = None,
    template: str | None = None,
) -> Reply:
    """List all snapshots, or those that match, newest first."""
    found = [
        info
        for info in await engine.snapshots(None if sandbox_id is None else SandboxId(sandbox_id))
        if label in (None, info.label)
        and reason in (None, info.reason)
        and template in (None, info.template)
    ]
    page, after = page_of(found, lambda info: info.id, limit, cursor)
    return Reply(SnapshotListWire.of(page, after))


@router.get("/snapshots/{snapshot_id}", response_model=SnapshotWire)
async def get_snapshot(snapshot_id: str, engine: Engine) -> Reply:
    """Return one snapshot."""
    return Reply(SnapshotWire.of(await engine.get_snapshot(SnapshotId(snapshot_id))))


@router.delete("/snapshots/{snapshot_id}", response_model=SnapshotDeletedWire)
async def delete_snapshot(
    snapshot_id: str,
    engine: Engine,
    force: Annotated[
        bool, Query(description="Also the last one of a sandbox that is known to be good.")
    ] = False,
) -> Reply:
    """Remove a snapshot; layers that others need stay. Refused while a sandbox sleeps at it."""
    freed = await engine.delete_snapshot(SnapshotId(snapshot_id), force=force)
    return Reply(SnapshotDeletedWire(deleted=snapshot_id, freed_bytes=freed))


@router.post("/snapshots/{snapshot_id}/verify", response_model=VerifyWire)
async def verify_snapshot(snapshot_id: str, engine: Engine) -> Reply:
    """Read all that a snapshot needs and compare it with its digests; say what is damaged."""
    return Reply(VerifyWire.of(await engine.verify_snapshot(SnapshotId(snapshot_id))))


@router.post("/snapshots/{snapshot_id}/restore", status_code=201, response_model=SandboxWire)
async def restore_snapshot(
    snapshot_id: str, engine: Engine, body: RestoreRequest | None = None
) -> Reply:
    """Make a new sandbox that goes on exactly at a snapshot, with an identity of its own."""
    spec = (body or RestoreRequest()).spec()
    return Reply(SandboxWire.of(await engine.restore(SnapshotId(snapshot_id), spec)), 201)


@router.post("/snapshots/{snapshot_id}/fork", status_code=201, response_model=ForkWire)
async def fork_snapshot(snapshot_id: str, engine: Engine, body: ForkRequest | None = None) -> Reply:
    """Make new sandboxes from a snapshot that know each other as siblings; see …/sandboxes/{id}/fork."""
    request = body or ForkRequest()
    found = (await engine.get_snapshot(SnapshotId(snapshot_id))).id  # never a sandbox by this name
    answer, errors = await forks.fork(engine, found, request)
    if request.count is None and errors:
        raise errors[0]
    return Reply(answer, 201)
