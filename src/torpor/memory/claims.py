"""Making a claim: the one way in which a fact comes to be, whoever makes it.

The claim joins what is known about its key; what it means (new, an update, a confirmation, history, a
conflict) follows from the rules in `belief.py`, not from the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torpor.base.ids import new_id
from torpor.errors import InvalidRequest, NotFound
from torpor.memory import belief, checks
from torpor.memory.beliefs import Beliefs
from torpor.memory.rows import (
    ConflictRow,
    DerivationRow,
    EpisodeRow,
    EvidenceRow,
    FactRow,
    SupersessionRow,
)
from torpor.memory.unit import Unit
from torpor.memory.view import View
from torpor.model_memory import RANK, Authority, Cardinality, FactKind, Json, Scope, Status

AUTHORITY_OF_SOURCE = {
    "user": Authority.USER_SAID,
    "human_note": Authority.USER_SAID,
    "tool": Authority.TOOL_OBSERVED,
    "system": Authority.TOOL_OBSERVED,
    "agent": Authority.AGENT_INFERRED,
    "document": Authority.AGENT_INFERRED,
}
"""On whose word a fact stands that was found in an episode. `recalled` is missing on purpose."""


@dataclass(frozen=True, slots=True)
class Span:
    """Words of an episode, in characters."""

    episode: str
    start: int
    stop: int
    relation: str = "supports"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A claim to be made, checked."""

    subject: str
    attribute: str
    value: Json
    text: str
    kind: FactKind
    scope: Scope
    cardinality: Cardinality
    authority: Authority
    confidence: float
    valid_from: int
    valid_to: int | None
    precision: str
    evidence: tuple[Span, ...] = ()
    derived_from: tuple[str, ...] = ()
    pinned: bool = False
    expires_at: int | None = None
    version_of: str | None = None
    extractor: str = ""
    confirmed_at: int | None = None
    vector: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a claim came to."""

    action: str
    fact: str
    displaced: tuple[str, ...] = ()
    conflict: str | None = None


def key_of(family: str, proposal: Proposal) -> str:
    """Return the key whose claims compete: one value at a time, or each value for itself."""
    parts = [family, checks.fold(proposal.subject), checks.fold(proposal.attribute)]
    if proposal.cardinality is Cardinality.MANY:
        parts.append(checks.value_key(proposal.value))
    return "\x1f".join(parts)


def render(subject: str, attribute: str, value: Json) -> str:
    """Return a fact as a line of text."""
    shown = value if isinstance(value, str) else checks.value_json(value)
    return f"{subject}: {attribute} = {shown}"


def make(work: Unit, view: View, proposal: Proposal) -> Outcome:
    """Make the claim in the transaction `work` and return what came of it."""
    key = key_of(view.branch.family, proposal)
    value = checks.value_key(proposal.value)
    beliefs = Beliefs(view)
    known = _same_claim(beliefs, key, value, proposal)
    if known is not None:
        return _confirm(work, beliefs, known, proposal)
    now = max(work.at, proposal.valid_from)
    before = {c.id for c in beliefs.holders(key, now)}
    row = _insert(work, key, value, proposal)
    after = Beliefs(view)
    claims = after.claims(key)
    displaced = tuple(sorted(before - {c.id for c in after.holders(key, now)}))
    for old in displaced:
        _supersede(work, old, row.id, "key_update")
    held_now = any(c.id == row.id for c in after.holders(key, now))
    if not held_now and (later := belief.displacer_of(claims, row.id, now)) is not None:
        _supersede(work, row.id, later.id, "late_arrival")
    work.touched.extend(displaced)
    conflict = open_conflict(work, after, row, now)
    if conflict is not None:
        return Outcome("conflict", row.id, displaced, conflict)
    action = "update" if displaced else "new" if held_now else "history"
    return Outcome(action, row.id, displaced)


def _same_claim(beliefs: Beliefs, key: str, value: str, proposal: Proposal) -> str | None:
    """Return the fact that already says this at the proposal's time, on no lower authority."""
    if proposal.valid_to is not None or proposal.version_of is not None:
        return None
    for claim in beliefs.holders(key, proposal.valid_from):
        enough = claim.rank >= RANK[proposal.authority]
        if claim.value == value and enough and claim.valid_to is None and claim.ended_at is None:
            return claim.id
    return None


def _confirm(work: Unit, beliefs: Beliefs, fact_id: str, proposal: Proposal) -> Outcome:
    add_evidence(work, fact_id, proposal.evidence, proposal.extractor)
    _derive(work, fact_id, proposal.derived_from)
    state = beliefs.states[fact_id]
    confirmed = state.confirmed_at
    if RANK[proposal.authority] >= RANK[Authority(beliefs.rows[fact_id].authority)]:
        confirmed = max(confirmed, proposal.confirmed_at or proposal.valid_from)
    work.set_state(
        fact_id,
        "fact",
        state,
        confirmed_at=confirmed,
        pinned=int(bool(state.pinned) or proposal.pinned),
        flag="" if state.flag == "unverified" else state.flag,
    )
    return Outcome("confirm", fact_id)


