"""Compares what was found with what was wanted, attribute by attribute."""

from __future__ import annotations

from collections.abc import Mapping

from torpor.model_checks import Finding, Outcome
from torpor.recovery.checks.clean import clean
from torpor.recovery.checks.facts import Facts
from torpor.recovery.checks.matchers import Matcher, Output, Search, Value, shown
from torpor.recovery.checks.plan import Check


async def compare(
    wants: Mapping[str, Matcher], facts: Facts, search: Search
) -> tuple[Finding, ...]:
    """Return a finding for each attribute that is wanted. Raises `Unclear` as `search`."""
    return tuple([await _finding(name, wanted, facts, search) for name, wanted in wants.items()])


async def _finding(name: str, wanted: Matcher, facts: Facts, search: Search) -> Finding:
    value = facts.values.get(name)
    outcome: Outcome
    if value is None:
        outcome, found = "fail", facts.why_not.get(name, "nothing")
    else:
        is_match = await wanted.match(value, search)
        outcome, found = "pass" if is_match else "fail", _shown(value)
        if isinstance(value, Output) and value.is_cut and not (is_match and wanted.holds_with_more):
            outcome, found = "inconclusive", f"only the beginning was kept: {found}"
    return Finding(
        attribute=clean(name), wanted=clean(wanted.words), found=clean(found), outcome=outcome
    )


def _shown(value: Value) -> str:
    if isinstance(value, Output):
        return value.text if value.text.strip() else "no output"
    return shown(value)


def conclude(check: Check, facts: Facts, findings: tuple[Finding, ...]) -> tuple[Outcome, str]:
    """Return the outcome of an attempt and its reason."""
    if facts.decided is not None:
        return facts.decided, facts.reason
    for outcome in ("fail", "inconclusive"):
        wrong = [finding for finding in findings if finding.outcome == outcome]
        if wrong:
            first = wrong[0]
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            return outcome, f"{first.attribute}: found {first.found}; wanted {first.wanted}{more}"
    said = ", ".join(f"{finding.attribute}: {finding.wanted}" for finding in findings)
    return "pass", clean(said, most=200) or facts.reason or f"the {check.kind} is as wanted"
