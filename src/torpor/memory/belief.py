"""Which of the claims about one attribute hold at a moment: pure, no I/O, the same answer for any order of arrival.

Rules, for claims about one key (one subject and attribute; for many-valued attributes also one value):
1. A claim can hold from `valid_from` until its own `valid_to`, until it was ended, or until it expires.
2. A newer claim (later `valid_from`) of another value displaces an older one if its rank is not lower.
   A late arrival is older, so it becomes history by itself; taking a claim away brings its predecessor back.
3. A claim that was ended still displaces the older ones: what it replaced does not come back by itself.
4. A value that a correction declared wrong does not displace the correction.
5. What is left with more than one value is disputed.
6. A fact that was confirmed later claims its value once more at that time: it enters as two claims of one
   id. So a late arrival from between cannot displace what was said again after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Claim:
    """A believed fact, reduced to what decides whether it holds."""

    id: str
    value: str
    rank: int
    is_human: bool
    tx: int
    valid_from: int
    valid_to: int | None
    """The end it was claimed with."""
    ended_at: int | None
    """The end it was given later, or its expiry."""
    refutes: frozenset[str] = frozenset()
    """Values that it corrected."""

    def covers(self, at: int) -> bool:
        """Return whether `at` lies in what was claimed."""
        return self.valid_from <= at and (self.valid_to is None or at < self.valid_to)

    def is_ended(self, at: int) -> bool:
        """Return whether it was over by `at`."""
        return self.ended_at is not None and self.ended_at <= at


def displaces(new: Claim, old: Claim, at: int) -> bool:
    """Return whether `new` takes the place of `old` at `at`; both cover `at`."""
    if new.valid_from <= old.valid_from:
        return False
    if new.value == old.value:
        return new.is_ended(at)
    if new.value in old.refutes and not new.is_human:
        return False
    return new.rank >= old.rank


def holders(claims: Iterable[Claim], at: int) -> list[Claim]:
    """Return the claims that hold at `at`, newest first, one for each value."""
    covering = sorted((c for c in claims if c.covers(at)), key=_order, reverse=True)
    best: dict[str, Claim] = {}
    later = _Later(at)
    for _, moment in groupby(covering, key=lambda c: c.valid_from):
        together = list(moment)  # what is claimed since one moment does not displace each other
        for claim in together:
            if claim.is_ended(at) or later.displace(claim):
                continue
            known = best.get(claim.value)
            if known is None or (claim.rank, claim.valid_from) > (known.rank, known.valid_from):
                best[claim.value] = claim
        later.add(together)
    return sorted(best.values(), key=_order, reverse=True)


def _order(claim: Claim) -> tuple[int, int, str]:
    return (claim.valid_from, claim.tx, claim.id)


class _Later:
    """Claims from later on, kept so that one more is compared with all of them at once; see `displaces`."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._claims: list[Claim] = []
        self._values: dict[int, list[str]] = {}
        """Of each rank two values, if there are two: one of them differs from any third."""
        self._ended: set[str] = set()

    def add(self, claims: Iterable[Claim]) -> None:
        """Take in claims from before those that are here, and from after those that will be asked about."""
        for claim in claims:
            self._claims.append(claim)
            values = self._values.setdefault(claim.rank, [])
            if len(values) < 2 and claim.value not in values:
                values.append(claim.value)
            if claim.is_ended(self._at):
                self._ended.add(claim.value)

    def displace(self, old: Claim) -> bool:
        """Return whether any of them displaces `old`, which is from before all of them."""
        if old.refutes:
            return any(displaces(c, old, self._at) for c in self._claims)
        if old.value in self._ended:
            return True
        return any(
            value != old.value
            for rank, values in self._values.items()
            if rank >= old.rank
            for value in values
        )


def displacer_of(claims: Sequence[Claim], fact: str, at: int) -> Claim | None:
    """Return the oldest claim that displaces all that `fact` claims at `at`; None if it is not displaced."""
    last: Claim | None = None
    for mine in (c for c in claims if c.id == fact and c.covers(at)):
        found = [c for c in claims if c.covers(at) and displaces(c, mine, at)]
        if not found:
            return None
        first = min(found, key=lambda c: (c.valid_from, c.tx, c.id))
        if last is None or first.valid_from > last.valid_from:
            last = first
    return last


def effective_end(claims: Sequence[Claim], fact: str) -> int | None:
    """Return when `fact` stops to hold for good, as far as is known; None if it does not."""
    latest: int | None = None
    for mine in (c for c in claims if c.id == fact):
        ends = [end for end in (mine.valid_to, mine.ended_at) if end is not None]
        ends += [
            c.valid_from
            for c in claims
            if c.valid_to is None and c.value != mine.value and displaces(c, mine, c.valid_from)
        ]
        if not ends:
            return None
        latest = min(ends) if latest is None else max(latest, min(ends))
    return latest


def moments(claims: Iterable[Claim]) -> list[int]:
    """Return the times at which the holders may change, in order."""
    found: set[int] = set()
    for c in claims:
        found.update(t for t in (c.valid_from, c.valid_to, c.ended_at) if t is not None)
    return sorted(found)
