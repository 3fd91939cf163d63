"""A brute-force model of what holds, kept apart from the code: plain dicts, every pair compared."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

RANKS = {"agent_inferred": 1, "tool_observed": 2, "user_said": 3, "human_edited": 3}


@dataclass
class Told:
    """One fact as the model knows it; times are whole days."""

    value: str
    since: float
    until: float | None
    authority: str
    confirmed: float
    status: str = "active"
    end: float | None = None
    parent: str | None = None
    child: str | None = None


@dataclass
class Oracle:
    """Facts by id now, and as they were after each transaction."""

    now: dict[str, Told] = field(default_factory=dict)
    past: list[tuple[int, dict[str, Told]]] = field(default_factory=list)

    def commit(self, tx: int) -> None:
        """Keep what is known after a transaction."""
        self.past.append((tx, copy.deepcopy(self.now)))

    def known_at(self, tx: int) -> dict[str, Told]:
        """Return what was known after transaction `tx`."""
        found: dict[str, Told] = {}
        for at, facts in self.past:
            if at <= tx:
                found = facts
        return found

    def values(self, tx: int, at: float) -> set[str]:
        """Return the values that hold at `at` as known after `tx`."""
        return values_of(self.known_at(tx), at)


def refuted(facts: dict[str, Told], fact_id: str) -> set[str]:
    """Return the values that the corrections behind a fact declared wrong."""
    found = set()
    parent = facts[fact_id].parent
    while parent is not None:
        if facts[parent].status == "corrected":
            found.add(facts[parent].value)
        parent = facts[parent].parent
    return found - {facts[fact_id].value}


def values_of(facts: dict[str, Told], at: float) -> set[str]:
    """Return the values that nothing displaces at `at`, by looking at every pair."""
    points = []
    for fact_id, told in facts.items():
        if told.status != "active":
            continue
        for start in {told.since, max(told.since, told.confirmed)}:
            inside = told.until is None or start < told.until
            covers = start <= at and (told.until is None or at < told.until)
            if inside and covers:
                points.append((start, fact_id, told))
    kept = set()
    for start, fact_id, told in points:
        over = told.end is not None and told.end <= at
        if not over and not any(
            _beats(facts, other, (start, fact_id, told), at) for other in points
        ):
            kept.add(told.value)
    return kept


def _beats(
    facts: dict[str, Told],
    new: tuple[float, str, Told],
    old: tuple[float, str, Told],
    at: float,
) -> bool:
    if new[0] <= old[0]:
        return False
    if new[2].value == old[2].value:
        return new[2].end is not None and new[2].end <= at
    is_human = new[2].authority == "human_edited"
    if new[2].value in refuted(facts, old[1]) and not is_human:
        return False
    return RANKS[new[2].authority] >= RANKS[old[2].authority]


def last_said(facts: dict[str, Told], at: float) -> set[str]:
    """Return what the simplest rule gives: whatever was said last by `at`. For one authority, no ends."""
    points = [
        (start, told.value)
        for told in facts.values()
        if told.status == "active"
        for start in (told.since, max(told.since, told.confirmed))
        if start <= at
    ]
    latest = max((start for start, _ in points), default=None)
    return {value for start, value in points if start == latest}
