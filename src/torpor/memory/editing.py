"""Changing what is held: each call is one transaction with a reason, and each can be undone.

A change of the world ends a fact's valid time (`supersede`, `expire`); a correction says that it was never
so (`correct`); a retraction takes back the words it stood on (`retract`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from torpor.base.ids import new_id
from torpor.errors import InvalidRequest, NotFound, WrongState
from torpor.memory import checks, claims
from torpor.memory.beliefs import Beliefs
from torpor.memory.claims import Proposal
from torpor.memory.files import check_file
from torpor.memory.line import Line
from torpor.memory.rows import ConflictRow, EvidenceRow, FactRow, StateRow, SupersessionRow, Txn
from torpor.memory.times import to_us
from torpor.memory.unit import Unit
from torpor.memory.view import View
from torpor.model_memory import Authority, Cardinality, Done, Fact, FactKind, Json, Scope, Status


def supersede(line: Line, old: str, new: str, reason: str) -> Done:
    """Say that the world changed from `old` to `new`; `old` ends when `new` begins."""
    with line.write("supersede", checks.reason(reason)) as (work, view):
        beliefs = Beliefs(view)
        old_row, new_row = _fact(beliefs, old), _fact(beliefs, new)
        if old == new:
            raise InvalidRequest("a fact cannot supersede itself")
        _believed(beliefs, old)
        _believed(beliefs, new)
        if new_row.valid_from < old_row.valid_from:
            raise InvalidRequest(
                f"{new} holds from before {old}: it cannot have taken its place",
                hint="correct() says that a fact was wrong",
            )
        state = beliefs.states[old]
        work.set_state(old, "fact", state, ended_at=new_row.valid_from, ended_by=new, cause=new)
        work.put(
            SupersessionRow(new_id("sup"), work.tx, work.branch, old, new, "explicit", work.salt())
        )
        tx = work.tx
    return _done(line, tx, "supersede", (old,))


def correct(line: Line, fact_id: str, value: Json, reason: str, text: str | None) -> Fact:
    """Say that a fact was wrong all along and what is right; it keeps its place in time."""
    checks.value_json(value)
    old = _fact(line.beliefs(), fact_id)
    if old.kind == FactKind.FILE:
        check_file(old.subject, old.attribute, value)
    shown = (
        checks.content(text, "text") if text else claims.render(old.subject, old.attribute, value)
    )
    blobs = line.embed([shown])
    with line.write("correct", checks.reason(reason)) as (work, view):
        beliefs = Beliefs(view)
        old = _fact(beliefs, fact_id)
        state = beliefs.states[fact_id]
        if state.status == Status.CORRECTED:
            raise WrongState(
                f"{fact_id} was corrected already", hint=f"correct {state.cause} instead"
            )
        if old.value_key == checks.value_key(value):
            raise InvalidRequest(f"{fact_id} has that value already")
        work.set_state(fact_id, "fact", state, status=Status.CORRECTED, flag="")
        made = claims.make(work, view, _corrected(old, state, value, shown))
        newest = view.state(fact_id)
        assert newest is not None
        work.set_state(fact_id, "fact", newest, cause=made.fact)
        work.put(
            SupersessionRow(
                new_id("sup"), work.tx, work.branch, fact_id, made.fact, "human", work.salt()
            )
        )
        if blobs:
            line.put_vectors([made.fact], blobs)
        return Beliefs(view).fact(made.fact, work.at)


def _corrected(old: FactRow, state: StateRow, value: Json, text: str) -> Proposal:
    return Proposal(
        subject=old.subject,
        attribute=old.attribute,
        value=value,
        text=text,
        kind=FactKind(old.kind),
        scope=Scope(old.scope),
        cardinality=Cardinality(old.cardinality),
        authority=Authority.HUMAN_EDITED,
        confidence=1.0,
        valid_from=old.valid_from,
        valid_to=old.valid_to,
        precision=old.precision,
        pinned=bool(state.pinned),
        expires_at=state.expires_at,
        version_of=old.id,
        confirmed_at=state.confirmed_at,
    )


def retract(line: Line, target: str, reason: str) -> Done:
    """Take a fact or an episode back; what loses its support is suspended, what it replaced returns."""
    with line.write("retract", checks.reason(reason)) as (work, view):
        state = _state(view, target)
        if state.kind not in ("fact", "episode"):
            raise InvalidRequest(f"{target} is a {state.kind}; a fact or an episode is retracted")
        if state.status == Status.RETRACTED:
            raise WrongState(f"{target} is retracted already")
        work.set_state(target, state.kind, state, status=Status.RETRACTED, flag=state.status)
        tx = work.tx
    return _done(line, tx, "retract", (target,))


def restore(line: Line, target: str, reason: str) -> Done:
    """Undo a retraction, a suspension or a correction of a fact or episode."""
    with line.write("restore", checks.reason(reason)) as (work, view):
        state = _state(view, target)
        if state.status in (Status.ACTIVE, Status.OPEN, Status.RESOLVED):
            raise WrongState(f"{target} is {state.status}; there is nothing to restore")
        changed = [target]
        if state.status == Status.CORRECTED and state.cause:
            made = view.state(state.cause)
            if made is not None and made.status == Status.ACTIVE:
                work.set_state(state.cause, "fact", made, status=Status.RETRACTED, flag="active")
                changed.append(state.cause)
        work.set_state(target, state.kind, state, status=Status.ACTIVE, flag="", cause="")
        tx = work.tx
    return _done(line, tx, "restore", tuple(changed))


def pin(line: Line, fact_id: str, pinned: bool, reason: str) -> Done:
    """Let a fact surface before all others, or no longer."""
    with line.write("pin" if pinned else "unpin", checks.reason(reason)) as (work, view):
        beliefs = Beliefs(view)
        _fact(beliefs, fact_id)
        work.set_state(fact_id, "fact", beliefs.states[fact_id], pinned=int(pinned))
        tx = work.tx
    return _done(line, tx, "pin", (fact_id,))


def expire(line: Line, fact_id: str, at: datetime | None, reason: str) -> Done:
    """Let a fact hold only until `at` (now by default)."""
    moment = None if at is None else to_us(at)
    with line.write("expire", checks.reason(reason)) as (work, view):
        beliefs = Beliefs(view)
        row = _fact(beliefs, fact_id)
        end = work.at if moment is None else moment
        if end <= row.valid_from:
            raise InvalidRequest(f"{fact_id} holds only from later on", hint="retract it instead")
        work.set_state(fact_id, "fact", beliefs.states[fact_id], expires_at=end)
        tx = work.tx
    return _done(line, tx, "expire", (fact_id,))


def resolve(line: Line, conflict_id: str, choice: str, reason: str) -> Done:
    """Settle a conflict: the id of the fact that holds, or `both` to let them stand together."""
    with line.write("resolve", checks.reason(reason)) as (work, view):
        row = view.store.newest(ConflictRow, {"id": conflict_id})
        state = view.state(conflict_id)
        if row is None or state is None:
            raise NotFound(f"there is no conflict {conflict_id} on this branch")
        if state.status != Status.OPEN:
            raise WrongState(f"conflict {conflict_id} is {state.status} already")
        members = row.members.split()
        if choice != "both" and choice not in members:
            raise InvalidRequest(
                f"{choice} is not part of conflict {conflict_id}",
                hint=f"choose one of: both, {', '.join(members)}",
            )
        changed = [] if choice == "both" else _lose(work, view, members, choice)
        work.set_state(conflict_id, "conflict", state, status=Status.RESOLVED, cause=choice)
        tx = work.tx
    return _done(line, tx, "resolve", tuple(changed))


def _lose(work: Unit, view: View, members: Sequence[str], winner: str) -> list[str]:
    """An older loser ended when the winner began; a younger one was never so."""
    beliefs = Beliefs(view)
    chosen = _fact(beliefs, winner)
    losers = [row for row in beliefs.load(members) if row.id != winner]
    changed = []
    for row in losers:
        state = beliefs.states[row.id]
        if state.status != Status.ACTIVE:
            continue
        if row.valid_from < chosen.valid_from:
            work.set_state(
                row.id, "fact", state, ended_at=chosen.valid_from, ended_by=winner, cause=winner
            )
        else:
            work.set_state(
                row.id, "fact", state, status=Status.RETRACTED, flag="active", cause=winner
            )
        work.put(
            SupersessionRow(
                new_id("sup"), work.tx, work.branch, row.id, winner, "human", work.salt()
            )
        )
        changed.append(row.id)
    return changed


def revert(line: Line, tx: int, reason: str) -> Done:
    """Undo one transaction: what it made is retracted, what it changed is as before.

    What was changed again since is left alone and listed as skipped.

    Raises:
        NotFound: this branch has no such transaction.
        WrongState: the transaction recorded what happened outside and cannot be undone.
    """
    with line.write("revert", checks.reason(reason) or f"revert of transaction {tx}") as (
        work,
        view,
    ):
        txn = view.store.newest(Txn, {"tx": tx})
        if txn is None or not view.sees(txn) or txn.tx == work.tx:
            raise NotFound(f"this branch has no transaction {tx}")
        if txn.kind in ("erase", "create", "watermark", "fork", "restore_machine", "effect"):
            raise WrongState(f"transaction {tx} is of kind {txn.kind} and cannot be reverted")
        changed, skipped = _undo(work, view, tx)
        made = work.tx
    return _done(line, made, "revert", tuple(changed), tuple(skipped))


def _undo(work: Unit, view: View, tx: int) -> tuple[list[str], list[str]]:
    earlier = View(view.store, view.branch, tx - 1)
    written = view.seen(view.store.select(StateRow, {"tx": tx}))
    ids = list(dict.fromkeys(row.object for row in written))
    now, then = view.states(ids), earlier.states(ids)
    skipped = [i for i in ids if now[i].tx != tx]
    needed = _rests_on(view, skipped)
    changed = []
    for object_id in ids:
        state, before = now[object_id], then.get(object_id)
        if state.tx != tx or object_id in needed:
            continue
        changed.append(object_id)
        if before is None:
            gone = Status.RESOLVED if state.kind == "conflict" else Status.RETRACTED
            work.set_state(object_id, state.kind, state, status=gone, flag="", cause="revert")
        else:
            work.set_state(object_id, state.kind, before)
    for row in view.seen(view.store.select(EvidenceRow, {"tx": tx})):
        if row.fact not in skipped:
            work.set_state(row.id, "evidence", None, status=Status.RETRACTED, cause="revert")
    return changed, skipped


def _rests_on(view: View, facts: Sequence[str]) -> set[str]:
    """Return the episodes behind facts: they cannot be undone while the facts stay."""
    return {e.episode for e in view.seen(view.store.select(EvidenceRow, {"fact": list(facts)}))}


def _fact(beliefs: Beliefs, fact_id: str) -> FactRow:
    found = beliefs.load([fact_id])
    if not found:
        raise NotFound(f"there is no fact {fact_id} on this branch", fact=fact_id)
    return found[0]


def _believed(beliefs: Beliefs, fact_id: str) -> None:
    status = beliefs.states[fact_id].status
    if status != Status.ACTIVE:
        raise WrongState(f"{fact_id} is {status}; only an active fact takes part in this")


def _state(view: View, target: str) -> StateRow:
    found = view.state(target)
    if found is None:
        raise NotFound(f"there is nothing called {target} on this branch", target=target)
    return found


def _done(
    line: Line, tx: int, kind: str, changed: tuple[str, ...], skipped: tuple[str, ...] = ()
) -> Done:
    """Describe a finished write; what else changed was suspended or revived by it."""
    states = line.store.select(StateRow, {"tx": tx})
    rest = [s for s in states if s.object not in changed and s.kind == "fact"]
    return Done(
        tx=tx,
        kind=kind,
        changed=changed,
        suspended=tuple(s.object for s in rest if s.status == Status.SUSPENDED),
        revived=_returned(line, tx, changed, [s.object for s in rest if s.status == Status.ACTIVE]),
        skipped=skipped,
    )


def _returned(line: Line, tx: int, changed: Sequence[str], woken: Sequence[str]) -> tuple[str, ...]:
    """Facts that hold now and did not before: revived by support, or no longer displaced."""
    before, after = line.beliefs(tx - 1), line.beliefs(tx)
    now = line.now_us() + 1
    found = list(woken)
    for row in after.load(changed):
        before.load([row.id])
        held = {c.id for c in before.holders(row.key, now)}
        found += [c.id for c in after.holders(row.key, now) if c.id not in held]
    return tuple(i for i in dict.fromkeys(found) if i not in changed)
