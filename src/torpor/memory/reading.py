"""Reading what is held and how it came to be; nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from torpor.errors import InvalidRequest, LimitExceeded, NotFound
from torpor.memory import belief, checks, support
from torpor.memory.beliefs import Beliefs, to_episode
from torpor.memory.line import Line
from torpor.memory.rows import (
    ConflictRow,
    DerivationRow,
    EpisodeRow,
    FactRow,
    StateRow,
    SupersessionRow,
    Txn,
)
from torpor.memory.store import Range
from torpor.memory.times import to_time, to_time_or_none, to_us
from torpor.memory.view import LAST, View
from torpor.model_memory import (
    Change,
    ConflictSet,
    Diff,
    Episode,
    Fact,
    FactExplanation,
    Interval,
    Link,
    Quote,
    SourceKind,
    Status,
)

MAX_MOMENTS = 2000
"""Changes of one attribute that a timeline looks at: each is compared with all others."""

HELD = (Status.ACTIVE, Status.DISPUTED)


def facts(
    line: Line,
    *,
    subject: str | None,
    attribute: str | None,
    valid_at: datetime | None,
    known_at: int | datetime | None,
    include: Iterable[Status],
) -> list[Fact]:
    """Return facts by subject and attribute; those that hold, and what `include` names."""
    beliefs = line.beliefs(known_at)
    at = moment_of(line, beliefs.view, valid_at)
    wanted = {*HELD, *include}
    found = []
    for row in _rows(beliefs, subject, attribute):
        status = beliefs.status(row.id, at)
        if status in wanted and (status not in HELD or beliefs.is_leading(row.id, at)):
            found.append(beliefs.fact(row.id, at))
    return found


def moment_of(line: Line, view: View, valid_at: datetime | None) -> int:
    """Return the valid time that a read is about: as given, else now.

    Now is never before the newest transaction, so that what was just written holds.
    """
    if valid_at is not None:
        return to_us(valid_at)
    newest = view.store.newest(Txn, {"tx": view.store.last_tx()})
    return max(line.now_us(), newest.at if newest is not None else 0)


def _rows(beliefs: Beliefs, subject: str | None, attribute: str | None) -> list[FactRow]:
    store = beliefs.view.store
    family = beliefs.view.branch.family
    low = family if subject is None else f"{family}\x1f{checks.fold(subject)}\x1f"
    rows = store.select(FactRow, {"key": Range(low, low + LAST)})
    if attribute is not None:
        want = checks.fold(attribute)
        rows = [r for r in rows if checks.fold(r.attribute) == want]
    return beliefs.load(r.id for r in rows)


def episodes(line: Line, session: str | None, known_at: int | datetime | None) -> list[Episode]:
    """Return the episodes of the view in the order they were recorded."""
    view = line.view(known_at)
    where = {"family": view.branch.family} if session is None else {"session": session}
    rows = view.store.select(EpisodeRow, where)
    states = view.states(r.id for r in rows)
    return [to_episode(r, states[r.id]) for r in rows if r.id in states]


def episode(line: Line, episode_id: str) -> Episode:
    """Return one episode.

    Raises:
        NotFound: the view has no such episode.
    """
    view = line.view()
    row = view.store.newest(EpisodeRow, {"id": episode_id})
    state = view.state(episode_id)
    if row is None or state is None:
        raise NotFound(f"there is no episode {episode_id} on this branch", episode=episode_id)
    return to_episode(row, state)


def fact(line: Line, fact_id: str, known_at: int | datetime | None) -> Fact:
    """Return one fact.

    Raises:
        NotFound: the view has no such fact.
    """
    beliefs = line.beliefs(known_at)
    return beliefs.fact(fact_id, moment_of(line, beliefs.view, None))


def history(
    line: Line, fact_id: str | None, subject: str | None, attribute: str | None
) -> list[Change]:
    """Return everything that happened to a fact, or to a subject's attribute, in transaction order."""
    beliefs = line.beliefs()
    if fact_id is not None:
        if not beliefs.load([fact_id]):
            raise NotFound(f"there is no fact {fact_id} on this branch", fact=fact_id)
        rows = _versions(beliefs, fact_id)
    elif subject is not None:
        rows = _rows(beliefs, subject, attribute)
    else:
        raise InvalidRequest("history needs a fact or a subject")
    by_id = {r.id: r for r in rows}
    view = beliefs.view
    states = view.seen(view.store.select(StateRow, {"object": list(by_id)}))
    last = {(s.tx, s.object): s for s in states}  # what a transaction left, not its steps
    changes = [_change(view, by_id[s.object], s.tx, s.status, _said(s)) for s in last.values()]
    changes += [
        _change(
            view,
            by_id[link.old],
            link.tx,
            Status.SUPERSEDED,
            f"replaced by {link.new} ({link.rule})",
        )
        for link in view.seen(view.store.select(SupersessionRow, {"old": list(by_id)}))
    ]
    place = {row.id: n for n, row in enumerate(rows)}
    return sorted(changes, key=lambda c: (c.tx, place[c.fact]))


