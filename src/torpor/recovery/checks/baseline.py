"""What `inventory` checks compare with: whoever keeps inventories hands in a `Baseline`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torpor.recovery.checks.clean import clean
from torpor.recovery.checks.facts import Facts, Unclear
from torpor.recovery.checks.plan import Check
from torpor.recovery.checks.probe import ProbeMachine

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KindChange:
    """How the things of one kind differ from the baseline, by name."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class Baseline(Protocol):
    """An inventory from before."""

    async def changes(
        self, probe: ProbeMachine, *, timeout_seconds: float
    ) -> Mapping[str, KindChange]:
        """Return, for every kind that the baseline has (`skills`, `jobs`, `packages`, …), what differs now.

        Raises:
            TimeoutError: the machine's inventory could not be taken in time.
            TorporError: as `ProbeMachine.run`.
        """
        ...


async def look_inventory(
    check: Check, probe: ProbeMachine, baseline: Baseline | None, within_s: float
) -> Facts:
    """Return whether a kind of thing is as its rule wants: `equal`, `superset` or `may-change`."""
    if baseline is None:
        raise Unclear("there is no inventory from before to compare with")
    found = await baseline.changes(probe, timeout_seconds=within_s)
    change = found.get(check.name)
    if change is None:
        known = ", ".join(sorted(found)) or "nothing"
        raise Unclear(f"the baseline has no {check.name!r}; it has {known}")
    rule = check.options["rule"]
    lost = [*(f"-{name}" for name in change.removed), *(f"~{name}" for name in change.changed)]
    differs = [*lost, *(f"+{name}" for name in change.added)]
    offends = {"equal": differs, "superset": lost, "may-change": []}[rule]
    said = f"{len(change.added)} added, {len(change.removed)} gone, {len(change.changed)} changed"
    names = clean(", ".join(offends[:_SHOWN]))
    return Facts(
        decided="fail" if offends else "pass",
        reason=f"{said}; the rule is {rule}{f': {names}' if names else ''}",
        output=clean("\n".join(differs[:200]), most=4000),
    )
