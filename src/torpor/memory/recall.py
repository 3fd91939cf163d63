"""Recall: what to put before the agent for a query, and a log of what was taken, what not, and why."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace

from torpor.base.ids import new_id
from torpor.errors import Busy, HostNotReady, InsufficientResources
from torpor.memory.beliefs import Beliefs
from torpor.memory.candidates import (
    MIN_COSINE,
    Candidate,
    Request,
    episodes_near,
    facts_near,
    judge,
    links,
    standing,
)
from torpor.memory.corpus import EPISODE, FACT, Corpus
from torpor.memory.line import Line
from torpor.memory.ranking import score
from torpor.memory.reading import HELD, moment_of
from torpor.memory.rows import EvidenceRow, RecallItemRow, RecallRow
from torpor.memory.times import days_between
from torpor.memory.words import excerpt, terms_of, tokens_of
from torpor.model_memory import (
    Authority,
    Item,
    Recall,
    Status,
)

MAX_ITEM_CHARS = 1600


STANDING_SHARE = 3
"""One part in so many of the token budget goes to standing facts."""


STALE_DAYS = 30


LOGGED = 40


RECALLS_KEPT = 10_000
"""The log has the last recalls of each agent; older ones cannot be explained any more."""


TRIM_EVERY = 64
"""So often is the log looked at, in recalls."""


@dataclass(slots=True)
class Ranked:
    """Candidates in order, each with whether and why it was dropped."""

    taken: list[Candidate] = field(default_factory=list)
    dropped: list[Candidate] = field(default_factory=list)
    at: int = 0
    abstained: str | None = None
    words_only: str | None = None


def recall(line: Line, corpus: Corpus, request: Request) -> Recall:
    """Return the best items within the budget and log the recall."""
    ranked = rank(line, corpus, request)
    corpus.recalls += 1
    items = tuple(_item(c) for c in ranked.taken)
    suppressed = dict(Counter(c.dropped for c in ranked.dropped if c.dropped not in _MINOR))
    found = Recall(
        id=new_id("rcl"),
        query=request.query,
        items=items,
        suppressed=suppressed,
        abstained=ranked.abstained,
        tokens=sum(i.tokens for i in items),
        words_only=ranked.words_only,
    )
    try:
        _log(line, request, ranked, found)
        if corpus.recalls % TRIM_EVERY == 1:
            line.store.trim_log(line.agent, RECALLS_KEPT)
    except (Busy, InsufficientResources):
        return replace(found, logged=False)
    return found


_MINOR = ("rank", "duplicate")


def rank(line: Line, corpus: Corpus, request: Request) -> Ranked:
    """Order candidates, decide on each; nothing is written."""
    blobs, away = _meaning(line, request.query)
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
    facts = facts_near(corpus, scores, request)
    found = links(line, beliefs, [c.owner for c in facts])
    held = {row.id for row in beliefs.load(c.owner for c in facts) if beliefs.holds(row.id, at)}
    candidates = [*facts, *episodes_near(corpus, scores, request, found, held, facts)]
    first = standing(corpus, scores, beliefs, at, facts)
    judge(line, beliefs, corpus, scores, request, at, candidates)
    ranked = _select(beliefs, request, at, first, candidates)
    ranked.words_only = away
    return ranked


def _meaning(line: Line, query: str) -> tuple[list[bytes], str | None]:
    """Return the query's vector, or why there is none although there is an embedder."""
    try:
        return line.meaning_of([query]), None
    except HostNotReady as exc:
        if not exc.facts.get("is_away"):
            raise
        return [], exc.message


def _select(
    beliefs: Beliefs,
    request: Request,
    at: int,
    first: list[Candidate],
    candidates: list[Candidate],
) -> Ranked:
    ranked = Ranked(at=at)
    terms = terms_of(request.query)
    used = _take_standing(beliefs, request, first, ranked, terms)
    taken = {c.owner for c in ranked.taken}
    covered = {e for c in ranked.taken for e in c.episodes}
    relevant = any(c.bm25 > 0 or c.cosine >= MIN_COSINE for c in ranked.taken)
    for one in sorted(candidates, key=lambda c: (-c.score, c.owner)):
        if one.owner in taken:
            continue
        if not one.dropped:
            one.dropped = _room(one, request, used, len(ranked.taken), covered, terms)
        if one.dropped:
            ranked.dropped.append(one)
            continue
        used += tokens_of(_shown(one, terms))
        covered.update(one.episodes)
        relevant = True
        ranked.taken.append(one)
    for one in ranked.taken:
        one.text = _shown(one, terms)
        if one.kind == FACT:
            one.note, one.disputed = _fact_note(beliefs, one.owner, at)
    if not relevant:
        ranked.abstained = _reason(ranked, candidates)
    return ranked


def _take_standing(
    beliefs: Beliefs,
    request: Request,
    first: list[Candidate],
    ranked: Ranked,
    terms: list[str],
) -> int:
    """Fill the standing share; return the tokens used."""
    used = 0
    most = max(1, request.k * 2 // 5)
    evidence = beliefs.view.store.select(EvidenceRow, {"fact": [c.owner for c in first]})
    for one in first:
        if request.kinds is not None and one.label not in request.kinds:
            continue
        if request.scopes is not None and beliefs.rows[one.owner].scope not in request.scopes:
            continue
        if one.owner in request.exclude:
            continue
        cost = tokens_of(_shown(one, terms))
        if len(ranked.taken) >= most or used + cost > request.token_budget // STANDING_SHARE:
            break
        one.episodes = tuple(dict.fromkeys(e.episode for e in evidence if e.fact == one.owner))
        used += cost
        ranked.taken.append(one)
    return used


def _room(
    one: Candidate,
    request: Request,
    used: int,
    count: int,
    covered: set[str],
    terms: list[str],
) -> str:
    if one.episodes and set(one.episodes) <= covered and one.kind == EPISODE:
        return "duplicate"
    if count >= request.k:
        return "rank"
    if used + tokens_of(_shown(one, terms)) > request.token_budget:
        return "budget"
    return ""


def _shown(one: Candidate, terms: list[str]) -> str:
    """Return what is given out of a text: of a long one the part around the query's first word."""
    if not one.shown:
        one.shown = excerpt(one.text, terms, MAX_ITEM_CHARS)
    return one.shown


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
            model=line.embedder.model if line.embedder and not ranked.words_only else "",
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
