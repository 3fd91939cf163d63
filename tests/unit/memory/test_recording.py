from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.unit.memory.clock import FakeClock, day
from torpor.errors import InvalidRequest, LimitExceeded, NotFound, WrongState
from torpor.memory import EpisodeInput, FactInput, Memory, SourceKind, Space, Status


def test_an_episode_is_kept_verbatim(mem: Space) -> None:
    text = "  Ünïcode, 'quotes' \"and\" \t tabs\nand lines; DROP TABLE episode; \u202e🙂 "
    made = mem.record(text, "tool", occurred_at=day(-3), session="s", subjects=["alice"])
    found = mem.episode(made.id)
    assert found == made
    assert found.content == text
    assert (found.source_kind, found.session, found.subjects) == (SourceKind.TOOL, "s", ("alice",))
    assert found.occurred_at == day(-3)
    assert found.occurred_at.tzinfo is UTC


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\x89PNG\r\n", InvalidRequest),
        ("nul\0inside", InvalidRequest),
        ("lone \ud800 surrogate", InvalidRequest),
        ("", InvalidRequest),
        ("   \n", InvalidRequest),
        (None, InvalidRequest),
        ("x" * ((1 << 20) + 1), LimitExceeded),
        ("é" * (600 << 10), LimitExceeded),
    ],
)
def test_content_that_cannot_be_kept_is_refused_and_nothing_is_written(
    mem: Space, content: Any, error: type[Exception]
) -> None:
    before = mem.tx
    with pytest.raises(error):
        mem.record(content)
    assert mem.tx == before
    assert mem.episodes() == []


def test_content_of_the_greatest_size_is_kept_and_found(mem: Space) -> None:
    text = "filler " * 149_000 + "needleword"
    made = mem.record(text)
    found = mem.recall("needleword")
    assert [i.id for i in found] == [made.id]
    assert "needleword" in found.items[0].text
    assert len(found.items[0].text) < 2000


def test_several_episodes_are_one_transaction_or_none(mem: Space) -> None:
    made = mem.record_many([EpisodeInput("one"), EpisodeInput("two")])
    assert len({e.tx for e in made}) == 1
    assert [e.seq for e in made] == [0, 1]
    with pytest.raises(InvalidRequest):
        mem.record_many([EpisodeInput("three"), EpisodeInput("")])
    assert len(mem.episodes()) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"source_kind": "rumour"},
        {"sensitivity": "top"},
        {"occurred_at": datetime(2026, 1, 1)},  # noqa: DTZ001  # without a zone on purpose
        {"session": "two\nlines"},
        {"subjects": "alice"},
    ],
)
def test_wrong_particulars_of_an_episode_are_refused(mem: Space, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        mem.record("something", **wrong)
    assert mem.episodes() == []


def test_a_fact_without_evidence_rests_on_an_episode_of_its_own(mem: Space) -> None:
    fact = mem.remember("billing", "database", "Postgres")
    told = mem.explain(fact)
    assert [q.text for q in told.evidence] == ["billing: database = Postgres"]
    assert told.fact.authority == "agent_inferred"
    assert mem.consolidate().items == (), "its own episode is not read again"


def test_a_fact_takes_its_authority_and_time_from_its_evidence(mem: Space) -> None:
    episode = mem.record("The port is 8080 now.", "tool", occurred_at=day(-2))
    fact = mem.remember("app", "port", 8080, evidence=[(episode.id, "port is 8080")])
    assert fact.authority == "tool_observed"
    assert fact.valid_from == day(-2)
    quote = mem.explain(fact).evidence[0]
    assert (quote.text, quote.start, quote.live) == ("port is 8080", 4, True)


def test_a_quote_that_is_not_in_the_episode_is_refused(mem: Space) -> None:
    episode = mem.record("The port is 8080 now.")
    before = mem.tx
    for quote in ("port is 9090", ""):
        with pytest.raises(InvalidRequest, match="quote"):
            mem.remember("app", "port", 9090, evidence=[(episode.id, quote)])
    assert mem.tx == before


def test_recalled_text_cannot_support_a_fact(mem: Space) -> None:
    episode = mem.record("The port is 8080.", "recalled")
    with pytest.raises(InvalidRequest, match="recalled"):
        mem.remember("app", "port", 8080, evidence=[episode.id])


def test_unknown_ids_are_not_found(mem: Space) -> None:
    with pytest.raises(NotFound):
        mem.remember("a", "b", 1, evidence=["ep_missing"])
    with pytest.raises(NotFound):
        mem.remember("a", "b", 1, derived_from=["fact_missing"])
    with pytest.raises(NotFound):
        mem.fact("fact_missing")
    with pytest.raises(NotFound):
        mem.episode("ep_missing")
    assert mem.facts() == []


def test_ids_and_numbers_that_cannot_be_are_refused(mem: Space) -> None:
    mem.remember("a", "b", 1)
    for ask in (
        lambda: mem.fact("fact_\ud800"),
        lambda: mem.revert(10**30),
        lambda: mem.diff(0, 10**30),
        lambda: mem.recall("b", k=2.5),  # type: ignore[arg-type]
        lambda: mem.timeline(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequest):
            ask()
    assert [f.value for f in mem.facts(known_at=10**30)] == [1]
    assert mem.recall("b", known_at=10**30).items


def test_a_time_that_could_never_be_read_is_refused(mem: Space) -> None:
    late = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
    with pytest.raises(InvalidRequest, match="1 to 9999"):
        mem.record("My home is Oslo.", occurred_at=late)
    mem.record("My city is Oslo since 900 years ago.", occurred_at=datetime(200, 1, 1, tzinfo=UTC))
    mem.consolidate()
    assert [(f.value, f.valid_from.year) for f in mem.facts()] == [
        ("Oslo since 900 years ago", 200)
    ]
    with pytest.raises(InvalidRequest, match="1 to 9999"):
        mem.recall("Oslo", valid_at=late)
    assert len(mem.episodes()) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": float("nan")},
        {"value": {"a": object()}},
        {"value": "nul \0"},
        {"value": json.loads("[" * 65 + "]" * 65)},
        {"value": json.loads('{"a":' * 400 + "1" + "}" * 400)},
        {"subject": ""},
        {"attribute": "two\nlines"},
        {"subject": "x" * 300},
        {"kind": "gossip"},
        {"confidence": 1.5},
        {"valid_from": day(2), "valid_to": day(1)},
        {"precision": "about"},
        {"evidence": "ep_1"},
        {"confidence": "high"},
        {"valid_from": "2026-01-01"},
        {"valid_from": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))},
        {"expires_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
    ],
)
def test_wrong_particulars_of_a_fact_are_refused(mem: Space, wrong: dict[str, Any]) -> None:
    before = mem.tx
    with pytest.raises((InvalidRequest, LimitExceeded)):
        mem.remember(**{"subject": "a", "attribute": "b", "value": 1, **wrong})
    assert mem.tx == before


