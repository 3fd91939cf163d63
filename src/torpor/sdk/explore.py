"""Best of N: fork N ways, try one candidate in each fork, keep the winner, delete the rest."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torpor.base.ids import new_id
from torpor.errors import InvalidRequest, OperationTimeout, TorporError
from torpor.model import Network, OnTimeout, SandboxId, SnapshotId
from torpor.sdk.client import Client
from torpor.sdk.results import ExecResult
from torpor.sdk.snapshot_results import restore_body
from torpor.sdk.temporary import TTL_SECONDS, Temporary, answer_of

if TYPE_CHECKING:
    from torpor.sdk.sandbox import AsyncSandbox

S = TypeVar("S")

CANDIDATES_MOST = 100
EXPLORE_ID = "explore_id"
"""Metadata of all forks of one exploration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one candidate."""

    index: int
    candidate: object
    sandbox_id: SandboxId | None
    """Its fork, which is deleted unless it won; None: it could not be made."""
    result: Any = None
    """A command's `ExecResult`, or what the callable returned."""
    score: float | None = None
    """None: it has none, and cannot win, because of `error`."""
    error: Exception | None = None
    duration_ms: int = 0
    """How long the candidate itself took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration(Generic[S]):
    """What became of all candidates."""

    winner: S | None
    """The best candidate's fork, which lives on; None: all had errors."""
    best: Outcome | None
    """What became of the winner."""
    outcomes: tuple[Outcome, ...]
    """In the order of the candidates."""
    snapshot_id: SnapshotId | None
    """Where all of them began."""
    leftovers: Mapping[SandboxId, str]
    """Losers that could not be deleted, and why; they end by themselves within a day of running."""

    @property
    def errors(self) -> tuple[Exception, ...]:
        """The errors of the candidates that had one."""
        return tuple(outcome.error for outcome in self.outcomes if outcome.error is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be tried, and what the winner is given."""

    source_id: str
    client: Client
    candidates: Sequence[Any]
    score: Callable[..., float | Awaitable[float]] | None
    timeout_seconds: float | None
    env: Mapping[str, str] | None
    secrets: Mapping[str, str] | None = field(repr=False)
    metadata: Mapping[str, str] | None
    network: Network | None
    ttl_seconds: int | None
    on_timeout: OnTimeout
    idle_seconds: int | None


class Explorer:
    """One exploration; `run` once."""

    def __init__(self, plan: Plan) -> None:
        if not 1 <= len(plan.candidates) <= CANDIDATES_MOST:
            raise InvalidRequest(
                f"there are {len(plan.candidates)} candidates; 1 to {CANDIDATES_MOST} are wanted"
            )
        self._plan = plan
        self._winner: AsyncSandbox | None = None

    async def abandon(self) -> None:
        """Delete the winner of a `run` whose result nobody got."""
        if self._winner is not None:
            await self._winner.delete()

    async def run(self) -> Exploration[AsyncSandbox]:
        """Fork, try, score; keep the winner and delete the rest, also after an error or when cancelled."""
        temporary = Temporary()
        async with temporary:
            found = await self._explore(temporary)
        self._winner = found.winner
        return replace(found, leftovers=dict(temporary.leftovers))

    async def _explore(self, temporary: Temporary) -> Exploration[AsyncSandbox]:
        forks = await temporary.make(self._fork())
        outcomes = tuple(await asyncio.gather(*(self._try(n, f) for n, f in enumerate(forks))))
        best = max((o for o in outcomes if o.score is not None), key=_rank, default=None)
        winner: AsyncSandbox | None = None
        if best is not None:
            won = forks[best.index]
            assert not isinstance(won, TorporError)
            winner = won
            await winner.set_ttl(self._plan.ttl_seconds, on_timeout=self._plan.on_timeout)
            await winner.refresh()
            temporary.keep(winner.id)
        made = (f.info.parent_snapshot for f in forks if not isinstance(f, TorporError))
        return Exploration(
            winner=winner,
            best=best,
            outcomes=outcomes,
            snapshot_id=next(made, None),
            leftovers={},
        )

    async def _fork(self) -> list[AsyncSandbox | TorporError]:
        from torpor.sdk.forks import fork_from

        plan = self._plan
        body = restore_body(
            env=plan.env,
            secrets=plan.secrets,
            metadata={**(plan.metadata or {}), EXPLORE_ID: new_id("explore")},
            network=plan.network,
            ttl_seconds=TTL_SECONDS,
            on_timeout="delete",
            idle_seconds=plan.idle_seconds,
            allow_cold=False,
        )
        found = await fork_from(plan.source_id, len(plan.candidates), body, plan.client)
        assert isinstance(found, list)
        return found

    async def _try(self, index: int, fork: AsyncSandbox | TorporError) -> Outcome:
        candidate = self._plan.candidates[index]
        if isinstance(fork, TorporError):
            return Outcome(index=index, candidate=candidate, sandbox_id=None, error=fork)
        outcome = Outcome(index=index, candidate=candidate, sandbox_id=fork.id)
        begun = time.monotonic()
        try:
            result = await self._run(candidate, fork)
        except Exception as error:  # noqa: BLE001 - a candidate may fail in any way; it is reported
            outcome = replace(outcome, error=error)
        else:
            outcome = replace(outcome, result=result)
        outcome = replace(outcome, duration_ms=round((time.monotonic() - begun) * 1000))
        if outcome.error is not None:
            return outcome
        try:
            return replace(outcome, score=await self._scored(fork, outcome.result))
        except Exception as error:  # noqa: BLE001 - so may its score
            return replace(outcome, error=error)

    async def _run(self, candidate: Any, fork: AsyncSandbox) -> Any:
        limit_s = self._plan.timeout_seconds
        if not callable(candidate):
            return await fork.exec(candidate, timeout_seconds=limit_s)
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await answer_of(candidate, fork)
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise OperationTimeout(
                f"timeout: the candidate took longer than {limit_s:g} s", sandbox_id=fork.id
            ) from exc

    async def _scored(self, fork: AsyncSandbox, result: Any) -> float:
        if self._plan.score is None:
            return 0.0 if isinstance(result, ExecResult) and not result.ok else 1.0
        found = float(await answer_of(self._plan.score, fork, result))
        if math.isnan(found):
            raise InvalidRequest("the score is not a number, so it cannot be compared")
        return found


def _rank(outcome: Outcome) -> tuple[float, int, int]:
    """Order by score, then by speed, then by place."""
    assert outcome.score is not None
    return outcome.score, -outcome.duration_ms, -outcome.index
