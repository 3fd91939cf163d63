"""Memory and the machine: watermarks, restores, forks, merges, and the ledger of effects that never goes back."""

from __future__ import annotations

from collections.abc import Sequence

from torpor.base.ids import new_id
from torpor.errors import Conflict, NotFound, WrongState
from torpor.memory import checks
from torpor.memory.beliefs import Beliefs
from torpor.memory.chain import id_digest
from torpor.memory.claims import open_conflict
from torpor.memory.line import Line
from torpor.memory.model import (
    Done,
    Effect,
    MergePlan,
    Policy,
    Restored,
    Scope,
    SourceKind,
    Status,
    Watermark,
)
from torpor.memory.recording import EpisodeInput, put_episode
from torpor.memory.rows import (
    Branch,
    EffectRow,
    EpisodeRow,
    EvidenceRow,
    FactRow,
    Head,
    StateRow,
    WatermarkRow,
)
from torpor.memory.store import Range
from torpor.memory.support import evidence_of
from torpor.memory.times import to_time
from torpor.memory.unit import Unit
from torpor.memory.view import View, load_branch

MACHINE = "machine"
"""Marks a suspension by a restore."""

_BOUND = (Scope.MACHINE, Scope.TASK)


def watermark(line: Line, snapshot: str) -> Watermark:
    """Note where memory stands as `snapshot` is made; the same snapshot again gives the same mark."""
    checks.name(snapshot, "snapshot")
    known = line.store.newest(WatermarkRow, {"snapshot": snapshot})
    if known is not None:
        return _mark(known)
    with line.write("watermark") as (work, view):
        row = work.put(
            WatermarkRow(
                new_id("wm"),
                work.tx,
                view.branch.id,
                line.agent,
                snapshot,
                work.tx,
                line.head().epoch,
                work.salt(),
            )
        )
    return _mark(row)


def _mark(row: WatermarkRow) -> Watermark:
    return Watermark(row.snapshot, row.branch, row.at_tx, row.epoch)


def find_watermark(line: Line, snapshot: str) -> WatermarkRow:
    """Return the mark of a snapshot.

    Raises:
        NotFound: none was set.
    """
    found = line.store.newest(WatermarkRow, {"snapshot": snapshot})
    if found is None:
        raise NotFound(f"memory has no watermark of snapshot {snapshot}", snapshot=snapshot)
    return found


def on_restore(line: Line, snapshot: str, policy: Policy, reason: str) -> Restored:
    """Bring memory in line with a machine that was put back to `snapshot`; see the table in the docs.

    The epoch rises, so writers from before are refused from now on.
    """
    mark = find_watermark(line, snapshot)
    if line.fixed_branch is not None:
        raise WrongState(
            "a restore moves the agent's head; this space is bound to one branch",
            hint="open the space without branch",
        )
    since = _effects_since(line, mark.at_tx)
    with line.write("restore_machine", checks.reason(reason)) as (work, view):
        epoch = line.head().epoch + 1
        target = view.branch
        touched: tuple[list[str], list[str], list[str]] = ([], [], [])
        if policy is Policy.REWIND:
            target = _branch_off(
                work, mark.branch, mark.at_tx, line.agent, snapshot, f"rewind to {snapshot}"
            )
            work.branch = target.id
        elif policy is Policy.RECONCILE:
            touched = _reconcile(work, view, _view_at(line, mark), mark)
        else:
            touched = ([], [], _flag_unverified(work, view, mark))
        work.put(Head(new_id("head"), work.tx, target.id, line.agent, epoch, work.salt()))
        put_episode(
            work,
            view,
            EpisodeInput(
                f"The machine was restored to snapshot {snapshot} (policy {policy}); "
                f"transactions {mark.at_tx + 1} to {work.tx - 1} are lost to it.",
                SourceKind.SYSTEM,
            ),
            epoch,
            findable=policy is not Policy.REWIND,
        )
        tx = work.tx
    suspended, revived, flagged = (tuple(t) for t in touched)
    return Restored(tx, policy, target.id, epoch, suspended, revived, flagged, since)