def _versions(beliefs: Beliefs, fact_id: str) -> list[FactRow]:
    """A fact, what it corrected and what corrected it."""
    row = beliefs.rows[fact_id]
    return beliefs.load(_kin(beliefs, row))


def _kin(beliefs: Beliefs, row: FactRow) -> list[str]:
    store = beliefs.view.store
    found = [row.id]
    step: FactRow | None = row
    while step is not None and step.version_of is not None:
        step = store.newest(FactRow, {"id": step.version_of})
        if step is not None:
            found.insert(0, step.id)
    pending = [row.id]
    while pending:
        later = [r.id for r in store.select(FactRow, {"version_of": pending})]
        found += later
        pending = later
    return found


def _said(state: StateRow) -> str:
    parts = [state.flag] if state.flag else []
    if state.ended_at is not None:
        parts.append(f"ended {to_time(state.ended_at).isoformat()}")
    if state.expires_at is not None:
        parts.append(f"expires {to_time(state.expires_at).isoformat()}")
    if state.pinned:
        parts.append("pinned")
    if state.cause:
        parts.append(f"because of {state.cause}")
    return ", ".join(parts)


def _change(view: View, row: FactRow, tx: int, status: str, detail: str) -> Change:
    txn = view.store.newest(Txn, {"tx": tx})
    return Change(
        tx=tx,
        at=to_time(row.valid_from if txn is None else txn.at),
        actor="unknown" if txn is None else txn.actor,  # a salvage did not find it
        kind="unknown" if txn is None else txn.kind,
        reason=(txn.reason or "") if txn is not None else "",
        fact=row.id,
        status=Status(status),
        value=json.loads(row.value),
        detail=detail,
    )


def timeline(line: Line, subject: str, known_at: int | datetime | None) -> list[Interval]:
    """Return which fact about a subject held from when to when, by attribute and time.

    Raises:
        LimitExceeded: one attribute changed more than 2000 times.
    """
    beliefs = line.beliefs(known_at)
    rows = _rows(beliefs, subject, None)
    found: list[Interval] = []
    for key in sorted({r.key for r in rows}):
        found += _intervals(beliefs, key)
    return found


def _intervals(beliefs: Beliefs, key: str) -> list[Interval]:
    claims = beliefs.claims(key)
    times = belief.moments(claims)
    if len(times) > MAX_MOMENTS:
        raise LimitExceeded(
            f"{claims[0].id} and the other claims about the same changed at {len(times)} moments; "
            f"a timeline has at most {MAX_MOMENTS}",
            hint="ask for the history, or for facts at a time",
            limit=MAX_MOMENTS,
        )
    open_since: dict[str, tuple[int, bool]] = {}
    found: list[tuple[str, int, int | None, bool]] = []
    for at in times:
        held = belief.holders(claims, at)
        now = {c.id: beliefs.status(c.id, at) is Status.DISPUTED for c in held}
        for fact_id, (since, disputed) in list(open_since.items()):
            if now.get(fact_id) != disputed:
                found.append((fact_id, since, at, disputed))
                del open_since[fact_id]
        for fact_id, disputed in now.items():
            open_since.setdefault(fact_id, (at, disputed))
    found += [(f, since, None, disputed) for f, (since, disputed) in open_since.items()]
    return [
        Interval(beliefs.fact(f, since), to_time(since), to_time_or_none(end), disputed)
        for f, since, end, disputed in sorted(found, key=lambda i: (i[1], i[0]))
    ]


