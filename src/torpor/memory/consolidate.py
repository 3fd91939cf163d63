"""Consolidation: episodes → candidates → a plan → facts, in one transaction that can be reverted.

The plan of a dry run is not computed beside the rules but by them: the claims are made in a transaction,
looked at and rolled back. Candidates are kept in the plan, so that applying it asks no extractor again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

from torpor.base.ids import new_id
from torpor.errors import InvalidRequest, LimitExceeded, WrongState
from torpor.memory import checks, claims
from torpor.memory.beliefs import Beliefs, to_episode
from torpor.memory.claims import AUTHORITY_OF_SOURCE, Proposal, Span
from torpor.memory.extract.base import Extractor
from torpor.memory.line import Line
from torpor.memory.recording import PRECISIONS
from torpor.memory.rows import ConsolidatedRow, EpisodeRow, EvidenceRow
from torpor.memory.sql import BATCH
from torpor.memory.times import to_us
from torpor.memory.unit import Unit
from torpor.memory.view import View
from torpor.model_memory import (
    Candidate,
    Cardinality,
    Episode,
    FactKind,
    Plan,
    PlanItem,
    Scope,
    SourceKind,
    Status,
)

MAX_EPISODES = 10_000
"""Episodes that one plan takes at most; the next call takes the rest."""


MAX_CHARS = 16 << 20
"""With so much content a plan takes no more episodes."""


_AT_ONCE = 16
"""Episodes read together; each may have a MiB."""


_ONLY_A_PERSONS = (
    FactKind.PREFERENCE,
    FactKind.DECISION,
    FactKind.COMMITMENT,
    FactKind.INSTRUCTION,
)
"""What a page, a tool or an agent says of these is something it says, not anyone's wish."""


_MAKING = ("new", "update", "history", "conflict")
"""Actions that make a fact."""


class _DryRun(Exception):  # it is no error: it ends a transaction that must not stay
    pass


def _stop() -> NoReturn:
    raise _DryRun


@dataclass(frozen=True, slots=True)
class Given:
    """What an extractor elsewhere made of some episodes."""

    name: str
    episodes: Sequence[str]
    candidates: Sequence[Candidate]

    def extract(self, episodes: Sequence[Episode]) -> Sequence[Candidate]:
        """Return the candidates of the episodes that are still to be read."""
        wanted = {e.id for e in episodes}
        return [c for c in self.candidates if c.episode in wanted]


def prepare(line: Line, extractor: Extractor, *, only: frozenset[str] | None = None) -> Plan:
    """Return what an extractor proposes, with the episodes of `only` if that is given; what comes of it is not known yet."""
    view = line.view()
    episodes = unread(view, extractor.name)
    if only is not None:
        episodes = [e for e in episodes if e.id in only]
    return Plan(
        branch=view.branch.id,
        base_tx=line.store.last_tx(),
        extractor=extractor.name,
        episodes=tuple(e.id for e in episodes),
        items=(),
        candidates=tuple(extractor.extract(episodes)) if episodes else (),
    )


def plan(line: Line, extractor: Extractor, *, only: frozenset[str] | None = None) -> Plan:
    """Return what consolidation would do now; nothing is written."""
    made = prepare(line, extractor, only=only)
    items: tuple[PlanItem, ...] = ()
    try:
        with line.write("consolidate") as (work, inside):
            items = _carry_out(work, inside, made)
            _stop()
    except _DryRun:
        pass
    return _with(made, items, None)


def apply(line: Line, given: Plan, reason: str) -> Plan:
    """Carry a plan out as one transaction.

    Raises:
        WrongState: it was applied already, it is another branch's, or memory changed in a way that
            changes what it does.
    """
    if given.tx is not None:
        raise WrongState(f"the plan was applied in transaction {given.tx}")
    if not given.episodes:
        return given
    texts = [i.text for i in given.items if i.action in _MAKING]
    if not given.items:  # it was prepared and not planned
        texts = list(dict.fromkeys(_sound_texts(given.candidates)))
    blobs = dict(zip(texts, line.embed(texts), strict=False))
    with line.write("consolidate", checks.reason(reason)) as (work, view):
        if view.branch.id != given.branch:
            raise WrongState(f"the plan is for branch {given.branch}, not {view.branch.id}")
        items = _carry_out(work, view, given)
        moved = line.store.last_tx() != given.base_tx
        if moved and given.items and [i.action for i in items] != [i.action for i in given.items]:
            raise WrongState(
                "memory changed since the plan was made, and the plan would now do something else",
                hint="make a new plan",
            )
        if blobs:
            made = [i for i in items if i.action in _MAKING and i.text in blobs]
            known = [(str(i.fact), blobs[i.text]) for i in made]
            line.put_vectors([f for f, _ in known], [b for _, b in known])
        tx = work.tx
    return _with(given, items, tx)


