"""Forks know their siblings: metadata that is set when they are made, and what promoting one of them does.

`fork_tree_id` is the same for all that were forked from one snapshot, or from a sandbox in one call;
`fork_parent_id` is the sandbox that they are copies of (the snapshot, if it was no sandbox's).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

from torpor.base.ids import is_id, new_id
from torpor.errors import InvalidRequest, TorporError, WrongState
from torpor.model import SandboxFilter, SandboxId, SandboxInfo, SandboxState, SnapshotId
from torpor.sandboxes.port import EnginePort
from torpor.server.wire_snapshots import ForkRequest, ForkWire, PromoteRequest, PromoteWire

TREE = "fork_tree_id"
PARENT = "fork_parent_id"


async def fork(
    engine: EnginePort,
    source: SandboxId | SnapshotId,
    request: ForkRequest,
    *,
    tree_id: str | None = None,
) -> tuple[ForkWire, list[TorporError]]:
    """Fork a sandbox or a snapshot; return the answer, and the errors in it.

    Raises:
        TorporError: the source cannot be forked; nothing was made.
    """
    parent, tree = str(source), tree_id or new_id("tree")
    if is_id(source, "snap"):
        found = await engine.get_snapshot(SnapshotId(source))
        parent, tree = found.sandbox_id or found.id, found.id
    results = await engine.fork(
        source,
        request.spec(**{TREE: tree, PARENT: parent}),
        count=1 if request.count is None else request.count,
    )
    errors = [result for result in results if isinstance(result, TorporError)]
    return ForkWire.of(results, parent_id=parent, tree_id=tree), errors


async def promote(
    engine: EnginePort, sandbox_id: SandboxId, request: PromoteRequest
) -> PromoteWire:
    """Keep a fork, which needs nothing of its siblings, and delete those if asked.

    Raises:
        InvalidRequest: it is no fork, or of another tree than `request.tree_id`; nothing was deleted.
        WrongState: it is deleted; nothing else was.
    """
    winner = await engine.get(sandbox_id)
    tree = winner.metadata.get(TREE)
    if request.tree_id is not None and request.tree_id != tree:
        raise InvalidRequest(
            f"sandbox {sandbox_id} is of the fork tree {tree}, not of {request.tree_id}",
            hint="leave tree_id out: the sandbox knows its own",
        )
    if not request.cleanup_siblings:
        return PromoteWire(winner=winner.id, tree_id=tree, deleted=[], failures={})
    if tree is None:
        raise InvalidRequest(
            f"sandbox {sandbox_id} is no fork, so it has no siblings",
            hint="delete sandboxes by their ids: torpor rm",
        )
    if winner.state in (SandboxState.DELETING, SandboxState.DELETED):
        raise WrongState(
            f"sandbox {sandbox_id} is {winner.state}; its siblings stay",
            hint="promote one that lives",
            sandbox_id=sandbox_id,
        )
    # metadata can say anything: what is in another workspace is no sibling, also where all are seen
    siblings = SandboxFilter(metadata={TREE: tree}, workspace=winner.workspace)
    doomed = [info.id async for info in every(engine, siblings) if info.id != winner.id]
    outcomes = await asyncio.gather(*(_delete(engine, sibling) for sibling in doomed))
    failures = {
        sibling: error.message
        for sibling, error in zip(doomed, outcomes, strict=True)
        if error is not None
    }
    deleted = [str(sibling) for sibling in doomed if sibling not in failures]
    return PromoteWire(
        winner=winner.id,
        tree_id=tree,
        deleted=deleted,
        failures={str(k): v for k, v in failures.items()},
    )


async def _delete(engine: EnginePort, sandbox_id: SandboxId) -> TorporError | None:
    try:
        await engine.delete(sandbox_id)
    except TorporError as error:
        return error
    return None


async def every(engine: EnginePort, query: SandboxFilter) -> AsyncGenerator[SandboxInfo, None]:
    """Yield all sandboxes that match, page by page."""
    query = replace(query, limit=1000)
    while True:
        page = await engine.list(query)
        for info in page.items:
            yield info
        if page.next_cursor is None:
            return
        query = replace(query, cursor=page.next_cursor)
