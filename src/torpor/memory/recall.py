"""Recall: what to put before the agent for a query, and a log of what was taken, what not, and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from torpor.base.ids import new_id
from torpor.memory.beliefs import Beliefs
from torpor.memory.corpus import EPISODE, FACT, Corpus
from torpor.memory.line import Line
from torpor.memory.model import (
    STANDING_KINDS,
    Authority,
    FactKind,
    Item,
    Recall,
    SourceKind,
    Status,
)
from torpor.memory.ranking import DEFAULT, Scores, Weights, neighbours, score, top, with_facts
from torpor.memory.reading import HELD, moment_of
from torpor.memory.rows import EpisodeRow, EvidenceRow, RecallItemRow, RecallRow
from torpor.memory.support import SUPPORTING
from torpor.memory.times import days_between, to_time
from torpor.memory.words import coverage, excerpt, tokens_of

MIN_COVERAGE = 0.25
"""A text that has this part of the query's words is about it, whatever a model says."""
MIN_COSINE = 0.35
"""Cosine from which on MiniLM's neighbours are about the same thing; set on generated text."""
MAX_ITEM_CHARS = 1600
STANDING_SHARE = 3
"""One part in so many of the token budget goes to standing facts."""
STALE_DAYS = 30
LOGGED = 40
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
    label: str = "episode"
    episodes: tuple[str, ...] = ()
    dropped: str = ""
    note: str = ""
    disputed: bool = False
    is_relevant: bool = False
    pinned: bool = False
    since: int = 0


@dataclass(slots=True)
class Ranked:
    """Candidates in order, each with whether and why it was dropped."""

    taken: list[Candidate] = field(default_factory=list)
    dropped: list[Candidate] = field(default_factory=list)
    at: int = 0
    abstained: str | None = None


def recall(line: Line, corpus: Corpus, request: Request) -> Recall:
    """Return the best items within the budget and log the recall."""
    ranked = rank(line, corpus, request)
    items = tuple(_item(c) for c in ranked.taken)
    suppressed = dict(Counter(c.dropped for c in ranked.dropped if c.dropped not in _MINOR))
    found = Recall(
        id=new_id("rcl"),
        query=request.query,
        items=items,
        suppressed=suppressed,
        abstained=ranked.abstained,
        tokens=sum(i.tokens for i in items),
    )
    _log(line, request, ranked, found)
    return found


_MINOR = ("rank", "duplicate")


def rank(line: Line, corpus: Corpus, request: Request) -> Ranked:
    """Order candidates, decide on each; nothing is written."""
    blobs = line.embed([request.query])
    beliefs = line.beliefs(request.known_at)
    at = moment_of(line, beliefs.view, request.valid_at)
    scores = score(
        line.store,
        corpus,
        beliefs.view,
        request.query,
        blobs[0] if blobs else None,
        request.weights,
    )
    facts = _facts_near(corpus, scores, request)
    links = _links(line, beliefs, [c.owner for c in facts])
    held = {row.id for row in beliefs.load(c.owner for c in facts) if beliefs.holds(row.id, at)}
    candidates = [*facts, *_episodes_near(corpus, scores, request, links, held, facts)]
    standing = _standing(corpus, scores, beliefs, at, facts)
    _judge(line, beliefs, corpus, scores, request, at, candidates)
    return _select(beliefs, request, at, standing, candidates)


def _wanted(request: Request) -> int:
    """More than is asked for, as some will be dropped."""
    return max(40, 4 * request.k)


def _facts_near(corpus: Corpus, scores: Scores, request: Request) -> list[Candidate]:
    best = top(scores.mixed, scores.visible & (corpus.kinds == FACT), _wanted(request))
    return [_candidate(corpus, scores, place) for place in best]