def test_values_keep_their_type(mem: Space) -> None:
    for value in (None, True, 0, -1.5, "text", [1, "two"], {"k": [None]}):
        assert mem.remember("a", "b", value, cardinality="many").value == value


def test_the_same_claim_again_is_a_confirmation(mem: Space, clock: FakeClock) -> None:
    first = mem.remember("user", "home", "Rome", authority="user_said")
    clock.advance(days=10, seconds=1)
    again = mem.remember("User", "home ", "rome.", authority="user_said")
    assert again.id == first.id
    assert (again.confirmed_at - first.confirmed_at).days == 10
    assert len(mem.explain(first).evidence) == 2
    assert len(mem.facts()) == 1


def test_many_values_stand_beside_each_other(mem: Space) -> None:
    for language in ("Python", "Rust", "C"):
        mem.remember("user", "speaks", language, cardinality="many")
    assert {f.value for f in mem.facts("user", "speaks")} == {"Python", "Rust", "C"}
    assert mem.conflicts() == []


def test_facts_in_one_transaction_see_each_other(mem: Space) -> None:
    first, second = mem.remember_many(
        [
            FactInput("app", "port", 1, valid_from=day(-2)),
            FactInput("app", "port", 2, valid_from=day(-1)),
        ]
    )
    assert first.tx == second.tx
    assert mem.fact(first.id).status is Status.SUPERSEDED


def test_what_is_said_together_is_said_in_order(mem: Space, clock: FakeClock) -> None:
    before = mem.record("My zone is UTC.")
    many = mem.record_many([EpisodeInput(f"My zone is UTC+{n}.") for n in range(1, 9)])
    after = mem.record("My zone is CET.")
    times = [e.occurred_at for e in (before, *many, after)]
    assert times == sorted(set(times))
    mem.consolidate()
    assert [f.value for f in mem.facts("user", "zone")] == ["CET"]
    assert [i.fact.value for i in mem.timeline("user")][:3] == ["UTC", "UTC+1", "UTC+2"]
    mem.remember_many([FactInput("app", "port", n) for n in range(5)])
    assert [f.value for f in mem.facts("app", "port")] == [4]
    assert mem.conflicts() == []


def test_a_space_of_the_past_cannot_be_written(memory: Memory, mem: Space) -> None:
    mem.remember("app", "port", 1)
    then = memory.space(agent="hermes-1", known_at=mem.tx)
    mem.remember("app", "port", 2)
    assert [f.value for f in then.facts("app")] == [1]
    for write in (lambda: then.record("x"), lambda: then.retract("x", "y")):
        with pytest.raises(WrongState):
            write()


def test_known_at_takes_a_time(memory: Memory, clock: FakeClock) -> None:
    space = memory.space("timed")
    clock.advance(days=1)
    space.remember("app", "port", 1)
    between = clock.advance(days=1)
    clock.advance(days=1)
    space.remember("app", "port", 2)
    assert [f.value for f in space.facts("app", known_at=between)] == [1]
    assert [f.value for f in memory.space("timed", known_at=between).facts("app")] == [1]


def test_agents_in_one_file_do_not_see_each_other(memory: Memory) -> None:
    one, two = memory.space("one"), memory.space("two")
    fact = one.remember("app", "port", 1)
    episode = one.record("the app listens on port 1")
    assert two.facts() == []
    assert two.episodes() == []
    assert len(two.recall("app port")) == 0
    for call in (two.fact, two.explain, two.history):
        with pytest.raises(NotFound):
            call(fact.id)
    with pytest.raises(NotFound):
        two.retract(episode.id, "not mine")
    with pytest.raises(NotFound):
        two.explain(one.recall("port").id)
    assert two.remember("app", "port", 2).status is Status.ACTIVE
    assert [f.value for f in one.facts("app")] == [1]
