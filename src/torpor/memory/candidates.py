"""What may be given out for a query: found, scored, and each judged with the reason that keeps it out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from torpor.memory.beliefs import Beliefs
from torpor.memory.corpus import EPISODE, FACT, Corpus
from torpor.memory.line import Line
from torpor.memory.ranking import DEFAULT, Scores, Weights, neighbours, top, with_facts
from torpor.memory.reading import HELD
from torpor.memory.rows import EpisodeRow, EvidenceRow
from torpor.memory.support import SUPPORTING
from torpor.memory.times import to_time
from torpor.memory.words import covers, stems_of
from torpor.model_memory import (
    STANDING_KINDS,
    FactKind,
    SourceKind,
    Status,
)

MIN_COVERAGE = 0.25
"""A text that has this part of the query's words is about it, whatever a model says."""


MIN_COSINE = 0.35
"""Cosine from which on MiniLM's neighbours are about the same thing; set on generated text."""


_FIRST = 1e-3
"""A fact comes just before the episode it rests on."""


_STANDING_ORDER = {kind: n for n, kind in enumerate(STANDING_KINDS)}


@dataclass(frozen=True, slots=True)
class Request:
    """One recall, checked."""

    query: str
    k: int
    token_budget: int
    valid_at: datetime | None
    known_at: int | datetime | None
    kinds: Collection[str] | None
    scopes: Collection[str] | None
    include: Collection[Status]
    exclude: Collection[str]
    threshold: bool = True
    weights: Weights = DEFAULT


@dataclass(slots=True)
class Candidate:
    """Something that may be given out."""

    owner: str
    kind: int
    place: int | None
    score: float = 0.0
    bm25: float = 0.0
    cosine: float = 0.0
    neighbour: float = 0.0
    prior: float = 0.0
    why: str = "match"
    text: str = ""
    shown: str = ""
    label: str = "episode"
    episodes: tuple[str, ...] = ()
    dropped: str = ""
    note: str = ""
    disputed: bool = False
    is_relevant: bool = False
    pinned: bool = False
    since: int = 0


def _wanted(request: Request) -> int:
    """More than is asked for, as some will be dropped."""
    return max(40, 4 * request.k)


def facts_near(corpus: Corpus, scores: Scores, request: Request) -> list[Candidate]:
    """Return the facts that score best by their own words."""
    best = top(scores.mixed, scores.visible & (corpus.kinds == FACT), _wanted(request))
    return [_candidate(corpus, scores, place) for place in best]


def episodes_near(
    corpus: Corpus,
    scores: Scores,
    request: Request,
    found: list[tuple[str, str]],
    held: set[str],
    facts: list[Candidate],
) -> list[Candidate]:
    """Return the best episodes, and give each fact the score of the best episode behind it."""
    import numpy as np

    weights = request.weights
    living = [(f, e) for f, e in found if f in held]
    near = neighbours(corpus, scores.mixed, scores.visible, weights.neighbour)
    said = np.where(corpus.kinds == EPISODE, scores.mixed + near, np.float32(0))
    total = with_facts(corpus, scores, said, living, weights.facts)
    behind: dict[str, list[int]] = {}
    for fact, episode in found:
        if episode in corpus.position:
            behind.setdefault(fact, []).append(corpus.position[episode])
    for one in facts:
        one.episodes = tuple(dict.fromkeys(e for f, e in found if f == one.owner))
        alone = one.score * (1 + weights.facts)
        one.prior = max((float(total[p]) for p in behind.get(one.owner, ())), default=alone)
        one.score = one.prior + _FIRST * one.score
    near_by = []
    for place in top(total, scores.visible & (corpus.kinds == EPISODE), _wanted(request)):
        one = _candidate(corpus, scores, place)
        one.score, one.neighbour = float(total[place]), float(near[place])
        near_by.append(one)
    return near_by


def _candidate(corpus: Corpus, scores: Scores, place: int) -> Candidate:
    return Candidate(
        owner=corpus.owners[place],
        kind=int(corpus.kinds[place]),
        place=place,
        score=float(scores.mixed[place]),
        bm25=float(scores.bm25[place]),
        cosine=float(scores.cosine[place]),
    )


def standing(
    corpus: Corpus, scores: Scores, beliefs: Beliefs, at: int, candidates: list[Candidate]
) -> list[Candidate]:
    """Standing facts that hold: pinned first, then by what they have to do with the query, then newest."""
    near = {c.owner for c in candidates}
    every = corpus.standing()
    wanted = [o for o in every if o in near] + every[-64:]
    found = []
    for row in beliefs.load(wanted):
        if beliefs.status(row.id, at) not in HELD or not beliefs.is_leading(row.id, at):
            continue
        pinned = bool(beliefs.states[row.id].pinned)
        if not pinned and row.kind not in _STANDING_ORDER:
            continue
        place = corpus.position.get(row.id)
        if place is None or not scores.visible[place]:
            continue
        one = _candidate(corpus, scores, place)
        one.why, one.prior, one.is_relevant, one.pinned = "standing", 1.0, True, pinned
        one.label, one.text, one.since = row.kind, row.text, row.valid_from
        found.append(one)
    order = _STANDING_ORDER
    found.sort(
        key=lambda c: (
            not c.pinned, -round(c.bm25 + max(c.cosine, 0.0), 3),
            order.get(FactKind(c.label), 9), -c.since,
        )
    )  # fmt: skip
    return found


