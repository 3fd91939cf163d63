"""Merging: facts of one branch taken into another, by reference, with their words."""

from __future__ import annotations

from collections.abc import Sequence

from torpor.base.ids import new_id
from torpor.errors import NotFound, WrongState
from torpor.memory import checks
from torpor.memory.beliefs import Beliefs
from torpor.memory.claims import open_conflict
from torpor.memory.line import Line
from torpor.memory.rows import (
    EpisodeRow,
    EvidenceRow,
    FactRow,
    StateRow,
)
from torpor.memory.support import evidence_of
from torpor.memory.unit import Unit
from torpor.memory.view import View, load_branch
from torpor.model_memory import (
    Done,
    MergePlan,
    Scope,
    Status,
)


def plan_merge(line: Line, source: str) -> MergePlan:
    """Return what `source` holds of the world and this line does not; machine facts never cross."""
    view = line.view()
    other = View(line.store, load_branch(line.store, source), None)
    if other.branch.family != view.branch.family:
        raise NotFound(f"branch {source} is not of this memory's family")
    here, there = Beliefs(view), Beliefs(other)
    at = line.now_us()
    ids = [
        s.object
        for s in line.store.select(StateRow, {"kind": "fact"})
        if other.sees(s) and not view.sees(s)
    ]
    facts, clashing = [], []
    for row in there.load(ids):
        if row.scope != Scope.WORLD or row.id in here.rows or view.state(row.id) is not None:
            continue
        if there.states[row.id].status != Status.ACTIVE:
            continue
        facts.append(there.fact(row.id, at))
        if any(c.value != row.value_key for c in here.holders(row.key, at)):
            clashing.append(row.id)
    return MergePlan(source, view.branch.id, line.store.last_tx(), tuple(facts), tuple(clashing))


def merge(line: Line, plan: MergePlan, take: Sequence[str] | None, reason: str) -> Done:
    """Take facts of a merge plan into this line, by reference, with their episodes.

    Raises:
        WrongState: this line is not the one the plan was made for.
    """
    wanted = [f.id for f in plan.facts] if take is None else list(take)
    unknown = set(wanted) - {f.id for f in plan.facts}
    if unknown:
        raise NotFound(f"fact {min(unknown)} is not in the plan")
    with line.write("merge", checks.reason(reason)) as (work, view):
        if view.branch.id != plan.target:
            raise WrongState(f"the plan is for branch {plan.target}, not {view.branch.id}")
        other = View(line.store, load_branch(line.store, plan.source), None)
        states = other.states(wanted)
        taken = [i for i in wanted if i in states and view.state(i) is None]
        for fact_id in taken:
            _adopt(work, view, other, fact_id, states[fact_id])
        settled = Beliefs(view)
        for row in settled.load(taken):
            open_conflict(work, settled, row, work.at)
        tx = work.tx
    return Done(tx, "merge", tuple(taken))


def _adopt(work: Unit, view: View, other: View, fact_id: str, state: StateRow) -> None:
    evidence = [e for e, live in evidence_of(other, [fact_id]) if live]
    for row in evidence:
        _adopt_episode(work, view, other, row.episode)
    work.set_state(fact_id, "fact", state)
    fact = work.store.newest(FactRow, {"id": fact_id})
    assert fact is not None
    work.store.index(fact_id, "fact", work.branch, "", work.tx, fact.text)
    for row in evidence:
        work.put(
            EvidenceRow(
                new_id("ev"), work.tx, work.branch, row.fact, row.episode, row.start, row.stop,
                row.relation, row.extractor, work.salt(),
            )
        )  # fmt: skip


def _adopt_episode(work: Unit, view: View, other: View, episode_id: str) -> None:
    if view.state(episode_id) is not None:
        return
    state = other.state(episode_id)
    row = work.store.newest(EpisodeRow, {"id": episode_id})
    if state is None or row is None:
        return
    work.set_state(episode_id, "episode", state)
    work.store.index(episode_id, "episode", work.branch, row.session, work.tx, row.content)