def _sound_texts(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield the texts of candidates; those that cannot be are rejected later."""
    for one in candidates:
        with contextlib.suppress(InvalidRequest, LimitExceeded):
            yield checks.content(_text(one), "text")


def _with(given: Plan, items: Sequence[PlanItem], tx: int | None) -> Plan:
    return Plan(
        given.branch,
        given.base_tx,
        given.extractor,
        given.episodes,
        tuple(items),
        given.candidates,
        tx,
    )


def unread(view: View, extractor: str) -> list[Episode]:
    """Return the episodes that `extractor` may read and has not read, oldest first.

    Of many those that were recorded first: at most `MAX_EPISODES`, and so many that they have `MAX_CHARS`.
    """
    docs = view.store.documents(view.scopes, 0)  # small rows; recalled text is not among them
    ids = list(dict.fromkeys(d.owner for d in docs if d.kind == "episode"))
    found: list[Episode] = []
    size = 0
    for one in _usable(view, ids, extractor):
        found.append(one)
        size += len(one.content)
        if len(found) == MAX_EPISODES or size >= MAX_CHARS:
            break
    found.sort(key=lambda e: (e.occurred_at, e.tx, e.seq))
    return found


def _usable(view: View, ids: Sequence[str], extractor: str) -> Iterator[Episode]:
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        marks = view.seen(view.store.select(ConsolidatedRow, {"episode": part}))
        read = {r.episode for r in marks if r.extractor == extractor}
        states = view.states(i for i in part if i not in read)
        active = [i for i in part if i in states and states[i].status == Status.ACTIVE]
        for first in range(0, len(active), _AT_ONCE):
            for row in view.store.select(EpisodeRow, {"id": active[first : first + _AT_ONCE]}):
                if row.source_kind in AUTHORITY_OF_SOURCE:
                    yield to_episode(row, states[row.id])


def _carry_out(work: Unit, view: View, given: Plan) -> tuple[PlanItem, ...]:
    rows = {r.id: r for r in view.store.select(EpisodeRow, {"id": list(given.episodes)})}
    states = view.states(given.episodes)
    items = [
        _one(work, view, rows, states.keys(), candidate, given.extractor)
        for candidate in _in_order(given.candidates, rows)
    ]
    for episode in given.episodes:
        work.put(
            ConsolidatedRow(
                new_id("cs"), work.tx, work.branch, episode, given.extractor, work.salt()
            )
        )
    return tuple(items)


def _in_order(candidates: Sequence[Candidate], rows: dict[str, EpisodeRow]) -> list[Candidate]:

    def when(c: Candidate) -> tuple[int, int]:
        row = rows.get(c.episode)
        return (row.occurred_at, row.tx) if row is not None else (0, 0)

    return sorted(candidates, key=when)


def _one(
    work: Unit,
    view: View,
    rows: dict[str, EpisodeRow],
    readable: object,
    candidate: Candidate,
    extractor: str,
) -> PlanItem:
    """Check one candidate and make its claim; a bad candidate is rejected, it never stops the others."""
    row = rows.get(candidate.episode)
    if row is None or candidate.episode not in readable:  # type: ignore[operator]  # a key view
        return _item("rejected", candidate, "it cites an episode that it was not given")
    start = row.content.find(candidate.quote) if candidate.quote.strip() else -1
    if start < 0:
        return _item("rejected", candidate, "its quote is not in the episode")
    try:
        proposal = _propose(row, candidate, start, extractor)
    except (InvalidRequest, LimitExceeded) as exc:
        return _item("rejected", candidate, exc.message)
    guard = _guard(view, proposal, row)
    if guard is not None:
        return _item(*guard)
    if candidate.ends:
        return _end(work, view, proposal, candidate)
    outcome = claims.make(work, view, proposal)
    detail = ", ".join(outcome.displaced)
    return _item(outcome.action, candidate, detail, outcome.fact)


def _propose(row: EpisodeRow, c: Candidate, start: int, extractor: str) -> Proposal:
    checks.value_json(c.value)
    if c.precision not in PRECISIONS:
        raise InvalidRequest(f"{c.precision!r} is no precision")
    if isinstance(c.value, str) and not c.value.strip():
        raise InvalidRequest("its value is empty")
    valid_from = row.occurred_at if c.valid_from is None else _not_after(c.valid_from, row)
    kind = checks.choice(FactKind, c.kind, "kind of fact")
    if kind is FactKind.FILE:
        raise InvalidRequest("files are written, not found in words")
    if kind in _ONLY_A_PERSONS and row.source_kind not in (SourceKind.USER, SourceKind.HUMAN_NOTE):
        kind = FactKind.FACT
    return Proposal(
        subject=checks.name(c.subject, "subject"),
        attribute=checks.name(c.attribute, "attribute"),
        value=c.value,
        text=checks.content(_text(c), "text"),
        kind=kind,
        scope=checks.choice(Scope, c.scope, "scope"),
        cardinality=checks.choice(Cardinality, c.cardinality, "cardinality"),
        authority=AUTHORITY_OF_SOURCE[row.source_kind],
        confidence=checks.fraction(c.confidence, "confidence"),
        valid_from=valid_from,
        valid_to=None,
        precision=c.precision,
        evidence=(Span(row.id, start, start + len(c.quote)),),
        extractor=extractor,
        confirmed_at=row.occurred_at,
    )


def _text(c: Candidate) -> str:
    return c.text or claims.render(c.subject, c.attribute, c.value)


def _not_after(moment: datetime, row: EpisodeRow) -> int:
    return min(to_us(moment), row.occurred_at)


def _guard(
    view: View, proposal: Proposal, row: EpisodeRow
) -> tuple[str, Candidate, str, str | None] | None:
    """Return why a candidate must not become a claim again: it was judged before."""
    candidate = Candidate(
        row.id, proposal.subject, proposal.attribute, proposal.value,
        row.content[proposal.evidence[0].start : proposal.evidence[0].stop],
    )  # fmt: skip
    key = claims.key_of(view.branch.family, proposal)
    value = checks.value_key(proposal.value)
    beliefs = Beliefs(view)
    beliefs.load_keys([key])
    same = [r for r in beliefs.rows.values() if r.key == key and r.value_key == value]
    evidence = view.seen(view.store.select(EvidenceRow, {"fact": [r.id for r in same]}))
    for fact in same:
        if beliefs.states[fact.id].cause == "revert":
            continue  # a reverted run may be done again, by another extractor
        if any(e.fact == fact.id and e.episode == row.id for e in evidence):
            status = beliefs.states[fact.id].status
            return "known", candidate, f"made from this episode before, now {status}", fact.id
    for fact in same:
        state = beliefs.states[fact.id]
        if state.status == Status.CORRECTED and row.tx < state.tx:
            return "refuted", candidate, f"corrected in transaction {state.tx}", fact.id
    return None


def _end(work: Unit, view: View, proposal: Proposal, candidate: Candidate) -> PlanItem:
    """End the value that an episode says is over; the words become evidence of it."""
    beliefs = Beliefs(view)
    key = claims.key_of(view.branch.family, proposal)
    wanted = checks.value_key(proposal.value)
    for claim in beliefs.holders(key, proposal.valid_from):
        if claim.value == wanted and claim.valid_from < proposal.valid_from:
            claims.add_evidence(
                work,
                claim.id,
                [Span(s.episode, s.start, s.stop, "contradicts") for s in proposal.evidence],
                proposal.extractor,
            )
            state = beliefs.states[claim.id]
            work.set_state(
                claim.id, "fact", state, ended_at=proposal.valid_from, cause=candidate.episode
            )
            return _item("end", candidate, f"{claim.id} ended", claim.id)
    return _item("rejected", candidate, "nothing that it could end holds")


def _item(action: str, c: Candidate, detail: str, fact: str | None = None) -> PlanItem:
    text = "" if action == "rejected" else _text(c)
    return PlanItem(action, c.subject, c.attribute, c.value, c.quote, text, c.episode, detail, fact)
