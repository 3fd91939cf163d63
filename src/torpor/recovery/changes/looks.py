"""A look at a machine: does it answer, what do the checks say, what does it hold; and what two looks say of a change.

The engine of the checks is heavy; it is imported when a machine is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torpor.base.clock import Clock
from torpor.errors import (
    GenerationChanged,
    GuestFailed,
    GuestUnreachable,
    HostNotReady,
    InsufficientResources,
    LimitExceeded,
    NotFound,
    OperationTimeout,
    TorporError,
    VmmFailed,
    WrongState,
)
from torpor.model import SandboxId, SandboxState
from torpor.model_changes import ChangeSpec, Ending
from torpor.model_checks import CheckReport, CheckResult, Verdict
from torpor.recovery.changes.holdings import Differs, Holdings
from torpor.sandboxes.port import EnginePort

if TYPE_CHECKING:
    from torpor.recovery.checks import CheckPlan

Phase = Literal["before", "after", "probation", "undone"]

ANSWER_S = 90.0
"""How long a machine that runs may not answer until it counts as broken."""
_RETRY_S = 1.0
NO_ROOM = (InsufficientResources, LimitExceeded)
"""Why a machine cannot be woken to be looked at, which says nothing about it."""
_ENDED = frozenset({SandboxState.FAILED, SandboxState.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found."""

    phase: Phase
    answers: bool
    problem: str = ""
    """Why it does not answer, or could not be looked at."""
    is_away: bool = False
    """It was paused or put to sleep by somebody: that says nothing about it."""
    checks: CheckReport | None = None
    holdings: Holdings | None = None
    unlisted: str = ""
    """Why it could not be listed what it holds, though it was to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What two looks say of a change."""

    verdict: Verdict
    ending: Ending = "none"
    """What decided, when it fails."""
    reasons: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    """What speaks for it: what was looked at, and was as it should be."""
    warnings: tuple[str, ...] = ()
    failed_before_too: tuple[str, ...] = ()
    sentences: tuple[str, ...] = field(default=())
    """What differs, in the inventories' words."""
    differs: Differs | None = None
    """All that differs; None: nothing was compared."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "verdict": self.verdict,
            "ending": self.ending,
            "reasons": list(self.reasons),
            "evidence": list(self.evidence),
            "warnings": list(self.warnings),
            "failed_before_too": list(self.failed_before_too),
            "sentences": list(self.sentences),
        }


class Looker:
    """Looks at machines for changes."""

    def __init__(self, engine: EnginePort, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def look(
        self,
        sandbox_id: SandboxId,
        spec: ChangeSpec,
        phase: Phase,
        *,
        before: Holdings | None,
        progress: Callable[[CheckResult], None],
    ) -> Look:
        """Look once; a machine that does not answer at once is given time.

        Raises:
            NotFound: the sandbox is gone.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + ANSWER_S
        while True:
            try:
                return await self._look(sandbox_id, spec, phase, before, progress)
            except (GuestUnreachable, GenerationChanged, VmmFailed) as exc:
                problem = exc.message
            except WrongState as exc:
                problem = exc.message
            except NO_ROOM as exc:  # a machine that sleeps, and that this host has no room for now
                return Look(phase=phase, answers=False, problem=exc.message, is_away=True)
            info = await self._engine.get(sandbox_id)
            if info.state is SandboxState.DELETED:
                raise NotFound(f"sandbox {sandbox_id} is deleted", sandbox_id=sandbox_id)
            if info.state in _ENDED:
                why = (info.error or "it powered itself off").splitlines()[0]
                return Look(phase=phase, answers=False, problem=f"the machine ended: {why}")
            if info.state is SandboxState.PAUSED:
                return Look(phase=phase, answers=False, problem="it is paused", is_away=True)
            if loop.time() > until:
                return Look(phase=phase, answers=False, problem=problem)
            await asyncio.sleep(_RETRY_S)

    async def _look(
        self,
        sandbox_id: SandboxId,
        spec: ChangeSpec,
        phase: Phase,
        before: Holdings | None,
        progress: Callable[[CheckResult], None],
    ) -> Look:
        from torpor.recovery.checks import GuestProbe, run_checks

        async with self._engine.guest(sandbox_id) as guest:
            await guest.ping()
            probe = GuestProbe(guest)
            holdings, unlisted = None, ""
            if spec.inventory and phase in ("before", "after"):
                try:
                    now = self._clock.now()
                    holdings = await Holdings.take(guest, spec, now, before=before)
                except GuestUnreachable:
                    raise
                except (GuestFailed, HostNotReady, OperationTimeout) as exc:
                    unlisted = f"what the machine holds could not be listed: {exc.message}"
            report = None
            plan = plan_of(spec)
            if plan is not None:
                profile = holdings or before
                baseline = None
                if before is not None:
                    baseline = before.baseline(guest, self._clock.now())
                elif holdings is not None:
                    baseline = holdings.as_baseline()
                report = await run_checks(
                    plan,
                    probe,
                    inventory=baseline,
                    turn=None if profile is None else profile.turn(),
                    progress=progress,
                    sandbox_id=sandbox_id,
                )
        return Look(phase=phase, answers=True, checks=report, holdings=holdings, unlisted=unlisted)


