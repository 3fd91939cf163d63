"""Support: a fact stands on episodes, on the facts it was made from, or on a human's word.

When a write takes the last support away, the fact is suspended, and what was made from it in turn; when
support comes back, so does the fact.
"""

from __future__ import annotations

from collections.abc import Iterable

from torpor.memory.beliefs import Beliefs
from torpor.memory.rows import DerivationRow, EpisodeRow, EvidenceRow
from torpor.memory.unit import Unit
from torpor.memory.view import View
from torpor.model_memory import Authority, Status

FLAG = "support"
"""Marks a suspension that ends when support is back."""

SUPPORTING = ("supports", "corrects")


_ROUNDS = 16
"""A revived fact may displace another, whose dependants then fall; each such step is one round."""


def recheck(work: Unit, view: View) -> None:
    """Suspend and revive what depends on the objects that `work` touched, until nothing changes."""
    pending = list(dict.fromkeys(work.touched))
    for _ in range(_ROUNDS):
        below = _all_below(view, pending)
        if not below:
            return
        pending = _settle(work, view, below)
        if not pending:
            return


def _all_below(view: View, objects: list[str]) -> list[str]:
    """Return every fact that rests on the objects, directly or through others."""
    found: dict[str, None] = {}
    pending = objects
    while pending:
        pending = [f for f in _dependants(view, pending) if f not in found]
        found.update(dict.fromkeys(pending))
    return list(found)


def _settle(work: Unit, view: View, below: list[str]) -> list[str]:
    """Write the new states of facts; return those that changed."""
    beliefs = Beliefs(view)
    rows = beliefs.load(below)
    stands = _standing(view, beliefs, [r.id for r in rows], work.at)
    changed = []
    for row in rows:
        state = beliefs.states[row.id]
        if state.status == Status.ACTIVE and row.id not in stands:
            work.set_state(row.id, "fact", state, status=Status.SUSPENDED, flag=FLAG)
            changed.append(row.id)
        elif state.status == Status.SUSPENDED and state.flag == FLAG and row.id in stands:
            work.set_state(row.id, "fact", state, status=Status.ACTIVE, flag="")
            changed.append(row.id)
        elif state.status == Status.ACTIVE:
            last = _last_said(view, row.id, state.confirmed_at)
            if last is not None:
                work.set_state(row.id, "fact", state, confirmed_at=max(last, row.valid_from))
    return changed


def _standing(view: View, beliefs: Beliefs, facts: list[str], at: int) -> set[str]:
    """Return which of the facts stand, from the ground up: facts that only support each other do not."""
    evidence = evidence_of(view, facts)
    stands = {e.fact for e, live in evidence if live}
    stands |= {f for f in facts if beliefs.rows[f].authority == Authority.HUMAN_EDITED}
    links = view.seen(view.store.select(DerivationRow, {"child": facts}))
    beliefs.load(link.parent for link in links)
    inside = set(facts)
    above: dict[str, list[str]] = {}
    for link in links:
        if link.parent in inside:
            above.setdefault(link.child, []).append(link.parent)
        elif link.parent in beliefs.rows and beliefs.holds(link.parent, at):
            stands.add(link.child)
    grown = True
    while grown:
        carry = {f for f in stands if _can_carry(beliefs, f, at)}
        new = {c for c, parents in above.items() if c not in stands and carry & set(parents)}
        stands |= new
        grown = bool(new)
    return stands


def _can_carry(beliefs: Beliefs, fact_id: str, at: int) -> bool:
    """Return whether others may rest on a fact that itself stands."""
    state = beliefs.states[fact_id]
    waiting = state.status == Status.SUSPENDED and state.flag == FLAG
    return waiting or beliefs.holds(fact_id, at)


def _last_said(view: View, fact_id: str, confirmed_at: int) -> int | None:
    """Return when a fact was last confirmed, if the words that confirmed it last were taken back."""
    evidence = evidence_of(view, [fact_id])
    said = {
        r.id: r.occurred_at
        for r in view.store.select(EpisodeRow, {"id": [e.episode for e, _ in evidence]})
    }
    gone = [said[e.episode] for e, live in evidence if not live and e.episode in said]
    live = [said[e.episode] for e, live in evidence if live and e.episode in said]
    if confirmed_at not in gone or confirmed_at in live or not live:
        return None
    return max(live)


def evidence_of(view: View, fact_ids: Iterable[str]) -> list[tuple[EvidenceRow, bool]]:
    """Return the evidence of facts, each with whether it supports its fact now."""
    rows = view.seen(view.store.select(EvidenceRow, {"fact": list(fact_ids)}))
    states = view.states([*(r.episode for r in rows), *(r.id for r in rows)])
    found = []
    for row in rows:
        own, episode = states.get(row.id), states.get(row.episode)
        live = (
            row.relation in SUPPORTING
            and (own is None or own.status == Status.ACTIVE)
            and episode is not None
            and episode.status == Status.ACTIVE
        )
        found.append((row, live))
    return found


def _dependants(view: View, objects: list[str]) -> list[str]:
    """Return the facts that rest on the given episodes, evidence or facts (or share a key with those)."""
    store = view.store
    found = [e.fact for e in store.select(EvidenceRow, {"episode": objects})]
    found += [e.fact for e in store.select(EvidenceRow, {"id": objects})]
    if store.newest(DerivationRow, {}) is None:
        return list(dict.fromkeys(found))  # spares reading all that was ever claimed about the same
    kin = Beliefs(view)
    keys = [row.key for row in kin.load(objects)]
    related = [c.id for key in dict.fromkeys(keys) for c in kin.claims(key)]
    parents = list(dict.fromkeys([*objects, *related]))
    found += [d.child for d in store.select(DerivationRow, {"parent": parents})]
    return list(dict.fromkeys(found))
