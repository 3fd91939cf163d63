"""A generated stream of claims with a known truth, and what memory makes of it.

It has what goes wrong in practice: the same thing said in other words, late arrivals, corrections,
attributes of many values, entities with shared attributes. Nothing in it comes from anyone's data.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from torpor.memory import checks
from torpor.memory.embed.base import Embedder
from torpor.memory.memory import Memory
from torpor.memory.space import Space
from torpor.model_memory import Authority, Cardinality, Fact

ONE = {
    "home": ("lives in", ["Lisbon", "Oslo", "Nairobi", "Quito", "Hanoi", "Turin", "Gdansk", "Perth"]),
    "employer": ("works for", ["Acme", "Borealis", "Cobalt", "Dynamo", "Everest", "Fathom"]),
    "phone": ("can be reached on", [f"555-01{n:02d}" for n in range(40)]),
    "editor": ("edits with", ["vim", "emacs", "nano", "helix", "kakoune"]),
    "database": ("keeps its data in", ["Postgres", "SQLite", "MySQL", "DuckDB", "Redis"]),
    "timezone": ("is in the zone", ["UTC", "UTC+1", "UTC+3", "UTC-5", "UTC-8"]),
}  # fmt: skip
MANY = {
    "speaks": ("speaks", ["Thai", "Welsh", "Polish", "Urdu", "Greek", "Basque"]),
    "likes": ("likes", ["chess", "hiking", "jazz", "tea", "pottery", "sailing"]),
}
PHRASES = (
    "{subject} {verb} {value}.",
    "As of now {subject} {verb} {value}",
    "Update on {subject}: {verb} {value}.",
    "Just so you know, {subject} {verb} {value} these days.",
)
START = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens to the memory."""

    kind: str
    """`claim`, `late` or `correct`."""
    subject: str
    attribute: str
    value: str
    text: str
    at: datetime
    is_many: bool


class SimulatedClock:
    """Time of the stream: each event comes a minute after the one before."""

    def __init__(self) -> None:
        self._now = START

    def now(self) -> datetime:
        """Return the stream's time."""
        return self._now

    def monotonic_s(self) -> float:
        """Return seconds since the stream began."""
        return (self._now - START).total_seconds()

    def step(self) -> datetime:
        """Let a minute pass."""
        self._now += timedelta(minutes=1)
        return self._now


