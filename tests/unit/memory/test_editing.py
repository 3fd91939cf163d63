from __future__ import annotations

import pytest

from tests.unit.memory.clock import FakeClock, day
from torpor.errors import InvalidRequest, LimitExceeded, NotFound, WrongState
from torpor.memory import Authority, Fact, Space, Status, reading


def said(mem: Space, value: str, n: float, **more: object) -> Fact:
    return mem.remember(
        "user", "home", value, valid_from=day(n), authority=Authority.USER_SAID, **more  # type: ignore[arg-type]
    )  # fmt: skip


def current(mem: Space) -> set[object]:
    return {f.value for f in mem.facts("user", "home")}


@pytest.fixture
def mem(mem: Space, clock: FakeClock) -> Space:
    clock.advance(days=100)
    return mem


def test_a_newer_claim_supersedes_and_the_old_one_is_history(mem: Space) -> None:
    old, new = said(mem, "Rome", 1), said(mem, "Oslo", 5)
    assert current(mem) == {"Oslo"}
    found = mem.fact(old.id)
    assert (found.status, found.valid_to) == (Status.SUPERSEDED, day(5))
    assert {f.value for f in mem.facts("user", "home", valid_at=day(3))} == {"Rome"}
    link = mem.explain(old).chain[0]
    assert (link.old, link.new, link.rule) == (old.id, new.id, "key_update")


def test_a_late_arrival_becomes_history(mem: Space) -> None:
    said(mem, "Oslo", 5)
    late = said(mem, "Rome", 1)
    assert current(mem) == {"Oslo"}
    assert (late.status, late.valid_to) == (Status.SUPERSEDED, day(5))
    assert mem.explain(late).chain[0].rule == "late_arrival"


def test_a_lower_authority_opens_a_conflict_and_both_are_shown(mem: Space) -> None:
    old = said(mem, "Rome", 1)
    new = mem.remember("user", "home", "Oslo", valid_from=day(5))
    assert (mem.fact(old.id).status, new.status) == (Status.DISPUTED, Status.DISPUTED)
    assert current(mem) == {"Rome", "Oslo"}
    (conflict,) = mem.conflicts()
    assert {m.id for m in conflict.members} == {old.id, new.id}


@pytest.mark.parametrize("pick", [0, 1])
def test_a_conflict_is_resolved_by_choosing(mem: Space, pick: int) -> None:
    facts = [said(mem, "Rome", 1), mem.remember("user", "home", "Oslo", valid_from=day(5))]
    (conflict,) = mem.conflicts()
    mem.resolve(conflict.id, facts[pick].id, "the user confirmed")
    assert current(mem) == {facts[pick].value}
    assert mem.conflicts() == []
    before = {f.value for f in mem.facts("user", "home", valid_at=day(3))}
    assert before == {"Rome"}, "before the dispute nothing changes"
    with pytest.raises(WrongState):
        mem.resolve(conflict.id, facts[pick].id)
    assert [c.status for c in mem.conflicts(include_resolved=True)] == [Status.RESOLVED]


def test_a_conflict_may_be_left_standing(mem: Space) -> None:
    said(mem, "Rome", 1)
    mem.remember("user", "home", "Oslo", valid_from=day(5))
    mem.resolve(mem.conflicts()[0].id, "both")
    assert {f.status for f in mem.facts("user", "home")} == {Status.ACTIVE}
    assert mem.conflicts() == []


def test_a_conflict_takes_only_its_own_members(mem: Space) -> None:
    said(mem, "Rome", 1)
    mem.remember("user", "home", "Oslo", valid_from=day(5))
    with pytest.raises(InvalidRequest):
        mem.resolve(mem.conflicts()[0].id, "fact_other")
    with pytest.raises(NotFound):
        mem.resolve("cf_missing", "both")


