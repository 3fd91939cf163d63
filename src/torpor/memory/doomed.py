"""What an erasure takes: the things named, what was made from them, and the logs that show them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from torpor.errors import InvalidRequest
from torpor.memory import checks
from torpor.memory.line import Line
from torpor.memory.rows import (
    Branch,
    DerivationRow,
    EffectRow,
    EpisodeRow,
    EvidenceRow,
    FactRow,
    RecallItemRow,
    RecallRow,
)
from torpor.memory.store import Contains, Range, Store
from torpor.memory.view import LAST
from torpor.memory.words import Says

NOT_A_NAME = frozenset({"user", "agent", "machine", "team", "tool", "document", "system", "we"})
"""Subjects that are roles: a text that has the word is not about anyone."""


R = TypeVar("R", bound=tuple[Any, ...])


class Selector(NamedTuple):
    """What to erase; exactly one is given."""

    fact: str | None = None
    episode: str | None = None
    session: str | None = None
    subject: str | None = None

    def named(self) -> tuple[str, str]:
        """Return the one field that is given and its value.

        Raises:
            InvalidRequest: none or several are given.
        """
        given = [(k, v) for k, v in self._asdict().items() if v is not None]
        if len(given) != 1:
            raise InvalidRequest("erase takes one of fact, episode, session and subject")
        return given[0][0], checks.name(given[0][1], given[0][0])


@dataclass(slots=True)
class Doomed:
    """All that an erasure takes, by id, and the bytes to look for afterwards."""

    episodes: dict[str, EpisodeRow] = field(default_factory=dict)
    facts: dict[str, FactRow] = field(default_factory=dict)
    effects: dict[str, EffectRow] = field(default_factory=dict)
    recalls: set[str] = field(default_factory=set)
    branches: list[str] = field(default_factory=list)
    """The branches of this memory; other agents' memories in the file are not touched."""
    word: str | None = None
    says: Says | None = None
    """Whether a text has the name in it; None if it is no name."""

    def ids(self) -> list[str]:
        """Return the ids of episodes and facts."""
        return [*self.episodes, *self.facts]


def find_doomed(line: Line, kind: str, value: str) -> Doomed:
    """Return all that goes when `value`, of the selector's `kind`, is erased."""
    store = line.store
    family = line.branch().family
    doomed = Doomed(branches=[b.id for b in store.select(Branch, {"family": family})])
    if kind == "fact":
        rows = store.select(FactRow, {"id": value})
        doomed.facts = {r.id: r for r in rows if r.key.startswith(family)}
    elif kind == "episode":
        _add_episodes(doomed, store.select(EpisodeRow, {"id": value, "family": family}))
    elif kind == "session":
        _add_episodes(doomed, store.select(EpisodeRow, {"session": value, "family": family}))
    else:
        _find_subject(store, family, value, doomed)
    _close(store, doomed)
    _find_logs(store, doomed)
    return doomed


def _add_episodes(doomed: Doomed, rows: Iterable[EpisodeRow]) -> None:
    doomed.episodes.update((r.id, r) for r in rows)


def _find_subject(store: Store, family: str, name: str, doomed: Doomed) -> None:
    folded = checks.fold(name)
    says = None
    if folded not in NOT_A_NAME:
        doomed.word = folded
        says = doomed.says = Says(name)
    prefix = f"{family}\x1f{folded}\x1f"
    for fact in store.select(FactRow, {"key": Range(prefix, prefix + LAST)}):
        doomed.facts[fact.id] = fact
    for fact in _maybe(store, FactRow, ("text", "value", "subject", "attribute"), name):
        if fact.key.startswith(family) and says is not None and says(all_text(fact)):
            doomed.facts[fact.id] = fact
    for row in _maybe(store, EpisodeRow, ("content", "subjects", "session"), name):
        if row.family != family:
            continue
        subjects = json.loads(row.subjects)
        tagged = folded in (checks.fold(s) for s in subjects)
        if tagged or (says is not None and any(map(says, (row.content, row.session, *subjects)))):
            doomed.episodes[row.id] = row
    behind = store.select(EvidenceRow, {"fact": list(doomed.facts)})
    own = [e.episode for e in behind if doomed.facts[e.fact].key.startswith(prefix)]
    _add_episodes(doomed, store.select(EpisodeRow, {"id": list(dict.fromkeys(own))}))
    for effect in store.select(EffectRow, {"branch": doomed.branches}):
        if says is not None and says(f"{effect.key} {effect.what} {effect.outcome}"):
            doomed.effects[effect.id] = effect


def _maybe(store: Store, table: type[R], names: Sequence[str], name: str) -> Iterator[R]:
    """Yield the rows that can have the name in one of the columns; the caller looks closely."""
    words = name.split()
    if name.isascii() and len(words) == 1:
        for column in names:
            yield from store.select(table, {column: Contains(name)})
    else:  # letters whose case the store does not know, or spaces that may differ
        yield from store.stream(table)


def all_text(row: FactRow) -> str:
    """Return all words of a fact."""
    return f"{row.subject}\n{row.attribute}\n{row.value}\n{row.text}"


def _close(store: Store, doomed: Doomed) -> None:
    """Add what was made from the erased: facts left without words, and facts derived from them."""
    pending = True
    while pending:
        size = len(doomed.facts)
        cited = {e.fact for e in store.select(EvidenceRow, {"episode": list(doomed.episodes)})}
        for fact_id in cited - doomed.facts.keys():
            rest = [
                e
                for e in store.select(EvidenceRow, {"fact": fact_id})
                if e.episode not in doomed.episodes
            ]
            if not rest:
                _add_fact(store, doomed, fact_id)
        made = store.select(DerivationRow, {"parent": list(doomed.facts)})
        versions = store.select(FactRow, {"version_of": list(doomed.facts)})
        for fact_id in [*(d.child for d in made), *(v.id for v in versions)]:
            _add_fact(store, doomed, fact_id)
        pending = len(doomed.facts) > size
    _add_own_episodes(store, doomed)


def _add_fact(store: Store, doomed: Doomed, fact_id: str) -> None:
    row = store.newest(FactRow, {"id": fact_id})
    if row is not None:
        doomed.facts[row.id] = row


def _add_own_episodes(store: Store, doomed: Doomed) -> None:
    """Episodes that do nothing but note an erased fact hold its text and go with it."""
    evidence = store.select(EvidenceRow, {"fact": list(doomed.facts)})
    for row in store.select(EpisodeRow, {"id": list({e.episode for e in evidence})}):
        others = {e.fact for e in store.select(EvidenceRow, {"episode": row.id})}
        if others <= doomed.facts.keys() and any(
            row.content == f.text and row.tx == f.tx for f in doomed.facts.values()
        ):
            doomed.episodes[row.id] = row


def _find_logs(store: Store, doomed: Doomed) -> None:
    items = store.select(RecallItemRow, {"owner": doomed.ids()})
    doomed.recalls.update(i.recall for i in items if i.injected)
    if doomed.says is not None:
        logs = store.select(RecallRow, {"branch": doomed.branches})
        doomed.recalls.update(r.id for r in logs if doomed.says(r.query))
