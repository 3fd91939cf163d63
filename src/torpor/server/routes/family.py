"""/v1/layers and /v1/tree: what takes up the disk, and who descends from whom."""

from __future__ import annotations

from fastapi import APIRouter

from torpor.model import SandboxFilter, SandboxId
from torpor.server.family import family_tree, layers_report
from torpor.server.forks import every
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.wire_family import LayersWire, TreeWire

router = APIRouter(prefix="/v1", tags=["snapshots"], responses=FAILURES)


@router.get("/layers", response_model=LayersWire)
async def list_layers(engine: Engine) -> Reply:
    """List the layers on disk: who needs which, what is shared, and what each deletion would free."""
    sandboxes = [info async for info in every(engine, SandboxFilter())]
    return Reply(layers_report(await engine.layers(), await engine.snapshots(), sandboxes))


@router.get("/tree", response_model=TreeWire)
async def get_tree(engine: Engine, sandbox_id: str | None = None) -> Reply:
    """Return the family of all templates, snapshots and sandboxes, or that of one sandbox."""
    sandboxes = [info async for info in every(engine, SandboxFilter())]
    snapshots = await engine.snapshots()
    nodes = family_tree(
        await engine.templates(), snapshots, sandboxes, await engine.layers(), of=sandbox_id
    )
    if not nodes and sandbox_id is not None:
        await engine.get(SandboxId(sandbox_id))
    return Reply(TreeWire(nodes=nodes))