def test_a_conflict_that_settled_itself_is_not_shown(mem: Space) -> None:
    said(mem, "Rome", 1)
    mem.remember("user", "home", "Oslo", valid_from=day(5))
    said(mem, "Bern", 9)
    assert mem.conflicts() == []
    assert current(mem) == {"Bern"}


def test_a_third_voice_joins_the_conflict(mem: Space) -> None:
    said(mem, "Rome", 1)
    mem.remember("user", "home", "Oslo", valid_from=day(5))
    mem.remember("user", "home", "Bern", valid_from=day(5))
    (conflict,) = mem.conflicts()
    assert len(conflict.members) == 3


def test_a_correction_was_true_all_along(mem: Space) -> None:
    wrong = said(mem, "Rome", 1)
    right = mem.correct(wrong.id, "Roma", "misheard")
    assert right.authority is Authority.HUMAN_EDITED
    assert (right.valid_from, right.version_of) == (day(1), wrong.id)
    assert {f.value for f in mem.facts("user", "home", valid_at=day(3))} == {"Roma"}
    assert mem.fact(wrong.id).status is Status.CORRECTED
    before = mem.tx - 1
    assert {f.value for f in mem.facts("user", "home", known_at=before)} == {"Rome"}
    assert [c.reason for c in mem.history(wrong.id) if c.kind == "correct"] == ["misheard"] * 3


def test_a_correction_of_the_past_leaves_the_present(mem: Space) -> None:
    old = said(mem, "Rome", 1)
    said(mem, "Oslo", 5)
    mem.correct(old.id, "Bern", "it was Bern")
    assert current(mem) == {"Oslo"}
    assert {f.value for f in mem.facts("user", "home", valid_at=day(3))} == {"Bern"}


def test_a_corrected_value_does_not_come_back_by_being_said_again(
    mem: Space, clock: FakeClock
) -> None:
    wrong = said(mem, "Rome", 1)
    mem.correct(wrong.id, "Roma", "misheard")
    late = said(mem, "Rome", 50)
    assert late.status is Status.DISPUTED
    (conflict,) = mem.conflicts()
    assert current(mem) == {"Roma", "Rome"}
    assert len(conflict.members) == 2


def test_a_new_value_of_the_user_is_a_change_even_after_a_correction(
    mem: Space, clock: FakeClock
) -> None:
    wrong = said(mem, "Rome", 1)
    mem.correct(wrong.id, "Roma", "misheard")
    clock.advance(days=10)
    mem.remember("user", "home", "Oslo", authority="user_said")
    assert current(mem) == {"Oslo"}
    assert mem.conflicts() == []


def test_a_fact_is_corrected_once(mem: Space) -> None:
    wrong = said(mem, "Rome", 1)
    right = mem.correct(wrong.id, "Roma", "x")
    with pytest.raises(WrongState) as caught:
        mem.correct(wrong.id, "Bern", "y")
    assert right.id in str(caught.value.hint)
    with pytest.raises(InvalidRequest):
        mem.correct(right.id, "roma", "the same")
    with pytest.raises(NotFound):
        mem.correct("fact_missing", 1, "z")


def test_retracting_a_fact_brings_back_what_it_replaced(mem: Space) -> None:
    said(mem, "Rome", 1)
    new = said(mem, "Oslo", 5)
    done = mem.retract(new.id, "a joke")
    assert current(mem) == {"Rome"}
    assert len(done.revived) == 1
    mem.restore(new.id)
    assert current(mem) == {"Oslo"}


def test_retracting_an_episode_takes_what_rests_on_it(mem: Space) -> None:
    one, two = mem.record("I live in Oslo."), mem.record("Yes, Oslo.")
    fact = mem.remember("user", "home", "Oslo", evidence=[one.id, two.id])
    child = mem.remember("user", "country", "Norway", derived_from=[fact.id])
    mem.retract(one.id, "not said")
    assert mem.fact(fact.id).status is Status.ACTIVE, "one leg is left"
    done = mem.retract(two.id, "not said")
    assert set(done.suspended) == {fact.id, child.id}
    assert mem.facts() == []
    done = mem.restore(two.id)
    assert set(done.revived) == {fact.id, child.id}
    assert {f.value for f in mem.facts()} == {"Oslo", "Norway"}


