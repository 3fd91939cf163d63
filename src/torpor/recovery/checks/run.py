"""Runs a plan in a machine: attempts, delays and limits; how each kind is looked at is in `looker`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from torpor.base.clock import Clock, SystemClock
from torpor.errors import (
    CommandLost,
    GuestFailed,
    GuestUnreachable,
    InvalidRequest,
    LimitExceeded,
    OperationTimeout,
    TorporError,
)
from torpor.model_checks import CheckReport, CheckResult, Finding, Outcome
from torpor.recovery.checks.baseline import Baseline
from torpor.recovery.checks.clean import clean
from torpor.recovery.checks.compare import compare, conclude
from torpor.recovery.checks.facts import Broken, Facts, Unclear
from torpor.recovery.checks.folders import ROOT, as_check, find_executables
from torpor.recovery.checks.looker import Looker
from torpor.recovery.checks.plan import Check, CheckPlan, Timing, TurnSpec
from torpor.recovery.checks.probe import ProbeMachine
from torpor.recovery.checks.regexes import search

Progress = Callable[[CheckResult], object]
Sleep = Callable[[float], Awaitable[object]]

PARALLEL = 4
_LATE = ("inventory", "turn")
WITHIN_SECONDS = 3600.0


@dataclass(slots=True)
class _Attempt:
    """How one attempt ended."""

    outcome: Outcome
    reason: str
    facts: Facts = field(default_factory=Facts)
    findings: tuple[Finding, ...] = ()


async def run_checks(
    plan: CheckPlan,
    probe: ProbeMachine,
    *,
    inventory: Baseline | None = None,
    turn: TurnSpec | None = None,
    progress: Progress | None = None,
    sandbox_id: str | None = None,
    within_seconds: float = WITHIN_SECONDS,
    parallel: int = PARALLEL,
    clock: Clock | None = None,
    sleep: Sleep = asyncio.sleep,
) -> CheckReport:
    """Run all checks of a plan and return what was found. The machine is not changed, but by what the file runs.

    A few checks run at the same time. Then what the machine holds is compared, when no other check's own doings are
    in it; turns of the agent come last, one by one. When this is cancelled, no command of it goes on in the machine.

    Args:
        plan: what to check.
        probe: the machine.
        inventory: what `inventory` checks compare with; without it they are inconclusive.
        turn: the agent's turn as its profile names it, for `turn` checks that do not say it themselves.
        progress: called with each result as it comes.
        sandbox_id: kept in the report.
        within_seconds: for all; a check that is not done by then is inconclusive.
        parallel: how many checks run at once.
        clock: tells when each check began and how long it took.
        sleep: how delays between attempts are waited for.

    Raises:
        WrongState, NotFound, GenerationChanged: the machine was taken away meanwhile; there is no report.
    """
    looker = await Looker.make(probe, inventory=inventory, turn=turn, parallel=parallel)
    run = _Run(looker, progress, clock or SystemClock(), sleep)
    began_at, began_s = run.clock.now(), run.clock.monotonic_s()
    checks = [*plan.checks]
    try:
        if plan.folders:
            checks = await run.with_executables(plan, probe)
        results = await run.all(checks, within_seconds, parallel)
        if run.was_unreachable:
            results.append(await run.one(_ANSWERS))
    finally:
        looker.close()
    return CheckReport(
        source=plan.source,
        started_at=began_at,
        duration_ms=round((run.clock.monotonic_s() - began_s) * 1000),
        results=tuple(results),
        sandbox_id=sandbox_id,
    )


_ANSWERS = Check(
    group="required", kind="machine", name="answers", wants={}, options={}, line=0,
    timing=Timing(timeout_seconds=10, period_seconds=5, failure_threshold=3),
    title="the machine answers after the checks",
)  # fmt: skip
"""Added when the machine did not answer: others are then inconclusive, but a dead machine is a failure."""


class _Run:
    """One run."""

    def __init__(
        self, looker: Looker, progress: Progress | None, clock: Clock, sleep: Sleep
    ) -> None:
        self._looker = looker
        self._progress = progress
        self._sleep = sleep
        self.clock = clock
        self.was_unreachable = False

    async def with_executables(self, plan: CheckPlan, probe: ProbeMachine) -> list[Check]:
        """Return the plan's checks and those that the machine's folders hold, the required ones first."""
        try:
            found = [as_check(item, plan) for item in await find_executables(probe)]
        except (GuestFailed, InvalidRequest, CommandLost, OperationTimeout, LimitExceeded) as error:
            reason = f"the folder {ROOT} could not be read: {error.message}"
            found = [_unread(plan, reason)]
        both = [*plan.checks, *found]
        return sorted(both, key=lambda check: check.group != "required")

    async def all(
        self, checks: Sequence[Check], within_s: float, parallel: int
    ) -> list[CheckResult]:
        """Return the results in the order of `checks`."""
        results: dict[int, CheckResult] = {}
        slots = asyncio.Semaphore(parallel)

        async def run_one(number: int) -> None:
            async with slots:
                results[number] = await self.one(checks[number])

        try:
            async with asyncio.timeout(within_s):
                for numbers in _stages(checks):
                    async with asyncio.TaskGroup() as tasks:
                        for number in numbers:
                            tasks.create_task(run_one(number))
        except TimeoutError:
            pass
        except BaseExceptionGroup as group:
            raise _first(group) from group
        for number, check in enumerate(checks):
            if number not in results:
                over = _Attempt("inconclusive", f"the run was over after {within_s:g} s")
                results[number] = self._result(check, over, attempts=0, duration_ms=0)
        return [results[number] for number in range(len(checks))]

    async def one(self, check: Check) -> CheckResult:
        """Return how one check ended, after all its attempts."""
        if check.skip:
            return self._result(
                check, _Attempt("skipped", "the file says `skip: true`"), attempts=0
            )
        timing = check.timing
        if timing.initial_delay_seconds:
            await self._sleep(timing.initial_delay_seconds)
        began_at, began_s = self.clock.now(), self.clock.monotonic_s()
        attempts = passed = missed = 0
        while True:
            found = await self._attempt(check)
            attempts += 1
            is_pass = found.outcome == "pass"
            passed, missed = (passed + 1, missed) if is_pass else (0, missed + 1)
            if passed >= timing.success_threshold or missed >= timing.failure_threshold:
                break
            await self._sleep(timing.period_seconds)
        taken_ms = round((self.clock.monotonic_s() - began_s) * 1000)
        return self._result(
            check, found, attempts=attempts, duration_ms=taken_ms, began_at=began_at
        )

    async def _attempt(self, check: Check) -> _Attempt:
        try:
            facts = await self._looker.look(check)
            findings = facts.findings
            if facts.decided is None:
                findings = await compare(check.wants, facts, search)
        except TimeoutError:
            return _Attempt("fail", f"it did not end within {check.timing.timeout_seconds:g} s")
        except Broken as exc:
            return _Attempt("fail", clean(str(exc)), Facts(output=exc.output))
        except Unclear as exc:
            return _Attempt("inconclusive", clean(str(exc)))
        except (GuestUnreachable, CommandLost, OperationTimeout) as error:
            self.was_unreachable = True
            if check is _ANSWERS:
                return _Attempt("fail", f"the machine does not answer: {clean(error.message)}")
            return _Attempt("inconclusive", f"the machine did not answer: {clean(error.message)}")
        except LimitExceeded as error:
            return _Attempt("inconclusive", clean(error.message))
        except (InvalidRequest, GuestFailed) as error:
            return _Attempt("fail", f"the machine refused: {clean(error.message)}")
        outcome, reason = conclude(check, facts, findings)
        return _Attempt(outcome, reason, facts, findings)

    def _result(
        self,
        check: Check,
        found: _Attempt,
        *,
        attempts: int,
        duration_ms: int = 0,
        began_at: datetime | None = None,
    ) -> CheckResult:
        result = CheckResult(
            group=check.group,
            kind=check.kind,
            name=check.name,
            title=clean(check.title) if check.title else None,
            outcome=found.outcome,
            reason=found.reason,
            started_at=began_at or self.clock.now(),
            duration_ms=duration_ms,
            attempts=attempts,
            findings=found.findings,
            output=found.facts.output,
            warning=found.facts.warning and found.outcome == "pass",
            measurements=found.facts.measurements,
        )
        if self._progress is not None:
            self._progress(result)
        return result


def _stages(checks: Sequence[Check]) -> list[list[int]]:
    """Return the numbers of the checks that may run at the same time, stage after stage."""
    by_kind = {kind: [n for n, check in enumerate(checks) if check.kind == kind] for kind in _LATE}
    early = [n for n, check in enumerate(checks) if check.kind not in _LATE]
    return [early, by_kind["inventory"], *([number] for number in by_kind["turn"])]


def _unread(plan: CheckPlan, reason: str) -> Check:
    return Check(
        group="required", kind="executable", name=ROOT, wants={}, line=0, timing=plan.timing,
        options={"refused": reason},
    )  # fmt: skip


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what went wrong first; what is ours comes before what it led to."""
    leaves = []
    pending: list[BaseException] = [group]
    while pending:
        found = pending.pop(0)
        if isinstance(found, BaseExceptionGroup):
            pending.extend(found.exceptions)
        else:
            leaves.append(found)
    return next((leaf for leaf in leaves if isinstance(leaf, TorporError)), leaves[0])
