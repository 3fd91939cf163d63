"""/pandastack/v1/snapshots, and forks: fork, fork-tree and promote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from torpor.errors import InvalidRequest, TorporError
from torpor.model import OnTimeout, SandboxId, SandboxInfo
from torpor.server import forks
from torpor.server.compat.deps import TheSandbox, TheSnapshot
from torpor.server.compat.dispatch import PREFIX
from torpor.server.compat.wire import (
    Asked,
    SandboxTold,
    SnapshotGoneTold,
    SnapshotsTold,
    SnapshotTold,
)
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.wire import SandboxWire, Wire
from torpor.server.wire_snapshots import ForkErrorWire, ForkRequest, PromoteRequest, PromoteWire

router = APIRouter(prefix=f"{PREFIX}/v1", tags=["pandastack"], responses=FAILURES)

EXPLORE_TTL = "explore_ttl"
"""In the metadata of forks that an experiment makes: seconds after which those go that nobody promoted."""


class ForkAsked(Asked):
    """What POST …/fork takes; nothing is needed."""

    metadata: dict[str, str] | None = None


class ForkTreeAsked(ForkAsked):
    """What POST …/fork-tree takes."""

    count: Annotated[int, Field(ge=1, le=100)]


class PromoteAsked(Asked):
    """What POST …/promote takes; nothing is needed."""

    cleanup_siblings: bool = False
    tree_id: Annotated[str | None, Field(description="null: the fork's own.")] = None


class ForkTold(Wire):
    """A fork."""

    sandbox: SandboxTold
    children: list[SandboxTold]
    parent_id: str
    tree_id: str
    snapshot_id: str | None


class ForkTreeTold(Wire):
    """Forks; fewer than asked for when `errors` says why."""

    tree_id: str
    parent_id: str
    snapshot_id: str | None
    children: list[SandboxTold]
    errors: list[ForkErrorWire]


@router.post("/sandboxes/{sandbox}/snapshots", status_code=201, response_model=SnapshotTold)
async def pandastack_take_snapshot(info: TheSandbox, engine: Engine) -> Reply:
    """Take a snapshot; the sandbox goes on."""
    return Reply(SnapshotTold.of(await engine.snapshot(info.id)), 201)


@router.get("/snapshots", response_model=SnapshotsTold)
async def pandastack_list_snapshots(engine: Engine, sandbox_id: str | None = None) -> Reply:
    """List the snapshots that somebody took, or those of one sandbox."""
    found = await engine.snapshots(None if sandbox_id is None else SandboxId(sandbox_id))
    taken = [SnapshotTold.of(info) for info in found if info.reason == "snapshot"]
    return Reply(SnapshotsTold(snapshots=taken))


@router.get("/snapshots/{snap}", response_model=SnapshotTold)
async def pandastack_get_snapshot(info: TheSnapshot) -> Reply:
    """Return one snapshot."""
    return Reply(SnapshotTold.of(info))


@router.delete("/snapshots/{snap}", response_model=SnapshotGoneTold)
async def pandastack_delete_snapshot(info: TheSnapshot, engine: Engine) -> Reply:
    """Remove a snapshot."""
    await engine.delete_snapshot(info.id)
    return Reply(SnapshotGoneTold(deleted=info.id))


@router.post("/sandboxes/{sandbox}/fork", status_code=201, response_model=ForkTold)
async def pandastack_fork_sandbox(
    info: TheSandbox, engine: Engine, body: ForkAsked | None = None
) -> Reply:
    """Make a sandbox that goes on where this one is, in RAM and on disk."""
    request = _request(info, body or ForkAsked(), None)
    answer, errors = await forks.fork(engine, info.id, request)
    if errors:
        raise errors[0]
    children = await _children(engine, answer.children)
    return Reply(
        ForkTold(
            sandbox=children[0],
            children=children,
            parent_id=answer.parent_id,
            tree_id=answer.tree_id,
            snapshot_id=answer.snapshot_id,
        ),
        201,
    )


@router.post("/sandboxes/{sandbox}/fork-tree", status_code=201, response_model=ForkTreeTold)
async def pandastack_fork_tree(info: TheSandbox, body: ForkTreeAsked, engine: Engine) -> Reply:
    """Make several of them from one moment; when none could be made, the first one's error is the answer."""
    answer, errors = await forks.fork(engine, info.id, _request(info, body, body.count))
    if not answer.children:
        raise errors[0] if errors else TorporError("the fork made nothing")
    return Reply(
        ForkTreeTold(
            tree_id=answer.tree_id,
            parent_id=answer.parent_id,
            snapshot_id=answer.snapshot_id,
            children=await _children(engine, answer.children),
            errors=answer.errors,
        ),
        201,
    )


@router.post("/sandboxes/{sandbox}/promote", response_model=PromoteWire)
async def pandastack_promote(
    info: TheSandbox, engine: Engine, body: PromoteAsked | None = None
) -> Reply:
    """Keep a fork, and delete its siblings if asked; an experiment's time limit no longer holds for it."""
    wish = body or PromoteAsked()
    request = PromoteRequest(cleanup_siblings=wish.cleanup_siblings, tree_id=wish.tree_id or None)
    answer = await forks.promote(engine, info.id, request)
    if EXPLORE_TTL in info.metadata and info.ttl_seconds is not None:
        await engine.set_ttl(info.id, None)
    return Reply(answer)


def _request(info: SandboxInfo, asked: ForkAsked, count: int | None) -> ForkRequest:
    """Return the engine's request for forks, which live as long as their parent may, or an experiment's time."""
    metadata = asked.metadata or {}
    ttl, on_timeout = info.ttl_seconds, info.on_timeout
    if EXPLORE_TTL in metadata:
        ttl, on_timeout = _experiment(metadata)
    return ForkRequest(metadata=metadata, ttl_seconds=ttl, on_timeout=on_timeout, count=count)


def _experiment(metadata: Mapping[str, str]) -> tuple[int, OnTimeout]:
    text = metadata[EXPLORE_TTL]
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRequest(f"{EXPLORE_TTL} is {text[:40]!r}; whole seconds are wanted")
    return int(text), "delete"


async def _children(engine: Engine, made: list[SandboxWire]) -> list[SandboxTold]:
    return [SandboxTold.of(await engine.get(SandboxId(child.id))) for child in made]