def test_what_was_made_from_a_fact_goes_when_the_fact_is_replaced(mem: Space) -> None:
    rome = said(mem, "Rome", 1)
    country = mem.remember("user", "country", "Italy", derived_from=[rome.id])
    tongue = mem.remember("user", "tongue", "Italian", derived_from=[country.id])
    oslo = said(mem, "Oslo", 5)
    assert {mem.fact(f.id).status for f in (country, tongue)} == {Status.SUSPENDED}
    mem.retract(oslo.id, "no")
    assert {mem.fact(f.id).status for f in (country, tongue)} == {Status.ACTIVE}
    mem.correct(rome.id, "Bern", "misheard")
    assert {mem.fact(f.id).status for f in (country, tongue)} == {Status.SUSPENDED}


def test_a_derived_fact_is_as_old_as_its_oldest_source(mem: Space) -> None:
    a = mem.remember("x", "a", 1, valid_from=day(1))
    b = mem.remember("x", "b", 2, valid_from=day(50))
    both = mem.remember("x", "sum", 3, kind="summary", derived_from=[a.id, b.id])
    assert both.valid_from == day(50)
    assert both.confirmed_at == day(1)


def test_supersede_ends_a_fact_of_another_attribute(mem: Space) -> None:
    old = mem.remember("user", "landline", "1", valid_from=day(1))
    new = mem.remember("user", "mobile", "2", valid_from=day(5))
    mem.supersede(old.id, new.id, "no landline any more")
    assert mem.fact(old.id).status is Status.SUPERSEDED
    assert mem.facts("user", "landline") == []
    assert [f.value for f in mem.facts("user", "landline", valid_at=day(3))] == ["1"]
    mem.retract(new.id, "wrong")
    assert [f.value for f in mem.facts("user", "landline")] == ["1"]
    with pytest.raises(InvalidRequest):
        mem.supersede(old.id, old.id, "itself")


def test_supersede_does_not_go_back_in_time(mem: Space) -> None:
    old = mem.remember("a", "x", 1, valid_from=day(5))
    new = mem.remember("b", "y", 2, valid_from=day(1))
    with pytest.raises(InvalidRequest, match="from before"):
        mem.supersede(old.id, new.id, "?")


def test_an_expired_fact_is_over_and_what_it_replaced_stays_over(
    mem: Space, clock: FakeClock
) -> None:
    said(mem, "Rome", 1)
    new = said(mem, "Oslo", 5)
    clock.advance(days=1)
    mem.expire(new.id, reason="moved out")
    assert current(mem) == set()
    assert mem.fact(new.id).status is Status.EXPIRED
    timed = mem.remember("user", "mood", "good", expires_at=clock.now().replace(year=2027))
    assert timed.status is Status.ACTIVE
    clock.advance(days=400)
    assert mem.fact(timed.id).status is Status.EXPIRED
    with pytest.raises(InvalidRequest):
        mem.expire(timed.id, at=day(-9))


def test_a_bounded_claim_gives_the_place_back(mem: Space) -> None:
    said(mem, "Rome", 1)
    said(mem, "Berlin", 10, valid_to=day(20))
    assert current(mem) == {"Rome"}
    assert {f.value for f in mem.facts("user", "home", valid_at=day(15))} == {"Berlin"}


def test_a_revert_undoes_one_transaction(mem: Space) -> None:
    said(mem, "Rome", 1)
    said(mem, "Oslo", 5)
    done = mem.revert(mem.tx, "wrong")
    assert current(mem) == {"Rome"}
    assert len(done.changed) >= 1
    right = mem.correct(mem.facts("user")[0].id, "Bern", "misheard")
    mem.revert(mem.tx)
    assert current(mem) == {"Rome"}
    assert mem.fact(right.id).status is Status.RETRACTED