def _insert(work: Unit, key: str, value: str, proposal: Proposal) -> FactRow:
    row = work.put(
        FactRow(
            id=new_id("fact"),
            tx=work.tx,
            branch=work.branch,
            version_of=proposal.version_of,
            kind=proposal.kind,
            scope=proposal.scope,
            subject=proposal.subject,
            attribute=proposal.attribute,
            key=key,
            value=checks.value_json(proposal.value),
            value_key=value,
            text=proposal.text,
            cardinality=proposal.cardinality,
            confidence=proposal.confidence,
            authority=proposal.authority,
            valid_from=proposal.valid_from,
            valid_to=proposal.valid_to,
            precision=proposal.precision,
            salt=work.salt(),
        )
    )
    work.set_state(
        row.id,
        "fact",
        None,
        pinned=int(proposal.pinned),
        expires_at=proposal.expires_at,
        confirmed_at=proposal.confirmed_at or proposal.valid_from,
    )
    add_evidence(work, row.id, proposal.evidence, proposal.extractor)
    _derive(work, row.id, proposal.derived_from)
    work.store.index(row.id, "fact", work.branch, "", work.tx, row.text)
    return row


def add_evidence(work: Unit, fact_id: str, spans: Sequence[Span], extractor: str) -> None:
    """Put words of episodes behind a fact; words that are there already are not added again."""
    for span in spans:
        same = work.store.select(
            EvidenceRow, {"fact": fact_id, "episode": span.episode, "start": span.start}
        )
        if any(e.stop == span.stop and e.relation == span.relation for e in same):
            continue
        work.put(
            EvidenceRow(
                new_id("ev"),
                work.tx,
                work.branch,
                fact_id,
                span.episode,
                span.start,
                span.stop,
                span.relation,
                extractor,
                work.salt(),
            )
        )


def _derive(work: Unit, fact_id: str, parents: Sequence[str]) -> None:
    for parent in parents:
        if parent != fact_id:
            work.put(
                DerivationRow(new_id("dv"), work.tx, work.branch, fact_id, parent, work.salt())
            )


def _supersede(work: Unit, old: str, new: str, rule: str) -> None:
    work.put(SupersessionRow(new_id("sup"), work.tx, work.branch, old, new, rule, work.salt()))


def open_conflict(work: Unit, beliefs: Beliefs, row: FactRow, now: int) -> str | None:
    """Open a conflict if the claim `row` is disputed when it begins or at `now`; return its id."""
    for at in dict.fromkeys((row.valid_from, now)):
        if beliefs.status(row.id, at) is Status.DISPUTED:
            members = sorted(c.id for c in beliefs.holders(row.key, at))
            return _conflict(work, beliefs, row.key, members)
    return None


def _conflict(work: Unit, beliefs: Beliefs, key: str, members: list[str]) -> str:
    view = beliefs.view
    rows = view.seen(view.store.select(ConflictRow, {"key": key}))
    states = view.states(r.id for r in rows)
    for old in rows:
        state = states.get(old.id)
        if state is None or state.status != Status.OPEN:
            continue
        if set(old.members.split()) >= set(members):
            return old.id
        work.set_state(old.id, "conflict", state, status=Status.RESOLVED, cause="merged")
    found = work.put(
        ConflictRow(new_id("cf"), work.tx, work.branch, key, " ".join(members), work.salt())
    )
    work.set_state(found.id, "conflict", None, status=Status.OPEN)
    return found.id


def spans_of(
    view: View, evidence: Sequence[str | tuple[str, str]]
) -> tuple[tuple[Span, ...], list[EpisodeRow]]:
    """Return the spans for episode ids, or (episode id, quote) pairs, and the episodes.

    Raises:
        NotFound: an episode is not on this branch.
        InvalidRequest: a quote is not in its episode, or the episode is recalled text.
    """
    pairs = [(e, None) if isinstance(e, str) else (e[0], e[1]) for e in evidence]
    ids = list(dict.fromkeys(episode for episode, _ in pairs))
    rows = {row.id: row for row in view.store.select(EpisodeRow, {"id": ids})}
    states = view.states(ids)
    spans = []
    for episode, quote in pairs:
        row = rows.get(episode)
        if row is None or episode not in states:
            raise NotFound(f"there is no episode {episode} on this branch", episode=episode)
        if row.source_kind not in AUTHORITY_OF_SOURCE:
            raise InvalidRequest(
                f"episode {episode} is {row.source_kind} text and cannot support a fact",
                hint="cite the episode that the recalled text came from",
            )
        start = 0 if quote is None else row.content.find(quote) if quote else -1
        if start < 0:
            raise InvalidRequest(f"the quote is not in episode {episode}", hint="quote it verbatim")
        spans.append(Span(episode, start, start + len(row.content if quote is None else quote)))
    return tuple(spans), [rows[i] for i in ids]