def _view_at(line: Line, mark: WatermarkRow) -> View:
    return View(line.store, load_branch(line.store, mark.branch), mark.at_tx)


def _reconcile(
    work: Unit, view: View, then: View, mark: WatermarkRow
) -> tuple[list[str], list[str], list[str]]:
    """Facts about the machine become what they were at the mark; the world's facts stay."""
    changed = [
        s.object
        for s in view.store.select(StateRow, {"tx": Range(low=mark.at_tx + 1), "kind": "fact"})
        if view.sees(s) or then.sees(s)
    ]
    changed += _lines_apart(view, then)
    rows = view.store.select(FactRow, {"id": list(dict.fromkeys(changed))})
    bound = [r.id for r in rows if r.scope in _BOUND]
    now, before = view.states(bound), then.states(bound)
    suspended, revived = [], []
    for fact_id in bound:
        old, current = before.get(fact_id), now.get(fact_id)
        if old is None:
            if current is not None and current.status == Status.ACTIVE:
                work.set_state(
                    fact_id,
                    "fact",
                    current,
                    status=Status.SUSPENDED,
                    flag=MACHINE,
                    cause=mark.snapshot,
                )
                suspended.append(fact_id)
        elif current is None or _content(current) != _content(old):
            work.set_state(fact_id, "fact", old, cause=mark.snapshot)
            if current is None or current.status != old.status:
                revived.append(fact_id)
    return suspended, revived, []


def _lines_apart(view: View, then: View) -> list[str]:
    """Facts that the mark's line has and this one does not, or the reverse: they lie on other branches."""
    if then.branch.id == view.branch.id:
        return []
    theirs = {s.branch: s.cutoff for s in then.scopes}
    mine = {s.branch: s.cutoff for s in view.scopes}
    found: list[str] = []
    for branch in {*theirs, *mine}:
        low = min(theirs.get(branch, 0), mine.get(branch, 0))
        high = max(theirs.get(branch, 0), mine.get(branch, 0))
        if low < high:
            where = {"branch": branch, "tx": Range(low + 1, high), "kind": "fact"}
            found += [s.object for s in view.store.select(StateRow, where)]
    return found


def _content(state: StateRow) -> tuple[object, ...]:
    return (state.status, state.ended_at, state.ended_by, state.expires_at, state.pinned)


def _flag_unverified(work: Unit, view: View, mark: WatermarkRow) -> list[str]:
    later = view.store.select(StateRow, {"tx": Range(low=mark.at_tx + 1), "kind": "fact"})
    ids = list(dict.fromkeys(s.object for s in later if view.sees(s)))
    bound = [r.id for r in view.store.select(FactRow, {"id": ids}) if r.scope in _BOUND]
    states = view.states(bound)
    flagged = [i for i in bound if states[i].status == Status.ACTIVE]
    for fact_id in flagged:
        work.set_state(fact_id, "fact", states[fact_id], flag="unverified", cause=mark.snapshot)
    return flagged


def _branch_off(
    work: Unit, parent: str, fork_tx: int, agent: str, snapshot: str | None, reason: str
) -> Branch:
    above = load_branch(work.store, parent)
    name = new_id("br")
    return work.put(
        Branch(
            name, work.tx, name, agent, above.family, parent, fork_tx, snapshot, reason, work.salt()
        )
    )


def fork(line: Line, agent: str, snapshot: str | None, reason: str) -> str:
    """Give a new agent a child branch: it sees its parent's memory up to here, or up to a snapshot.

    Raises:
        Conflict: the agent has a memory already.
    """
    checks.name(agent, "agent")
    with line.write("fork", checks.reason(reason)) as (work, view):
        if line.store.newest(Head, {"agent": agent}) is not None:
            raise Conflict(f"agent {agent} has a memory already", agent=agent)
        parent, at = view.branch.id, work.tx - 1
        if snapshot is not None:
            mark = find_watermark(line, snapshot)
            parent, at = mark.branch, mark.at_tx
        made = _branch_off(work, parent, at, agent, snapshot, reason)
        work.put(Head(new_id("head"), work.tx, made.id, agent, 1, work.salt()))
        for effect in _latest_effects(line, line.agent, at):
            work.put(
                effect._replace(
                    id=new_id("ef"),
                    tx=work.tx,
                    branch=made.id,
                    agent=agent,
                    outcome=_BY_PARENT + effect.outcome,
                    salt=work.salt(),
                )
            )
    return made.id


