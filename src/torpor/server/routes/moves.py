"""/v1/sandboxes/{id}/…: put it down, pick it up, put it back, make more of it, keep one of them."""

from __future__ import annotations

from fastapi import APIRouter

from torpor.model import SandboxId, SnapshotId
from torpor.server import forks
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine, PlannedTree
from torpor.server.wire import SandboxWire
from torpor.server.wire_snapshots import (
    ForkRequest,
    ForkWire,
    HibernateRequest,
    PromoteRequest,
    PromoteWire,
    RollbackRequest,
    SnapshotWire,
)

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["sandboxes"], responses=FAILURES)


@router.post("/hibernate", response_model=SnapshotWire)
async def hibernate_sandbox(
    sandbox_id: str, engine: Engine, body: HibernateRequest | None = None
) -> Reply:
    """Put a sandbox to sleep and give all its CPU and RAM back; answers with where it sleeps. Idempotent."""
    wish = body or HibernateRequest()
    info = await engine.hibernate(
        SandboxId(sandbox_id), consistency=wish.consistency, quiesce=wish.spec()
    )
    return Reply(SnapshotWire.of(info))


@router.post("/wake", response_model=SandboxWire)
async def wake_sandbox(sandbox_id: str, engine: Engine) -> Reply:
    """Let a hibernated sandbox go on at the exact instruction. Idempotent."""
    return Reply(SandboxWire.of(await engine.wake(SandboxId(sandbox_id))))


@router.post("/rollback", response_model=SandboxWire)
async def rollback_sandbox(sandbox_id: str, body: RollbackRequest, engine: Engine) -> Reply:
    """Put a sandbox back to a snapshot, same id; what reached the outside world since then stays."""
    info = await engine.rollback(
        SandboxId(sandbox_id),
        SnapshotId(body.snapshot_id),
        memory=body.memory,
        agent_memory=body.agent_memory,
        volumes=body.volumes,
    )
    return Reply(SandboxWire.of(info))


@router.post("/fork", status_code=201, response_model=ForkWire)
async def fork_sandbox(
    sandbox_id: str, engine: Engine, tree_id: PlannedTree, body: ForkRequest | None = None
) -> Reply:
    """Make new sandboxes that go on where this one is, which goes on too.

    Without `count` one is made, and its failure is this answer's. With it every result is a sandbox or
    its own error, and the answer is 201 whatever became of them.
    """
    request = body or ForkRequest()
    answer, errors = await forks.fork(engine, SandboxId(sandbox_id), request, tree_id=tree_id)
    if request.count is None and errors:
        raise errors[0]
    return Reply(answer, 201)


@router.post("/fork-tree", status_code=201, response_model=ForkWire)
async def fork_tree(
    sandbox_id: str, engine: Engine, tree_id: PlannedTree, body: ForkRequest | None = None
) -> Reply:
    """Do what …/fork does, but fail if not one of the forks could be made."""
    answer, errors = await forks.fork(
        engine, SandboxId(sandbox_id), body or ForkRequest(), tree_id=tree_id
    )
    if not answer.children and errors:
        raise errors[0]
    return Reply(answer, 201)


@router.post("/promote", response_model=PromoteWire)
async def promote_fork(
    sandbox_id: str, engine: Engine, body: PromoteRequest | None = None
) -> Reply:
    """Keep a fork, which is independent already; with `cleanup_siblings` delete the others of its tree."""
    return Reply(await forks.promote(engine, SandboxId(sandbox_id), body or PromoteRequest()))