def _episodes_near(
    corpus: Corpus,
    scores: Scores,
    request: Request,
    links: list[tuple[str, str]],
    held: set[str],
    facts: list[Candidate],
) -> list[Candidate]:
    """Return the best episodes, and give each fact the score of the best episode behind it."""
    import numpy as np

    weights = request.weights
    living = [(f, e) for f, e in links if f in held]
    near = neighbours(corpus, scores.mixed, scores.visible, weights.neighbour)
    said = np.where(corpus.kinds == EPISODE, scores.mixed + near, np.float32(0))
    total = with_facts(corpus, scores, said, living, weights.facts)
    behind: dict[str, list[int]] = {}
    for fact, episode in links:
        if episode in corpus.position:
            behind.setdefault(fact, []).append(corpus.position[episode])
    for one in facts:
        one.episodes = tuple(dict.fromkeys(e for f, e in links if f == one.owner))
        alone = one.score * (1 + weights.facts)
        one.prior = max((float(total[p]) for p in behind.get(one.owner, ())), default=alone)
        one.score = one.prior + _FIRST * one.score
    found = []
    for place in top(total, scores.visible & (corpus.kinds == EPISODE), _wanted(request)):
        one = _candidate(corpus, scores, place)
        one.score, one.neighbour = float(total[place]), float(near[place])
        found.append(one)
    return found


def _candidate(corpus: Corpus, scores: Scores, place: int) -> Candidate:
    return Candidate(
        owner=corpus.owners[place],
        kind=int(corpus.kinds[place]),
        place=place,
        score=float(scores.mixed[place]),
        bm25=float(scores.bm25[place]),
        cosine=float(scores.cosine[place]),
    )