def test_a_revert_leaves_what_was_changed_since(mem: Space) -> None:
    fact = said(mem, "Rome", 1)
    made = mem.tx
    mem.pin(fact.id)
    done = mem.revert(made)
    assert fact.id in done.skipped
    assert current(mem) == {"Rome"}
    with pytest.raises(NotFound):
        mem.revert(9999)


def test_what_has_no_undo_says_so(mem: Space) -> None:
    fact = said(mem, "Rome", 1)
    with pytest.raises(WrongState):
        mem.restore(fact.id)
    mem.retract(fact.id, "x")
    with pytest.raises(WrongState):
        mem.retract(fact.id, "x")
    with pytest.raises(WrongState):
        mem.supersede(fact.id, said(mem, "Oslo", 5).id, "x")
    with pytest.raises(NotFound):
        mem.retract("nothing", "x")
    with pytest.raises(NotFound):
        mem.pin("nothing")


def test_restoring_a_corrected_fact_takes_the_correction_back(mem: Space) -> None:
    wrong = said(mem, "Rome", 1)
    right = mem.correct(wrong.id, "Bern", "misheard")
    mem.restore(wrong.id, "it was right after all")
    assert current(mem) == {"Rome"}
    assert mem.fact(right.id).status is Status.RETRACTED


def test_a_timeline_is_bounded(mem: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_MOMENTS", 5)
    for n in range(5):
        mem.remember("job", "step", n, valid_from=day(n - 9))
    assert [i.fact.value for i in mem.timeline("job")] == [0, 1, 2, 3, 4]
    mem.remember("job", "step", 5)
    with pytest.raises(LimitExceeded, match="at most 5"):
        mem.timeline("job")
    assert [f.value for f in mem.facts("job")] == [5]


def test_the_timeline_and_the_diff_tell_the_story(mem: Space) -> None:
    said(mem, "Rome", 1)
    start = mem.tx
    said(mem, "Oslo", 5)
    told = [(i.fact.value, i.valid_from, i.valid_to) for i in mem.timeline("user")]
    assert told == [("Rome", day(1), day(5)), ("Oslo", day(5), None)]
    change = mem.diff(start, mem.tx)
    assert [f.value for f in change.added] == ["Oslo"]
    assert [f.value for f in change.removed] == ["Rome"]
    back = mem.diff(mem.tx, start)
    assert [f.value for f in back.added] == ["Rome"]
    lines = mem.history(subject="user", attribute="home")
    assert [c.tx for c in lines] == sorted(c.tx for c in lines)
    assert {c.value for c in lines} == {"Rome", "Oslo"}
    with pytest.raises(InvalidRequest):
        mem.history()


def test_words_taken_back_do_not_confirm(mem: Space) -> None:
    first = mem.record("I live in Rome.", occurred_at=day(1))
    again = mem.record("Still in Rome.", occurred_at=day(8))
    fact = mem.remember("user", "home", "Rome", evidence=[first.id])
    mem.remember("user", "home", "Rome", evidence=[again.id])
    said(mem, "Oslo", 4)
    assert current(mem) == {"Rome"}, "it was confirmed after Oslo"
    mem.retract(again.id, "someone else said it")
    assert mem.fact(fact.id).confirmed_at == day(1)
    assert current(mem) == {"Oslo"}


def test_facts_that_only_support_each_other_do_not_stand(mem: Space) -> None:
    root = mem.remember("x", "root", 1)
    one = mem.remember("x", "one", 1, derived_from=[root.id])
    two = mem.remember("x", "two", 2, derived_from=[one.id])
    mem.remember("x", "one", 1, derived_from=[two.id])
    done = mem.retract(root.id, "no")
    assert set(done.suspended) == {one.id, two.id}
    assert set(mem.restore(root.id).revived) == {one.id, two.id}
