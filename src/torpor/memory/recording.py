"""Recording episodes and remembering facts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from torpor.base.ids import new_id
from torpor.errors import InvalidRequest, NotFound
from torpor.memory import checks, claims
from torpor.memory.beliefs import Beliefs, to_episode
from torpor.memory.claims import AUTHORITY_OF_SOURCE, Outcome, Proposal, Span
from torpor.memory.files import check_file
from torpor.memory.line import Line
from torpor.memory.rows import EpisodeRow, FactRow
from torpor.memory.times import to_us
from torpor.memory.unit import Unit
from torpor.memory.view import View
from torpor.model_memory import (
    RANK,
    Authority,
    Cardinality,
    Episode,
    Fact,
    FactKind,
    Scope,
    SourceKind,
)
from torpor.model_memory_inputs import EpisodeInput, FactInput

PRECISIONS = ("instant", "day", "month", "year", "unknown")
SENSITIVITIES = ("normal", "personal", "secret")


def record(line: Line, inputs: Sequence[EpisodeInput], reason: str) -> list[Episode]:
    """Write episodes in one transaction, verbatim, at once."""
    checked = [_check_episode(i) for i in inputs]
    findable = [n for n, i in enumerate(checked) if i.source_kind is not SourceKind.RECALLED]
    blobs = line.embed([checked[n].content for n in findable])
    with line.write("record", checks.reason(reason)) as (work, view):
        epoch = line.head().epoch
        rows = []
        for n, one in enumerate(checked):
            work.at += n > 0  # they happened one after the other
            rows.append(put_episode(work, view, one, epoch))
        if blobs:
            line.put_vectors([rows[n].id for n in findable], blobs)
        states = view.states(r.id for r in rows)
    return [to_episode(row, states[row.id]) for row in rows]


def put_episode(
    work: Unit, view: View, given: EpisodeInput, epoch: int, *, findable: bool = True
) -> EpisodeRow:
    """Write one checked episode; recalled text is kept but never found."""
    earlier = work.store.newest(EpisodeRow, {"branch": work.branch, "session": given.session})
    row = work.put(
        EpisodeRow(
            id=new_id("ep"),
            tx=work.tx,
            branch=work.branch,
            family=view.branch.family,
            session=given.session,
            seq=earlier.seq + 1 if earlier is not None else 0,
            source_kind=SourceKind(given.source_kind),
            content=given.content,
            occurred_at=to_us(given.occurred_at) if given.occurred_at else work.at,
            recorded_at=work.at,
            epoch=epoch,
            subjects=json.dumps(list(given.subjects), ensure_ascii=False),
            sensitivity=given.sensitivity,
            sha256=hashlib.sha256(given.content.encode()).hexdigest(),
            salt=work.salt(),
        )
    )
    work.set_state(row.id, "episode", None)
    if findable and row.source_kind != SourceKind.RECALLED:
        work.store.index(row.id, "episode", work.branch, row.session, work.tx, row.content)
    return row


def _check_episode(given: EpisodeInput) -> EpisodeInput:
    if given.sensitivity not in SENSITIVITIES:
        raise InvalidRequest(
            f"{given.sensitivity!r} is no sensitivity",
            hint=f"use one of: {', '.join(SENSITIVITIES)}",
        )
    if given.occurred_at is not None:
        to_us(given.occurred_at)
    if isinstance(given.subjects, str):
        raise InvalidRequest("subjects must be a list of names")
    return replace(
        given,
        content=checks.content(given.content),
        source_kind=checks.choice(SourceKind, given.source_kind, "source kind"),
        session=checks.name(given.session, "session") if given.session else "",
        subjects=tuple(checks.name(s, "subject") for s in given.subjects),
    )


def remember(line: Line, inputs: Sequence[FactInput], reason: str) -> list[tuple[Fact, Outcome]]:
    """Make claims in one transaction and return the facts that now stand for them."""
    checked = [_check_fact(i) for i in inputs]
    blobs = line.embed([text_of(i) for i in checked])
    with line.write("remember", checks.reason(reason)) as (work, view):
        outcomes = []
        for n, one in enumerate(checked):
            work.at += n > 0  # a later one may take the place of an earlier one
            outcomes.append(claims.make(work, view, _propose(line, work, view, one)))
        if blobs:
            line.put_vectors([o.fact for o in outcomes], blobs)
        beliefs = Beliefs(view)
        return [(beliefs.fact(o.fact, work.at), o) for o in outcomes]


def text_of(given: FactInput) -> str:
    """Return the text under which a fact is found."""
    return given.text or claims.render(given.subject, given.attribute, given.value)


def _check_fact(given: FactInput) -> FactInput:
    checks.value_json(given.value)
    if given.precision not in PRECISIONS:
        raise InvalidRequest(
            f"{given.precision!r} is no precision", hint=f"use one of: {', '.join(PRECISIONS)}"
        )
    for moment in (given.valid_from, given.valid_to, given.expires_at):
        if moment is not None:
            to_us(moment)
    if given.valid_to is not None and given.valid_from is not None:
        _check_order(given.valid_from, given.valid_to)
    if isinstance(given.evidence, str) or isinstance(given.derived_from, str):
        raise InvalidRequest("evidence and derived_from are lists")
    kind = checks.choice(FactKind, given.kind, "kind of fact")
    if kind is FactKind.FILE:
        check_file(given.subject, given.attribute, given.value)
    authority = given.authority
    return replace(
        given,
        subject=checks.name(given.subject, "subject"),
        attribute=checks.name(given.attribute, "attribute"),
        kind=kind,
        scope=checks.choice(Scope, given.scope, "scope"),
        cardinality=checks.choice(Cardinality, given.cardinality, "cardinality"),
        authority=None if authority is None else checks.choice(Authority, authority, "authority"),
        text=None if given.text is None else checks.content(given.text, "text"),
        confidence=checks.fraction(given.confidence, "confidence"),
    )


def _check_order(start: datetime, end: datetime) -> None:
    if end <= start:
        raise InvalidRequest(
            f"valid_to {end.isoformat()} is not after valid_from {start.isoformat()}"
        )


def _propose(line: Line, work: Unit, view: View, given: FactInput) -> Proposal:
    spans, episodes = claims.spans_of(view, given.evidence)
    parents = _parents(view, given.derived_from)
    authority = Authority(given.authority) if given.authority else None
    if authority is None:
        words = [AUTHORITY_OF_SOURCE[e.source_kind] for e in episodes]
        authority = min(words, key=RANK.__getitem__, default=Authority.AGENT_INFERRED)
    valid_from = to_us(given.valid_from) if given.valid_from else None
    if valid_from is None:
        valid_from = _since(episodes, parents, work.at)
    if not spans and not parents and authority is not Authority.HUMAN_EDITED:
        spans = (_own_episode(line, work, view, given, authority, valid_from),)
    valid_to = to_us(given.valid_to) if given.valid_to else None
    if valid_to is not None and valid_to <= valid_from:
        raise InvalidRequest("valid_to is not after the time that the fact holds from")
    return Proposal(
        subject=given.subject,
        attribute=given.attribute,
        value=given.value,
        text=text_of(given),
        kind=FactKind(given.kind),
        scope=Scope(given.scope),
        cardinality=Cardinality(given.cardinality),
        authority=authority,
        confidence=given.confidence,
        valid_from=valid_from,
        valid_to=valid_to,
        precision=given.precision,
        evidence=spans,
        derived_from=tuple(p.id for p in parents),
        pinned=given.pinned,
        expires_at=to_us(given.expires_at) if given.expires_at else None,
        confirmed_at=_confirmed(view, parents, valid_from),
    )


def _since(episodes: Sequence[EpisodeRow], parents: Sequence[FactRow], now: int) -> int:
    """Said once, it holds since it was first said; made from facts, since all of them hold."""
    if episodes:
        return min(e.occurred_at for e in episodes)
    return max((p.valid_from for p in parents), default=now)


def _parents(view: View, ids: Sequence[str]) -> list[FactRow]:
    beliefs = Beliefs(view)
    rows = beliefs.load(ids)
    missing = set(ids) - {row.id for row in rows}
    if missing:
        raise NotFound(f"there is no fact {min(missing)} on this branch")
    return rows


def _confirmed(view: View, parents: Sequence[FactRow], valid_from: int) -> int:
    """A fact made from others is as old as the one of them that was confirmed longest ago."""
    states = view.states(p.id for p in parents)
    return min((s.confirmed_at for s in states.values()), default=valid_from)


_SOURCE_OF_AUTHORITY = {
    Authority.USER_SAID: SourceKind.USER,
    Authority.TOOL_OBSERVED: SourceKind.TOOL,
    Authority.AGENT_INFERRED: SourceKind.AGENT,
}


def _own_episode(
    line: Line, work: Unit, view: View, given: FactInput, authority: Authority, at: int
) -> Span:
    """Record the claim itself as the episode it rests on, so that every fact has words behind it."""
    text = text_of(given)
    episode = put_episode(
        work,
        view,
        EpisodeInput(text, _SOURCE_OF_AUTHORITY[authority], subjects=(given.subject,)),
        line.head().epoch,
        findable=False,  # the fact is found by the same words
    )
    return Span(episode.id, 0, len(text))