def _standing(
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


def _judge(
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


def _links(line: Line, beliefs: Beliefs, facts: list[str]) -> list[tuple[str, str]]:
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
    for one in candidates:
        if one.cosine >= MIN_COSINE or (one.bm25 > 0 and coverage(terms, one.text) >= MIN_COVERAGE):
            one.is_relevant = True
            if one.place is not None:
                direct.add(one.place)
    for one in candidates:
        if one.kind == EPISODE and not one.is_relevant and one.place is not None:
            sides = (int(corpus.before[one.place]), int(corpus.after[one.place]))
            one.is_relevant = any(side in direct for side in sides)


def _select(
    beliefs: Beliefs,
    request: Request,
    at: int,
    standing: list[Candidate],
    candidates: list[Candidate],
) -> Ranked:
    ranked = Ranked(at=at)
    used = _take_standing(beliefs, request, standing, ranked)
    taken = {c.owner for c in ranked.taken}
    covered = {e for c in ranked.taken for e in c.episodes}
    relevant = any(c.bm25 > 0 or c.cosine >= MIN_COSINE for c in ranked.taken)
    for one in sorted(candidates, key=lambda c: (-c.score, c.owner)):
        if one.owner in taken:
            continue
        if not one.dropped:
            one.dropped = _room(one, request, used, len(ranked.taken), covered)
        if one.dropped:
            ranked.dropped.append(one)
            continue
        used += tokens_of(_shown(one, request.query))
        covered.update(one.episodes)
        relevant = True
        ranked.taken.append(one)
    for one in ranked.taken:
        one.text = _shown(one, request.query)
        if one.kind == FACT:
            one.note, one.disputed = _fact_note(beliefs, one.owner, at)
    if not relevant:
        ranked.abstained = _reason(ranked, candidates)
    return ranked


def _take_standing(
    beliefs: Beliefs, request: Request, standing: list[Candidate], ranked: Ranked
) -> int:
    """Fill the standing share; return the tokens used."""
    used = 0
    most = max(1, request.k * 2 // 5)
    evidence = beliefs.view.store.select(EvidenceRow, {"fact": [c.owner for c in standing]})
    for one in standing:
        if request.kinds is not None and one.label not in request.kinds:
            continue
        if request.scopes is not None and beliefs.rows[one.owner].scope not in request.scopes:
            continue
        if one.owner in request.exclude:
            continue
        cost = tokens_of(_shown(one, request.query))
        if len(ranked.taken) >= most or used + cost > request.token_budget // STANDING_SHARE:
            break
        one.episodes = tuple(dict.fromkeys(e.episode for e in evidence if e.fact == one.owner))
        used += cost
        ranked.taken.append(one)
    return used


def _room(one: Candidate, request: Request, used: int, count: int, covered: set[str]) -> str:
    if one.episodes and set(one.episodes) <= covered and one.kind == EPISODE:
        return "duplicate"
    if count >= request.k:
        return "rank"
    if used + tokens_of(_shown(one, request.query)) > request.token_budget:
        return "budget"
    return ""


def _shown(one: Candidate, query: str) -> str:
    return excerpt(one.text, query.casefold().split(), MAX_ITEM_CHARS)


def _reason(ranked: Ranked, candidates: list[Candidate]) -> str:
    if not candidates:
        return "nothing in memory has to do with the query"
    reasons = Counter(c.dropped for c in candidates if c.dropped)
    if not reasons:
        return "only standing facts, none of which has to do with the query"
    words = ", ".join(f"{n} {why}" for why, n in reasons.most_common())
    return f"nothing that holds is close enough to the query ({words})"


_SAID_BY = {
    Authority.USER_SAID: "the user said so",
    Authority.HUMAN_EDITED: "corrected by a human",
    Authority.TOOL_OBSERVED: "seen by a tool",
    Authority.AGENT_INFERRED: "agent inference",
}


def _fact_note(beliefs: Beliefs, fact_id: str, at: int) -> tuple[str, bool]:
    row, state = beliefs.rows[fact_id], beliefs.states[fact_id]
    status = beliefs.status(fact_id, at)
    parts = [_SAID_BY[Authority(row.authority)]]
    days = days_between(state.confirmed_at, at)
    if days >= STALE_DAYS:
        parts.append(f"last confirmed {days} days ago")
    if status is Status.DISPUTED:
        parts.append("disputed: another fact says otherwise")
    elif status not in HELD:
        parts.append(f"no longer holds: {status}")
    if state.flag == "unverified":
        parts.append("not verified since the machine was restored")
    return ", ".join(parts), status is Status.DISPUTED


def _episode_note(row: EpisodeRow, at: int) -> str:
    who = {SourceKind.USER: "the user's words", SourceKind.TOOL: "a tool's output"}
    return f"{who.get(SourceKind(row.source_kind), row.source_kind)}, {to_time(row.occurred_at):%Y-%m-%d}"


def _item(one: Candidate) -> Item:
    return Item(
        id=one.owner,
        kind=one.label,
        text=one.text,
        why=one.why,
        score=round(one.score, 6),
        bm25=round(one.bm25, 6),
        dense=round(one.cosine, 6),
        neighbour=round(one.neighbour, 6),
        tokens=tokens_of(one.text),
        note=one.note,
        disputed=one.disputed,
        evidence=one.episodes,
    )


def _log(line: Line, request: Request, ranked: Ranked, found: Recall) -> None:
    view = line.view(request.known_at)
    rows: list[tuple[object, ...]] = [
        RecallRow(
            id=found.id,
            at=line.now_us(),
            branch=view.branch.id,
            agent=line.agent,
            query=request.query,
            known_at=view.known_at,
            valid_at=ranked.at,
            weights=json.dumps(request.weights.as_dict()),
            model=line.embedder.model if line.embedder is not None else "",
            suppressed=json.dumps(found.suppressed),
            abstained=found.abstained,
        )
    ]
    ordered = [*ranked.taken, *sorted(ranked.dropped, key=lambda c: -c.score)]
    rows += [
        RecallItemRow(
            recall=found.id,
            rank=n,
            owner=one.owner,
            kind=one.label,
            score=one.score,
            bm25=one.bm25,
            dense=one.cosine,
            neighbour=one.neighbour,
            prior=one.prior,
            injected=int(not one.dropped),
            dropped_because=one.dropped,
        )
        for n, one in enumerate(ordered[:LOGGED], start=1)
    ]
    line.store.log(rows)
