"""`Sandbox.explore`: the synchronous face of `torpor.sdk.explore`; callables run in threads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torpor.sdk.explore import Exploration, Explorer, Plan
from torpor.sdk.loop import loop_thread
from torpor.sdk.sandbox import AsyncSandbox
from torpor.sdk.temporary import CLEANUP_LIMIT_S, in_thread

if TYPE_CHECKING:
    from torpor.sdk.sync_sandbox import Sandbox


def explore(plan: Plan) -> Exploration[Sandbox]:
    """Carry out a plan whose callables take a `Sandbox` and may block."""
    from torpor.sdk.sync_sandbox import Sandbox

    explorer = Explorer(
        replace(
            plan,
            candidates=[_threaded(c) if callable(c) else c for c in plan.candidates],
            score=None if plan.score is None else _threaded(plan.score),
        )
    )
    try:
        # a second Ctrl-C leaves the forks to their TTL
        found = loop_thread.run(explorer.run(), cleanup_limit_s=CLEANUP_LIMIT_S)
    except BaseException:
        loop_thread.run(explorer.abandon())
        raise
    outcomes = tuple(replace(o, candidate=plan.candidates[o.index]) for o in found.outcomes)
    return Exploration(
        winner=None if found.winner is None else Sandbox(found.winner),
        best=None if found.best is None else outcomes[found.best.index],
        outcomes=outcomes,
        snapshot_id=found.snapshot_id,
        leftovers=found.leftovers,
    )


def _threaded(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    from torpor.sdk.sync_sandbox import Sandbox

    async def call(fork: AsyncSandbox, *more: object) -> Any:
        return await in_thread(lambda: function(Sandbox(fork), *more))

    return call