def plan_of(spec: ChangeSpec) -> CheckPlan | None:
    """Return the checks of a change. Raises `InvalidRequest`, with line and column, when they cannot be read."""
    if spec.checks is None:
        return None
    from torpor.recovery.checks import parse_checks

    return parse_checks(spec.checks, source=spec.checks_source)


def opinion(
    before: Mapping[str, Any], now: Look, spec: ChangeSpec, held: Holdings | None
) -> Opinion:
    """Return what a look says, compared with the one `before` (its JSON; see `look_json`). May take seconds."""
    if now.is_away:
        return Opinion(
            verdict="inconclusive", reasons=(f"it could not be looked at: {now.problem}",)
        )
    if not now.answers:
        return Opinion(verdict="fail", ending="machine", reasons=(now.problem,))
    verdict: Verdict = "pass"
    ending: Ending = "none"
    reasons: list[str] = []
    evidence: list[str] = []
    warnings: list[str] = []
    excused: tuple[str, ...] = ()
    differs: Differs | None = None
    if now.checks is not None:
        from torpor.recovery.checks import judge

        kept = before.get("checks")
        earlier = CheckReport.from_json(kept) if kept else None
        found = judge(earlier, now.checks)
        evidence += _passing(earlier, now.checks)
        verdict, excused = found.verdict, found.failed_before_too
        reasons += found.reasons
        warnings += found.warnings
        ending = "checks" if verdict == "fail" else "none"
    if before.get("unlisted"):
        warnings.append(f"nothing was compared: {before['unlisted']}")
    elif now.unlisted and held is not None:
        reasons.append(now.unlisted)
        verdict = "inconclusive" if verdict == "pass" else verdict
    if now.holdings is not None and held is not None:
        differs = held.compare(now.holdings, spec)
        warnings += differs.unknown
        if not differs.forbidden:
            evidence.append(differs.shown)
        else:
            ending = ending if verdict == "fail" else "inventory"
            verdict = "fail"
            reasons += differs.forbidden
    if verdict == "pass" and not evidence:
        evidence.append("the machine answers; nothing else was compared, and there are no checks")
    return Opinion(
        verdict=verdict,
        ending=ending,
        reasons=tuple(reasons),
        evidence=tuple(evidence),
        warnings=tuple(warnings),
        failed_before_too=excused,
        sentences=() if differs is None else differs.sentences,
        differs=differs,
    )


def _passing(before: CheckReport | None, now: CheckReport) -> list[str]:
    """Return how many of the required checks pass, and how many of these did before."""
    passing = {r.key for r in now.results if r.group == "required" and r.outcome == "pass"}
    if not passing:
        return []
    said = f"{len(passing)} required {'check passes' if len(passing) == 1 else 'checks pass'}"
    if before is None:
        return [said]
    earlier = passing & {r.key for r in before.results if r.outcome == "pass"}
    since = "as before the change" if earlier == passing else f"{len(earlier)} before the change"
    return [f"{said}, {since}"]


def look_json(look: Look) -> dict[str, Any]:
    """Return what the report keeps of a look."""
    return {
        "phase": look.phase,
        "answers": look.answers,
        "problem": look.problem,
        "unlisted": look.unlisted,
        "checks": None if look.checks is None else look.checks.to_json(),
    }


def told(error: Exception) -> str:
    """Return an error in one line."""
    return error.message if isinstance(error, TorporError) else repr(error)
