"""The ledger of effects on the outside world: noted once under a key, never taken back by a restore."""

from __future__ import annotations

from torpor.base.ids import new_id
from torpor.errors import NotFound, WrongState
from torpor.memory import checks
from torpor.memory.chain import id_digest
from torpor.memory.line import Line
from torpor.memory.rows import (
    EffectRow,
)
from torpor.memory.store import Range
from torpor.memory.times import to_time
from torpor.model_memory import (
    Effect,
)

BY_PARENT = "parent:"


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
    return [_effect(row, fresh=False) for row in latest_effects(line, line.agent, None)]


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
    inherited = row.outcome.startswith(BY_PARENT)
    outcome = row.outcome.removeprefix(BY_PARENT)
    by = "parent" if inherited else row.agent
    return Effect(row.key, row.what, outcome, to_time(row.at), by, fresh)


def latest_effects(line: Line, agent: str, until: int | None) -> list[EffectRow]:
    """Return the last step of each effect of an agent, of those noted by transaction `until`."""
    newest: dict[str, EffectRow] = {}
    for row in line.store.select(EffectRow, {"agent": agent, "tx": Range(high=until)}):
        newest[row.key] = row
    return list(newest.values())


def effects_since(line: Line, tx: int) -> tuple[str, ...]:
    """Return the keys of effects noted after a transaction."""
    rows = line.store.select(EffectRow, {"agent": line.agent, "tx": Range(low=tx + 1)})
    return tuple(dict.fromkeys(r.key for r in rows))
