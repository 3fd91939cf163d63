"""Memory follows its machine: after a rollback, a restore as a new machine, or a fork.

All of one move is one transaction, and the move's generation is noted in it: done again, it does nothing. So
whoever asks for it may die at any point and ask again.
"""

from __future__ import annotations

import json
from typing import Any

from torpor.errors import Conflict, WrongState
from torpor.memory import machine
from torpor.memory.memory import Memory
from torpor.memory.rows import Head
from torpor.memory.store import Store
from torpor.model_memory import Followed, MachineMove, Move, Policy, Watermark

_ACTOR = "system"


def follow(memory: Memory, move: MachineMove) -> Followed:
    """Bring an agent's memory in line with its machine.

    Raises:
        Conflict: a machine that was made from another agent's snapshot is named as an agent that exists.
    """
    store = memory.store
    with store.transaction():
        seat = _seat(store, move.sandbox)
        if int(seat.get("generation", 0)) >= move.generation:
            return Followed(move.agent, _epoch(store, move.agent), str(seat.get("note", "")))
        note = _followed(memory, move)
        _take_seat(store, move.sandbox, {"generation": move.generation, "note": note})
        for other in move.supplants:
            _take_seat(store, other, {**_seat(store, other), "supplanted_by": move.sandbox})
        return Followed(move.agent, _epoch(store, move.agent), note)


def _followed(memory: Memory, move: MachineMove) -> str:
    """Do it and return what was done otherwise than asked for."""
    store, mark = memory.store, move.watermark
    head = store.newest(Head, {"agent": move.agent})
    if head is not None:
        if move.move is Move.ROLLBACK or mark.agent == move.agent or not mark.branch:
            return _put_back(memory, move.agent, mark, move.policy)
        raise Conflict(
            f"agent {move.agent!r} has a memory already, and the snapshot is of agent {mark.agent!r}",
            hint="give the new sandbox another `agent` in its metadata, or none",
            agent=move.agent,
        )
    if move.move is Move.ROLLBACK:
        return ""  # it has learned nothing yet
    useless = machine.why_useless(store, mark)
    if useless:
        return f"{useless}; its memory begins empty"
    if mark.branch:
        _child(memory, move)
    return ""


def _child(memory: Memory, move: MachineMove) -> None:
    """Give the new machine's agent a child branch of the memory that its snapshot's agent had, or has now."""
    parent = memory.line(move.watermark.agent, actor=_ACTOR)
    why = f"{move.move} of {move.watermark.snapshot} as {move.sandbox}"
    if move.policy is Policy.REWIND:
        machine.fork(parent, move.agent, move.watermark, why)
        return
    machine.fork(parent, move.agent, None, why)
    _put_back(memory, move.agent, move.watermark, move.policy)


def _put_back(memory: Memory, agent: str, mark: Watermark, policy: Policy) -> str:
    line = memory.line(agent, actor=_ACTOR)
    return machine.on_restore(line, mark, policy, f"the machine went to {mark.snapshot}").note


def check_new(memory: Memory, move: MachineMove) -> None:
    """Raise `Conflict` if a machine cannot be made as that agent, before anything of it is made."""
    head = memory.store.newest(Head, {"agent": move.agent})
    if head is None or not move.watermark.branch:
        return
    if move.move is Move.FORK or move.watermark.agent != move.agent:
        raise Conflict(
            f"agent {move.agent!r} has a memory already; a {move.move} of agent "
            f"{move.watermark.agent!r} would have two",
            hint="give the new sandbox another `agent` in its metadata, or none",
            agent=move.agent,
        )


def check_seat(memory: Memory, sandbox: str, agent: str) -> None:
    """Raise `WrongState` if another machine took the place of this one; call it inside the transaction."""
    taken = _seat(memory.store, sandbox).get("supplanted_by")
    if taken:
        raise WrongState(
            f"sandbox {sandbox} has no part in the memory of {agent!r} any more: "
            f"{taken} was restored in its place",
            hint="roll it back to a snapshot to make it the agent's machine again",
            sandbox_id=sandbox,
        )


def _epoch(store: Store, agent: str) -> int:
    head = store.newest(Head, {"agent": agent})
    return 0 if head is None else head.epoch


def _seat(store: Store, sandbox: str) -> dict[str, Any]:
    found = store.meta(f"seat:{sandbox}")
    return {} if found is None else dict(json.loads(found))


def _take_seat(store: Store, sandbox: str, seat: dict[str, Any]) -> None:
    store.set_meta(f"seat:{sandbox}", json.dumps(seat, sort_keys=True))