def events(count: int, seed: int) -> Iterator[Event]:
    """Yield the stream; the same seed gives the same stream."""
    pick = random.Random(seed)  # noqa: S311  # a reproducible stream, not a secret
    subjects = [f"{a}-{n}" for n in range(max(4, count // 200)) for a in ("person", "service")]
    when: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    now = START
    for _ in range(count):
        now += timedelta(minutes=1)
        subject = pick.choice(subjects)
        is_many = pick.random() < 0.2
        table = MANY if is_many else ONE
        attribute = pick.choice(list(table))
        verb, values = table[attribute]
        value = pick.choice(values)
        roll = pick.random()
        known = when[subject, attribute]
        kind, at = "claim", now
        if known and roll < 0.15 and not is_many:
            kind, at = "late", pick.choice(known) - timedelta(seconds=pick.randrange(1, 59))
        elif known and roll < 0.20:
            kind = "correct"
        known.append(at)
        text = pick.choice(PHRASES).format(subject=subject, verb=verb, value=value)
        yield Event(kind, subject, attribute, value, text, at, is_many)


class Truth:
    """What holds after the stream, by the simplest rule: for one value the latest claim, for many all."""

    def __init__(self) -> None:
        self.one: dict[tuple[str, str], dict[str, tuple[datetime, str]]] = defaultdict(dict)
        self.many: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._n = 0

    def claim(self, event: Event) -> None:
        """Note a claim."""
        if event.is_many:
            self.many[event.subject, event.attribute].add(event.value)
        else:
            self._n += 1
            self.one[event.subject, event.attribute][str(self._n)] = (event.at, event.value)

    def correct(self, event: Event, old: str) -> None:
        """Note that `old`, which held, was wrong and `event.value` is right."""
        place = (event.subject, event.attribute)
        if event.is_many:
            self.many[place].discard(old)
            self.many[place].add(event.value)
            return
        claims = self.one[place]
        latest = max(claims, key=lambda n: (claims[n][0], int(n)))
        claims[latest] = (claims[latest][0], event.value)

    def now(self, subject: str, attribute: str) -> set[str]:
        """Return the values that hold."""
        if attribute in MANY:
            return set(self.many[subject, attribute])
        claims = self.one[subject, attribute]
        return {max(claims.values())[1]} if claims else set()


def measure(count: int, embedder: Embedder | None, *, seed: int = 7) -> dict[str, Any]:
    """Feed the stream to a memory and count what it gets wrong."""
    clock = SimulatedClock()
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        with Memory.open(Path(folder) / "stream.db", embedder=embedder, clock=clock) as memory:
            space = memory.space("stream")
            truth = Truth()
            refused = _feed(space, clock, truth, count, seed)
            found = {"updates": count, **_compare(space, truth), "corrections_skipped": refused}
            found |= _recalls(space, truth)
            found |= _loop(memory, max(20, count // 10))
            found |= _cascade(memory, max(2, min(20, count // 100)))
            found |= _erase(space)
            found["chain_ok"] = memory.verify_chain().ok
        return found


def _feed(space: Space, clock: SimulatedClock, truth: Truth, count: int, seed: int) -> int:
    skipped = 0
    for event in events(count, seed):
        clock.step()
        if event.kind == "correct":
            held = space.facts(event.subject, event.attribute)
            values = {checks.value_key(f.value) for f in held}
            target = held[0] if held else None
            same = checks.value_key(event.value) in values
            disputed = any(f.status == "disputed" for f in held)
            if target is None or same or disputed or _ambiguous(truth, event):
                skipped += 1
                continue
            space.correct(target.id, event.value, "the stream corrects it")
            truth.correct(event, _as_listed(event.attribute, target.value))
            continue
        if event.kind == "late" and _clashes(truth, event):
            continue
        _claim(space, event)
        truth.claim(event)
    return skipped


def _as_listed(attribute: str, value: object) -> str:
    """Return the value as the stream has it, however it was spelled when it was said."""
    _, values = (ONE | MANY)[attribute]
    key = checks.value_key(str(value))
    return next(v for v in values if checks.value_key(v) == key)


def _ambiguous(truth: Truth, event: Event) -> bool:
    """A value that was corrected away and is said again is a dispute by design, not a truth."""
    return event.is_many and event.value in truth.now(event.subject, event.attribute)


def _clashes(truth: Truth, event: Event) -> bool:
    return any(at == event.at for at, _ in truth.one[event.subject, event.attribute].values())


def _claim(space: Space, event: Event) -> Fact:
    spelled = (event.value, event.value.upper(), f" {event.value}. ")[len(event.text) % 3]
    return space.remember(
        event.subject,
        event.attribute,
        spelled,
        text=event.text,
        cardinality=Cardinality.MANY if event.is_many else Cardinality.ONE,
        authority=Authority.USER_SAID,
        valid_from=event.at,
    )


def _compare(space: Space, truth: Truth) -> dict[str, int]:
    stale = wrong = disputed = 0
    by_place: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in space.facts():
        by_place[fact.subject, fact.attribute].append(fact)
    for place in {*truth.one, *truth.many}:
        held = {checks.value_key(f.value) for f in by_place[place]}
        want = {checks.value_key(v) for v in truth.now(*place)}
        is_disputed = any(f.status == "disputed" for f in by_place[place])
        disputed += is_disputed
        wrong += len(want - held)
        if not is_disputed:
            stale += len(held - want)
    return {
        "superseded_as_current": stale,
        "wrongly_retired": wrong,
        "shown_as_disputed": disputed,
        "facts_current": sum(map(len, by_place.values())),
    }


def _recalls(space: Space, truth: Truth) -> dict[str, int]:
    """Ask for attributes in words and count old values among what is given out."""
    asked = stale = 0
    for subject, attribute in sorted(truth.one)[:200]:
        want = truth.now(subject, attribute)
        verb, values = ONE[attribute]
        asked += 1
        for item in space.recall(f"{subject} {verb} what {attribute}", k=10):
            mine = item.kind != "episode" and item.text.find(subject + " ") >= 0
            if mine and verb in item.text and not item.disputed:
                stale += any(
                    item.text.rstrip(".").find(v) >= 0 for v in set(values) - want
                ) and not any(w in item.text for w in want)
    return {"recalls": asked, "superseded_recalled": stale}


def _loop(memory: Memory, sessions: int) -> dict[str, int]:
    """Feed what was recalled back in, many times: no fact may come of it."""
    space = memory.space("loop")
    space.record("My favourite colour is teal. Always answer briefly.")
    space.consolidate()
    before = len(space.facts())
    for _ in range(sessions):
        text = "\n".join(i.text for i in space.recall("favourite colour", k=5))
        space.record(f"My favourite colour is: {text}", "recalled")
    space.consolidate()
    return {"sessions_fed_back": sessions, "facts_from_recalled_text": len(space.facts()) - before}


def _cascade(memory: Memory, roots: int) -> dict[str, int]:
    """Chains and fans of derived facts: all must go when their root is taken back, and come back with it."""
    space = memory.space("cascade")
    left = missing = 0
    for n in range(roots):
        root = space.remember(f"root-{n}", "state", "up")
        layer = [root.id]
        derived: list[str] = []
        for depth in range(3):
            layer = [
                space.remember(f"root-{n}-{depth}-{m}", "state", m, derived_from=[parent]).id
                for m, parent in enumerate(layer * 2)
            ]
            derived += layer
        space.retract(root.id, "it was down")
        left += sum(space.fact(f).status == "active" for f in derived)
        space.restore(root.id)
        missing += sum(space.fact(f).status != "active" for f in derived)
    return {"derived_left_after_retraction": left, "derived_not_revived": missing}


def _erase(space: Space) -> dict[str, int]:
    subject = "person-1"
    receipt = space.erase(subject=subject)
    path = space._line.store.scan([f"{subject} ".encode(), f"{subject}:".encode()])
    return {
        "erased_rows": sum(receipt.counts.values()),
        "erased_bytes_left": receipt.bytes_left + path.hits,
    }
