"""Support: a fact stands on episodes, on the facts it was made from, or on a human's word.

When a write takes the last support away, the fact is suspended, and what was made from it in turn; when
support comes back, so does the fact.
"""

from __future__ import annotations

from collections.abc import Iterable

from torpor.memory.beliefs import Beliefs
from torpor.memory.model import Authority, Status
from torpor.memory.rows import DerivationRow, EpisodeRow, EvidenceRow
from torpor.memory.unit import Unit
from torpor.memory.view import View

FLAG = "support"
"""Marks a suspension that ends when support is back."""

SUPPORTING = ("supports", "corrects")


def recheck(work: Unit, view: View) -> None:
    """Suspend and revive what depends on the objects that `work` touched, until nothing changes."""
    pending = list(dict.fromkeys(work.touched))
    looked_at: set[str] = set()
    while pending:
        beliefs = Beliefs(view)
        facts = _dependants(view, pending)
        fresh = [f for f in facts if f not in looked_at]
        looked_at.update(fresh)
        pending = []
        for row in beliefs.load(fresh):
            state = beliefs.states[row.id]
            stands = row.authority == Authority.HUMAN_EDITED or has_support(view, row.id, work.at)
            last = _last_said(view, row.id, state.confirmed_at)
            if stands and last is not None and state.status == Status.ACTIVE:
                work.set_state(row.id, "fact", state, confirmed_at=max(last, row.valid_from))
            elif state.status == Status.ACTIVE and not stands:
                work.set_state(row.id, "fact", state, status=Status.SUSPENDED, flag=FLAG)
                pending.append(row.id)
            elif state.status == Status.SUSPENDED and state.flag == FLAG and stands:
                work.set_state(row.id, "fact", state, status=Status.ACTIVE, flag="")
                pending.append(row.id)


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


def has_support(view: View, fact_id: str, at: int) -> bool:
    """Return whether a live episode or a fact that holds stands behind `fact_id`."""
    if any(live for _, live in evidence_of(view, [fact_id])):
        return True
    parents = [d.parent for d in view.seen(view.store.select(DerivationRow, {"child": fact_id}))]
    beliefs = Beliefs(view)
    return any(beliefs.holds(row.id, at) for row in beliefs.load(parents))


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
    kin = Beliefs(view)
    keys = [row.key for row in kin.load(objects)]
    related = [c.id for key in dict.fromkeys(keys) for c in kin.claims(key)]
    parents = list(dict.fromkeys([*objects, *related]))
    found += [d.child for d in store.select(DerivationRow, {"parent": parents})]
    return list(dict.fromkeys(found))
