"""Why something was recalled, and why something else was not."""

from __future__ import annotations

import json
from dataclasses import replace

from torpor.errors import NotFound
from torpor.memory.candidates import Candidate, Request
from torpor.memory.corpus import FACT, Corpus
from torpor.memory.line import Line
from torpor.memory.reading import HELD, explain_fact
from torpor.memory.recall import Ranked, rank
from torpor.memory.rows import RecallItemRow, RecallRow
from torpor.memory.times import to_time
from torpor.model_memory import Considered, Explanation, WhyNot

_WORDS = {
    "superseded": "something newer took its place",
    "expired": "its time is over",
    "future": "it does not hold yet",
    "retracted": "it was taken back",
    "suspended": "it lost its support or the machine went back",
    "threshold": "too little of the query is in it, and its meaning is not close",
    "budget": "the token budget was used up by better items",
    "rank": "others scored higher",
    "duplicate": "another item says the same",
    "kind": "its kind was not asked for",
    "scope": "its scope was not asked for",
    "in_context": "the caller said that it is in the context already",
    "not_authorised": "this branch does not see it",
    "score": "nothing in it matches the query",
    "recalled": "nothing: it is given out",
}


def explain_recall(line: Line, recall_id: str) -> Explanation:
    """Return the log of a recall with the words behind each fact that it gave out.

    Raises:
        NotFound: this agent made no such recall.
    """
    row = line.store.newest(RecallRow, {"id": recall_id})
    if row is None or row.agent != line.agent:
        raise NotFound(f"there is no recall {recall_id}", recall=recall_id)
    items = line.store.select(RecallItemRow, {"recall": recall_id})
    beliefs = line.beliefs()
    given = [i.owner for i in items if i.injected and i.kind != "episode"]
    held = [r.id for r in beliefs.load(given)]
    return Explanation(
        recall=row.id,
        query=row.query,
        at=to_time(row.at),
        branch=row.branch,
        known_at=row.known_at,
        valid_at=to_time(row.valid_at),
        weights=json.loads(row.weights),
        model=row.model,
        considered=tuple(
            Considered(
                id=i.owner,
                kind=i.kind,
                rank=i.rank,
                score=i.score,
                bm25=i.bm25,
                dense=i.dense,
                neighbour=i.neighbour,
                prior=i.prior,
                injected=bool(i.injected),
                dropped_because=i.dropped_because,
            )
            for i in items
        ),
        facts=tuple(explain_fact(line, i) for i in held),
        abstained=row.abstained,
    )


def why_not(line: Line, corpus: Corpus, fact_id: str, request: Request) -> WhyNot:
    """Say why a fact was not given out for a query: the recall is done again, without a log.

    Raises:
        NotFound: this branch has no such fact.
    """
    beliefs = line.beliefs(request.known_at)
    if not beliefs.load([fact_id]):
        raise NotFound(f"there is no fact {fact_id} on this branch", fact=fact_id)
    ranked = rank(line, corpus, request)
    position, found = _find(ranked, fact_id)
    status = beliefs.status(fact_id, ranked.at)
    if found is None and status not in HELD:
        # It was not even a candidate; had it been one, its state would have kept it out.
        wider = rank(line, corpus, replace(request, k=min(request.k * 10, 1000), threshold=False))
        position, found = _find(wider, fact_id)
    reason = _reason_word(found, str(status) if status not in HELD else "score")
    replaced = beliefs.replaced_by(fact_id, ranked.at) if reason == "superseded" else None
    detail = _WORDS.get(reason, reason)
    if replaced is not None:
        detail += f": {replaced}"
    return WhyNot(
        fact=fact_id,
        query=request.query,
        reason=reason,
        detail=detail,
        rank=position,
        score=found.score if found is not None else 0.0,
        replaced_by=replaced,
    )


def _reason_word(found: Candidate | None, otherwise: str) -> str:
    if found is None:
        return "superseded" if otherwise == "corrected" else otherwise
    return found.dropped or "recalled"


def _find(ranked: Ranked, fact_id: str) -> tuple[int | None, Candidate | None]:
    ordered = [*ranked.taken, *sorted(ranked.dropped, key=lambda c: -c.score)]
    for n, one in enumerate(ordered, start=1):
        if one.owner == fact_id and (one.kind == FACT or one.why == "standing"):
            return n, one
    return None, None