def diff(line: Line, tx1: int, tx2: int, valid_at: datetime | None) -> Diff:
    """Return what was held at `tx2` and not at `tx1`, and the reverse."""
    before, after = line.beliefs(tx1), line.beliefs(tx2)
    at = moment_of(line, after.view, valid_at)
    low, high = sorted((tx1, tx2))
    states = line.store.select(StateRow, {"tx": Range(low + 1, high)})
    touched = [s.object for s in states if s.kind == "fact"]
    keys = list(dict.fromkeys(r.key for r in line.store.select(FactRow, {"id": touched})))
    added: list[Fact] = []
    removed: list[Fact] = []
    for key in keys:
        old = {c.id for c in before.holders(key, at)}
        new = {c.id for c in after.holders(key, at)}
        added += [after.fact(i, at) for i in sorted(new - old)]
        removed += [before.fact(i, at) for i in sorted(old - new)]
    return Diff(tx1, tx2, tuple(added), tuple(removed))


def conflicts(line: Line, include_resolved: bool) -> list[ConflictSet]:
    """Return conflicts that wait for a decision; those that settled themselves are left out."""
    beliefs = line.beliefs()
    view = beliefs.view
    at = moment_of(line, view, None)
    found = []
    rows = view.store.select(ConflictRow, {})
    states = view.states(r.id for r in rows)
    for row in rows:
        state = states.get(row.id)
        if state is None or state.cause == "merged":
            continue
        members = beliefs.load(row.members.split())
        disputed = [m for m in members if beliefs.status(m.id, at) is Status.DISPUTED]
        is_open = state.status == Status.OPEN and len(disputed) > 1
        if not is_open and not include_resolved:
            continue
        if members:
            found.append(
                ConflictSet(
                    row.id,
                    members[0].subject,
                    members[0].attribute,
                    tuple(beliefs.fact(m.id, at) for m in members),
                    Status.OPEN if is_open else Status.RESOLVED,
                    row.tx,
                )
            )
    return found


def explain_fact(line: Line, fact_id: str) -> FactExplanation:
    """Return the words, replacements and sources behind a fact."""
    beliefs = line.beliefs()
    view = beliefs.view
    found = beliefs.fact(fact_id, moment_of(line, view, None))
    kin = _kin(beliefs, beliefs.rows[fact_id])
    links = view.seen(
        [
            *view.store.select(SupersessionRow, {"old": kin}),
            *view.store.select(SupersessionRow, {"new": kin}),
        ]
    )
    txn = view.store.newest(Txn, {"tx": beliefs.rows[fact_id].tx})
    parents = view.seen(view.store.select(DerivationRow, {"child": fact_id}))
    return FactExplanation(
        fact=found,
        evidence=tuple(quotes(view, kin)),
        chain=tuple(_link(view, k) for k in sorted(set(links), key=lambda k: k.tx)),
        derived_from=tuple(p.parent for p in parents),
        actor=txn.actor if txn is not None else "",
        reason=(txn.reason or "") if txn is not None else "",
    )


def _link(view: View, row: SupersessionRow) -> Link:
    txn = view.store.newest(Txn, {"tx": row.tx})
    reason = (txn.reason or "") if txn is not None else ""
    return Link(row.old, row.new, row.rule, row.tx, reason)


def quotes(view: View, fact_ids: Iterable[str]) -> list[Quote]:
    """Return the words behind facts."""
    evidence = support.evidence_of(view, fact_ids)
    rows = {
        r.id: r
        for r in view.store.select(
            EpisodeRow, {"id": list(dict.fromkeys(e.episode for e, _ in evidence))}
        )
    }
    found = []
    for e, live in evidence:
        row = rows.get(e.episode)
        if row is not None:
            found.append(
                Quote(
                    episode=row.id,
                    text=row.content[e.start : e.stop],
                    start=e.start,
                    stop=e.stop,
                    relation=e.relation,
                    source_kind=SourceKind(row.source_kind),
                    occurred_at=to_time(row.occurred_at),
                    extractor=e.extractor,
                    live=live,
                )
            )
    return found
