"""Memory and the machine: watermarks, restores, forks, and the way back."""

from __future__ import annotations

from dataclasses import replace

from torpor.base.ids import new_id
from torpor.errors import Conflict, NotFound, WrongState
from torpor.memory import checks
from torpor.memory.effects import BY_PARENT, effects_since, latest_effects
from torpor.memory.line import Line
from torpor.memory.recording import put_episode
from torpor.memory.rows import (
    Branch,
    FactRow,
    Head,
    StateRow,
    Txn,
    WatermarkRow,
)
from torpor.memory.store import Range, Store
from torpor.memory.unit import Unit
from torpor.memory.view import View, load_branch
from torpor.model_memory import (
    Done,
    Policy,
    Restored,
    Scope,
    SourceKind,
    Status,
    Watermark,
)
from torpor.model_memory_inputs import EpisodeInput

MACHINE = "machine"
"""Marks a suspension by a restore."""


_BOUND = (Scope.MACHINE, Scope.TASK)


def watermark(line: Line, snapshot: str) -> Watermark:
    """Note where memory stands as `snapshot` is made; the same agent's same snapshot again gives the same mark."""
    checks.name(snapshot, "snapshot")
    known = line.store.newest(WatermarkRow, {"snapshot": snapshot, "agent": line.agent})
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
    return Watermark(row.snapshot, row.branch, row.at_tx, row.epoch, row.agent)


def here(store: Store, agent: str) -> Watermark:
    """Return where memory stands now, without writing it: a snapshot's own manifest keeps it."""
    last = store.newest(Txn, {"tx": store.last_tx()})
    head = store.newest(Head, {"agent": agent})
    return Watermark(
        snapshot="",
        branch="" if head is None else head.branch,
        tx=0 if last is None else last.tx,
        epoch=0 if head is None else head.epoch,
        agent=agent,
        head="" if last is None else last.hash,
    )


def find_watermark(line: Line, snapshot: str) -> Watermark:
    """Return the mark of a snapshot: the agent's own, else one of its family, such as its parent's.

    Raises:
        NotFound: none was set.
    """
    view = line.view()
    marks = [_mark(r) for r in line.store.select(WatermarkRow, {"snapshot": snapshot})]
    kin = [m for m in marks if m.agent == line.agent or _is_kin(view, m)]
    if not kin:
        raise NotFound(f"memory has no watermark of snapshot {snapshot}", snapshot=snapshot)
    return max(kin, key=lambda m: (m.agent == line.agent, m.tx))


def why_useless(store: Store, mark: Watermark) -> str:
    """Return why a mark says nothing about this memory; empty if it does."""
    if mark.problem:
        return f"memory could not be marked when the snapshot was made: {mark.problem}"
    if mark.head:
        found = store.newest(Txn, {"tx": mark.tx})
        if found is None or found.hash != mark.head:
            return "the snapshot was made beside another memory than this one"
    return ""


def on_restore(
    line: Line, mark: Watermark, policy: Policy, reason: str, note: str = ""
) -> Restored:
    """Bring memory in line with a machine that was put back to a mark; see the table in the docs.

    The epoch rises, so writers from before are refused from now on. A mark that says nothing about this memory
    is followed as `keep`, with every fact about the machine flagged: the answer's note says so.
    """
    useless = why_useless(line.store, mark)
    if useless:
        note = f"{useless}; all is kept, what concerns the machine is unverified"
        mark, policy = replace(mark, branch="", tx=0), Policy.KEEP
    if line.fixed_branch is not None:
        raise WrongState(
            "a restore moves the agent's head; this space is bound to one branch",
            hint="open the space without branch",
        )
    since = effects_since(line, mark.tx)
    with line.write("restore_machine", checks.reason(reason)) as (work, view):
        epoch = line.head().epoch + 1
        target = view.branch
        touched: tuple[list[str], list[str], list[str]] = ([], [], [])
        if policy is Policy.REWIND:
            parent = mark.branch if _is_kin(view, mark) else view.branch.id
            target = _branch_off(
                work, parent, mark.tx, line.agent, mark.snapshot, f"rewind to {mark.snapshot}"
            )
            work.branch = target.id
        elif policy is Policy.RECONCILE:
            mark = mark if not mark.branch or _is_kin(view, mark) else replace(mark, tx=0)
            touched = _reconcile(work, view, _view_at(view, mark), mark)
        else:
            touched = ([], [], _flag_unverified(work, view, mark))
        work.put(Head(new_id("head"), work.tx, target.id, line.agent, epoch, work.salt()))
        put_episode(
            work,
            view,
            EpisodeInput(
                f"The machine was restored to snapshot {mark.snapshot} (policy {policy}); "
                f"transactions {mark.tx + 1} to {work.tx - 1} are lost to it."
                + (f" Note: {note}." if note else ""),
                SourceKind.SYSTEM,
            ),
            epoch,
            findable=policy is not Policy.REWIND,
        )
        tx = work.tx
    suspended, revived, flagged = (tuple(t) for t in touched)
    return Restored(tx, policy, target.id, epoch, suspended, revived, flagged, since, note)


def _is_kin(view: View, mark: Watermark) -> bool:
    """Return whether a mark is of this memory's family: what another agent knew is none of ours."""
    if not mark.branch:
        return False
    return load_branch(view.store, mark.branch).family == view.branch.family


def _view_at(view: View, mark: Watermark) -> View:
    """Return what was seen at a mark; nothing, if there was no memory then or it was another agent's."""
    branch = load_branch(view.store, mark.branch) if _is_kin(view, mark) else view.branch
    return View(view.store, branch, mark.tx)


def _reconcile(
    work: Unit, view: View, then: View, mark: Watermark
) -> tuple[list[str], list[str], list[str]]:
    """Facts about the machine become what they were at the mark; the world's facts stay."""
    changed = [
        s.object
        for s in view.store.select(StateRow, {"tx": Range(low=mark.tx + 1), "kind": "fact"})
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


def _flag_unverified(work: Unit, view: View, mark: Watermark) -> list[str]:
    later = view.store.select(StateRow, {"tx": Range(low=mark.tx + 1), "kind": "fact"})
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


def fork(line: Line, agent: str, mark: Watermark | None, reason: str) -> str:
    """Give a new agent a child branch: it sees its parent's memory up to here, or up to a mark.

    Raises:
        Conflict: the agent has a memory already.
    """
    checks.name(agent, "agent")
    with line.write("fork", checks.reason(reason)) as (work, view):
        if line.store.newest(Head, {"agent": agent}) is not None:
            raise Conflict(f"agent {agent} has a memory already", agent=agent)
        parent, at = view.branch.id, work.tx - 1
        if mark is not None:
            if not _is_kin(view, mark):
                raise NotFound(
                    f"snapshot {mark.snapshot} has no watermark of agent {line.agent}",
                    snapshot=mark.snapshot,
                )
            parent, at = mark.branch, mark.tx
        # The reason is the transaction's alone: there an erasure can blank it.
        made = _branch_off(work, parent, at, agent, None if mark is None else mark.snapshot, "")
        work.put(Head(new_id("head"), work.tx, made.id, agent, 1, work.salt()))
        for effect in latest_effects(line, line.agent, at):
            work.put(
                effect._replace(
                    id=new_id("ef"),
                    tx=work.tx,
                    branch=made.id,
                    agent=agent,
                    outcome=BY_PARENT + effect.outcome,
                    salt=work.salt(),
                )
            )
    return made.id


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