def judge(
    line: Line,
    beliefs: Beliefs,
    corpus: Corpus,
    scores: Scores,
    request: Request,
    at: int,
    candidates: list[Candidate],
) -> None:
    """Say of each candidate why it must not be given out."""
    facts = {c.owner: c for c in candidates if c.kind == FACT}
    episodes = {c.owner: c for c in candidates if c.kind == EPISODE}
    made = _made_of(line, beliefs, list(episodes))
    _judge_facts(beliefs, request, at, facts)
    _judge_episodes(line, beliefs, request, at, episodes, made)
    _relevance(corpus, scores.terms, candidates)
    for one in candidates:
        if not one.dropped and request.threshold and not one.is_relevant:
            one.dropped = "threshold"


def links(line: Line, beliefs: Beliefs, facts: list[str]) -> list[tuple[str, str]]:
    """Return (fact, episode) for the episodes that facts rest on."""
    rows = beliefs.view.seen(line.store.select(EvidenceRow, {"fact": facts}))
    return list(dict.fromkeys((r.fact, r.episode) for r in rows if r.relation in SUPPORTING))


def _made_of(line: Line, beliefs: Beliefs, episodes: list[str]) -> dict[str, list[str]]:
    """Return the facts that were made from each episode."""
    rows = beliefs.view.seen(line.store.select(EvidenceRow, {"episode": episodes}))
    known = {r.id for r in beliefs.load(r.fact for r in rows)}
    made: dict[str, list[str]] = {}
    for row in rows:
        if row.relation in SUPPORTING and row.fact in known:
            made.setdefault(row.episode, []).append(row.fact)
    return made


_DROP = {
    Status.SUPERSEDED: "superseded",
    Status.CORRECTED: "superseded",
    Status.EXPIRED: "expired",
    Status.FUTURE: "future",
    Status.RETRACTED: "retracted",
    Status.SUSPENDED: "suspended",
}


def _judge_facts(beliefs: Beliefs, request: Request, at: int, facts: dict[str, Candidate]) -> None:
    for fact_id, one in facts.items():
        row = beliefs.rows.get(fact_id)
        if row is None:
            one.dropped = "not_authorised"
            continue
        status = beliefs.status(fact_id, at)
        one.text, one.label = row.text, row.kind
        one.disputed = status is Status.DISPUTED
        if status not in HELD and status not in request.include:
            one.dropped = _DROP[status]
        elif status in HELD and not beliefs.is_leading(fact_id, at):
            one.dropped = "duplicate"
        elif request.kinds is not None and row.kind not in request.kinds:
            one.dropped = "kind"
        elif request.scopes is not None and row.scope not in request.scopes:
            one.dropped = "scope"
        elif fact_id in request.exclude:
            one.dropped = "in_context"


def _judge_episodes(
    line: Line,
    beliefs: Beliefs,
    request: Request,
    at: int,
    episodes: dict[str, Candidate],
    made: dict[str, list[str]],
) -> None:
    rows = {r.id: r for r in line.store.select(EpisodeRow, {"id": list(episodes)})}
    states = beliefs.view.states(episodes)
    for episode_id, one in episodes.items():
        row, state = rows.get(episode_id), states.get(episode_id)
        if row is None or state is None:
            one.dropped = "not_authorised"
            continue
        one.text, one.episodes, one.since = row.content, (episode_id,), row.occurred_at
        one.note = _episode_note(row, at)
        if any(beliefs.status(f, at) not in HELD for f in made.get(episode_id, ())):
            one.note += ", partly outdated"
        one.dropped = _drop_episode(request, beliefs, at, row, state.status, made)


def _drop_episode(
    request: Request,
    beliefs: Beliefs,
    at: int,
    row: EpisodeRow,
    status: str,
    made: dict[str, list[str]],
) -> str:
    """An episode whose every fact was replaced would bring the old value back through the side door."""
    if status != Status.ACTIVE:
        return "" if status in request.include else "retracted"
    if request.kinds is not None and "episode" not in request.kinds:
        return "kind"
    if row.id in request.exclude:
        return "in_context"
    if row.occurred_at > at:
        return "future"
    found = [beliefs.status(f, at) for f in made.get(row.id, ())]
    if found and not any(s in HELD or s in request.include for s in found):
        return _DROP[found[0]]
    return ""


def _relevance(corpus: Corpus, terms: list[str], candidates: list[Candidate]) -> None:
    """Mark what is about the query by itself, and the episodes beside such an episode."""
    direct: set[int] = set()
    stems = stems_of(terms)
    for one in candidates:
        if one.cosine >= MIN_COSINE or (one.bm25 > 0 and covers(one.text, stems, MIN_COVERAGE)):
            one.is_relevant = True
            if one.place is not None:
                direct.add(one.place)
    for one in candidates:
        if one.kind == EPISODE and not one.is_relevant and one.place is not None:
            sides = (int(corpus.before[one.place]), int(corpus.after[one.place]))
            one.is_relevant = any(side in direct for side in sides)


def _episode_note(row: EpisodeRow, at: int) -> str:
    who = {SourceKind.USER: "the user's words", SourceKind.TOOL: "a tool's output"}
    return f"{who.get(SourceKind(row.source_kind), row.source_kind)}, {to_time(row.occurred_at):%Y-%m-%d}"
