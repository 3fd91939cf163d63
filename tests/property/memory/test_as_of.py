"""What holds at any time, as known at any transaction, against a brute-force oracle over random histories."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.memory.oracle import Oracle, Told, last_said
from tests.property.memory.profile import many
from tests.unit.memory.clock import FakeClock, day
from torpor.errors import TorporError
from torpor.memory import Memory, Space

pytestmark = pytest.mark.timeout(7200)

DAYS = st.integers(0, 12)
VALUES = st.sampled_from(["red", "green", "blue"])
AUTHORITIES = st.sampled_from(["agent_inferred", "tool_observed", "user_said", "human_edited"])

REMEMBER = st.tuples(st.just("remember"), VALUES, DAYS, AUTHORITIES, st.none() | st.integers(1, 5))
EDIT = st.one_of(
    st.tuples(st.just("correct"), st.integers(0, 9), VALUES),
    st.tuples(st.just("retract"), st.integers(0, 9)),
    st.tuples(st.just("restore"), st.integers(0, 9)),
    st.tuples(st.just("expire"), st.integers(0, 9), DAYS),
)
HISTORIES = st.lists(st.one_of(REMEMBER, REMEMBER, EDIT), min_size=1, max_size=12)

_number = itertools.count()


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    folder: Path = tmp_path_factory.mktemp("as-of")
    with Memory.open(folder / "m.db", clock=FakeClock(day(20))) as opened:
        yield opened


def run(space: Space, subject: str, operations: list[tuple[Any, ...]]) -> Oracle:
    """Carry out a history on the memory and on the oracle."""
    oracle = Oracle()
    order: list[str] = []
    for name, *rest in operations:
        before = space.tx
        try:
            if name == "remember":
                _remember(space, subject, oracle, order, *rest)
            elif order:
                _edit(space, oracle, order, name, order[rest[0] % len(order)], *rest[1:])
        except TorporError:
            assert space.tx == before, "a refused call left a transaction"
            continue
        oracle.commit(space.tx)
    return oracle


def _remember(
    space: Space,
    subject: str,
    oracle: Oracle,
    order: list[str],
    value: str,
    since: int,
    authority: str,
    length: int | None,
) -> None:
    until = None if length is None else since + length
    fact = space.remember(
        subject, "colour", value, valid_from=day(since), authority=authority,
        valid_to=None if until is None else day(until),
    )  # fmt: skip
    known = oracle.now.get(fact.id)
    if known is None:
        oracle.now[fact.id] = Told(value, since, until, authority, since)
        order.append(fact.id)
        return
    assert known.value == value
    assert value in oracle.values(space.tx - 1, since), "confirmed what did not hold"
    assert RANK[known.authority] >= RANK[authority]
    if RANK[known.authority] == RANK[authority]:
        known.confirmed = max(known.confirmed, since)


RANK = {"agent_inferred": 1, "tool_observed": 2, "user_said": 3, "human_edited": 3}


def _edit(
    space: Space, oracle: Oracle, order: list[str], name: str, fact_id: str, *rest: Any
) -> None:
    told = oracle.now[fact_id]
    if name == "correct":
        made = space.correct(fact_id, rest[0], "it was never so")
        told.status, told.child = "corrected", made.id
        oracle.now[made.id] = Told(
            rest[0], told.since, told.until, "human_edited", told.confirmed, end=told.end,
            parent=fact_id,
        )  # fmt: skip
        order.append(made.id)
    elif name == "retract":
        space.retract(fact_id, "taken back")
        told.status = "retracted"
    elif name == "restore":
        space.restore(fact_id)
        child = oracle.now.get(told.child) if told.child else None
        if told.status == "corrected" and child is not None and child.status == "active":
            child.status = "retracted"
        told.status, told.child = "active", None
    else:
        space.expire(fact_id, at=day(rest[0]))
        told.end = rest[0]


@many()
@given(HISTORIES, st.lists(st.tuples(st.integers(0, 13), st.integers(0, 12)), max_size=5))
def test_what_holds_is_what_the_oracle_says(
    memory: Memory, operations: list[tuple[Any, ...]], asked: list[tuple[int, int]]
) -> None:
    space = memory.space(agent="one")
    subject = f"thing-{next(_number)}"
    start = space.tx
    oracle = run(space, subject, operations)
    for at, back in [(12, 0), *asked]:
        tx = max(start, space.tx - back)
        found = space.facts(subject, "colour", valid_at=day(at), known_at=tx)
        held = {f.value for f in found}
        assert held == oracle.values(tx, at)
        assert len(found) == len(held), "one value is given by one fact"
        assert all((f.status == "disputed") == (len(held) > 1) for f in found)


@many(0.5)
@given(HISTORIES)
def test_the_timeline_agrees_with_every_moment(
    memory: Memory, operations: list[tuple[Any, ...]]
) -> None:
    space = memory.space(agent="two")
    subject = f"thing-{next(_number)}"
    oracle = run(space, subject, operations)
    intervals = space.timeline(subject)
    for at in range(14):
        moment = day(at)
        held = {
            i.fact.value
            for i in intervals
            if i.valid_from <= moment and (i.valid_to is None or moment < i.valid_to)
        }
        assert held == oracle.values(space.tx, at)


@many(0.5)
@given(st.lists(st.tuples(VALUES, DAYS), min_size=1, max_size=10), DAYS)
def test_with_one_authority_the_last_word_wins(
    memory: Memory, claims: list[tuple[str, int]], at: int
) -> None:
    space = memory.space(agent="three")
    subject = f"thing-{next(_number)}"
    oracle = Oracle()
    order: list[str] = []
    for value, since in claims:
        _remember(space, subject, oracle, order, value, since, "user_said", None)
        oracle.commit(space.tx)
    held = {f.value for f in space.facts(subject, "colour", valid_at=day(at))}
    assert held == last_said(oracle.now, at)


@many(0.3)
@given(st.permutations([("red", 1), ("green", 4), ("blue", 7), ("red", 9)]))
def test_the_order_of_arrival_does_not_matter(
    memory: Memory, claims: list[tuple[str, int]]
) -> None:
    space = memory.space(agent="four")
    subject = f"thing-{next(_number)}"
    for value, since in claims:
        space.remember(subject, "colour", value, valid_from=day(since), authority="user_said")
    for at, want in ((0, set()), (2, {"red"}), (5, {"green"}), (8, {"blue"}), (11, {"red"})):
        assert {f.value for f in space.facts(subject, "colour", valid_at=day(at))} == want
    assert space.conflicts() == []


@many(0.3)
@given(HISTORIES)
def test_the_diff_of_two_transactions_is_what_changed(
    memory: Memory, operations: list[tuple[Any, ...]]
) -> None:
    space = memory.space(agent="five")
    subject = f"thing-{next(_number)}"
    start = space.tx
    run(space, subject, operations)
    end = space.tx
    for middle in range(start, end + 1):
        before = {f.id for f in space.facts(subject, valid_at=day(12), known_at=start)}
        after = {f.id for f in space.facts(subject, valid_at=day(12), known_at=middle)}
        found = space.diff(start, middle, valid_at=day(12))
        assert {f.id for f in found.added} == after - before
        assert {f.id for f in found.removed} == before - after