_BY_PARENT = "parent:"


def switch(line: Line, branch_id: str, reason: str) -> Done:
    """Put the agent's head on another of its branches: the way back from a rewind."""
    with line.write("switch", checks.reason(reason)) as (work, view):
        target = load_branch(line.store, branch_id)
        if target.agent != line.agent:
            raise NotFound(f"agent {line.agent} has no branch {branch_id}")
        if target.id == view.branch.id:
            raise WrongState(f"agent {line.agent} is on branch {branch_id} already")
        work.put(
            Head(new_id("head"), work.tx, target.id, line.agent, line.head().epoch + 1, work.salt())
        )
        tx = work.tx
    return Done(tx, "switch", (branch_id,))


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


def effect(line: Line, key: str, what: str, outcome: str) -> Effect:
    """Note an effect on the outside world once; a second call with the key returns the first."""
    checks.name(key, "effect key")
    checks.content(what, "effect")
    known = find_effect(line, key)
    if known is not None:
        return known
    with line.write("effect") as (work, _):
        known = find_effect(line, key)
        if known is not None:
            return known
        row = work.put(
            EffectRow(
                new_id("ef"), work.tx, work.branch, line.agent, key, what, outcome, work.at,
                work.salt(),
            )
        )  # fmt: skip
    return _effect(row, fresh=True)


def finish_effect(line: Line, key: str, outcome: str) -> Effect:
    """Note how an effect ended.

    Raises:
        NotFound: no effect has that key.
        WrongState: it was the parent's; a fork cannot change it.
    """
    known = find_effect(line, key)
    if known is None:
        raise NotFound(f"there is no effect {key}", key=key)
    if known.by != line.agent:
        raise WrongState(f"effect {key} was done by the parent and is read-only")
    with line.write("effect") as (work, _):
        row = work.put(
            EffectRow(
                new_id("ef"), work.tx, work.branch, line.agent, key, known.what,
                checks.name(outcome, "outcome"), work.at, work.salt(),
            )
        )  # fmt: skip
    return _effect(row, fresh=False)


def effects(line: Line) -> list[Effect]:
    """Return all effects of the agent, oldest first; no restore removes one."""
    return [_effect(row, fresh=False) for row in _latest_effects(line, line.agent, None)]


def find_effect(line: Line, key: str) -> Effect | None:
    """Return the effect of a key; an erased key is found by its digest."""
    row = line.store.newest(EffectRow, {"agent": line.agent, "key": key})
    if row is None:
        row = line.store.newest(EffectRow, {"agent": line.agent, "key": erased_key(line, key)})
    return None if row is None else _effect(row, fresh=False)


def erased_key(line: Line, key: str) -> str:
    """Return the digest that stands for an effect's key after an erasure."""
    return f"erased:{id_digest(line.store.meta('id_key') or '', key)}"


def _effect(row: EffectRow, *, fresh: bool) -> Effect:
    inherited = row.outcome.startswith(_BY_PARENT)
    outcome = row.outcome.removeprefix(_BY_PARENT)
    by = "parent" if inherited else row.agent
    return Effect(row.key, row.what, outcome, to_time(row.at), by, fresh)


def _latest_effects(line: Line, agent: str, until: int | None) -> list[EffectRow]:
    newest: dict[str, EffectRow] = {}
    for row in line.store.select(EffectRow, {"agent": agent, "tx": Range(high=until)}):
        newest[row.key] = row
    return list(newest.values())


def _effects_since(line: Line, tx: int) -> tuple[str, ...]:
    rows = line.store.select(EffectRow, {"agent": line.agent, "tx": Range(low=tx + 1)})
    return tuple(dict.fromkeys(r.key for r in rows))
