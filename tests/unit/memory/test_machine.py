from __future__ import annotations

import pytest

from tests.unit.memory.clock import FakeClock, day
from torpor.errors import Conflict, InvalidRequest, NotFound, WrongState
from torpor.memory import Memory, Policy, Space, Status


def values(space: Space) -> set[object]:
    return {f.value for f in space.facts()}


def installed(space: Space, package: str) -> str:
    fact = space.remember(
        "machine",
        "package",
        package,
        scope="machine",
        cardinality="many",
        authority="tool_observed",
    )
    return fact.id


def test_after_a_rollback_a_package_that_is_gone_is_not_believed(mem: Space) -> None:
    installed(mem, "curl")
    mem.watermark("snap_1")
    gone = installed(mem, "ripgrep")
    mem.remember("user", "name", "Ada", authority="user_said")
    done = mem.on_restore("snap_1")
    assert values(mem) == {"curl", "Ada"}
    assert (done.policy, done.suspended) == (Policy.RECONCILE, (gone,))
    assert mem.fact(gone).status is Status.SUSPENDED
    assert mem.fact(gone).flag == "machine"
    assert "ripgrep" not in str(mem.recall("which package is installed").items)
    assert mem.why_not(gone, "package").reason == "suspended"
    told = mem.episodes()[-1]
    assert (told.source_kind, told.epoch) == ("system", done.epoch)
    assert "snap_1" in told.content


def test_a_rollback_brings_the_machines_older_values_back(mem: Space, clock: FakeClock) -> None:
    old = mem.remember("machine", "python", "3.11", scope="machine", valid_from=day(-2))
    taken = installed(mem, "vim")
    mem.watermark("snap_1")
    new = mem.remember("machine", "python", "3.12", scope="machine", valid_from=day(-1))
    mem.retract(taken, "removed")
    done = mem.on_restore("snap_1")
    assert values(mem) == {"3.11", "vim"}
    assert set(done.revived) == {taken}
    assert mem.fact(new.id).status is Status.SUSPENDED
    assert mem.fact(old.id).status is Status.ACTIVE
    clock.advance(days=1)
    mem.remember("machine", "python", "3.13", scope="machine")
    assert "3.13" in values(mem)


def test_going_forward_again_brings_the_facts_again(mem: Space) -> None:
    mem.watermark("snap_1")
    installed(mem, "ripgrep")
    mem.watermark("snap_2")
    mem.on_restore("snap_1")
    assert values(mem) == set()
    done = mem.on_restore("snap_2")
    assert values(mem) == {"ripgrep"}
    assert len(done.revived) == 1


def test_task_facts_go_with_the_machine(mem: Space) -> None:
    mem.watermark("snap_1")
    mem.remember("plan", "step", "3 of 5 done", scope="task")
    mem.on_restore("snap_1")
    assert values(mem) == set()


def test_rewind_sees_nothing_later_and_can_be_undone(mem: Space) -> None:
    mem.remember("user", "name", "Ada")
    mem.watermark("snap_1")
    before = mem.branch
    mem.remember("user", "city", "Rome")
    mem.record("words from after the snapshot")
    done = mem.on_restore("snap_1", "rewind")
    assert done.branch == mem.branch != before
    assert values(mem) == {"Ada"}
    assert [e.source_kind for e in mem.episodes()][-1] == "system"
    assert len(mem.recall("words snapshot", kinds=["episode"])) == 0
    mem.remember("user", "pet", "cat")
    mem.switch(before, reason="the rewind was wrong")
    assert values(mem) == {"Ada", "Rome"}
    assert len(mem.recall("words snapshot", kinds=["episode"])) == 1
    with pytest.raises(WrongState):
        mem.switch(before)


def test_restoring_over_branches_brings_the_machine_of_the_snapshot(mem: Space) -> None:
    mem.watermark("snap_1")
    installed(mem, "curl")
    mem.watermark("snap_2")
    mem.on_restore("snap_1", "rewind")
    installed(mem, "wget")
    mem.remember("user", "name", "Ada")
    assert values(mem) == {"wget", "Ada"}
    mem.on_restore("snap_2", "reconcile")
    assert values(mem) == {"curl", "Ada"}


def test_keep_keeps_all_and_flags_the_machine(mem: Space, clock: FakeClock) -> None:
    mem.watermark("snap_1")
    fact = installed(mem, "ripgrep")
    mem.remember("user", "name", "Ada")
    done = mem.on_restore("snap_1", "keep")
    assert values(mem) == {"ripgrep", "Ada"}
    assert done.flagged == (fact,)
    item = next(i for i in mem.recall("package ripgrep") if i.id == fact)
    assert "not verified since the machine was restored" in item.note
    clock.advance(days=1)
    installed(mem, "ripgrep")
    assert mem.fact(fact).flag == ""


def test_a_writer_from_before_the_restore_is_refused(memory: Memory, mem: Space) -> None:
    guest = memory.space(agent="hermes-1", epoch=mem.epoch)
    guest.record("before")
    mem.watermark("snap_1")
    mem.on_restore("snap_1")
    before = mem.tx
    for write in (
        lambda: guest.record("from the dead"),
        lambda: guest.remember("a", "b", "c"),
        lambda: guest.effect("key", "what"),
        lambda: guest.on_restore("snap_1"),
    ):
        with pytest.raises(WrongState, match="epoch"):
            write()
    assert mem.tx == before
    assert len(guest.episodes()) == 2, "it may still read"
    memory.space(agent="hermes-1", epoch=mem.epoch).record("after")


def test_agents_may_give_their_snapshots_one_name(memory: Memory) -> None:
    one, two = memory.space("one"), memory.space("two")
    one.remember("machine", "package", "curl", scope="machine", cardinality="many")
    mark = one.watermark("before")
    two.remember("machine", "package", "git", scope="machine", cardinality="many")
    assert two.watermark("before").branch == two.branch != mark.branch
    two.remember("machine", "package", "jq", scope="machine", cardinality="many")
    two.on_restore("before")
    assert [f.value for f in two.facts("machine", "package")] == ["git"]
    child = one.fork("child")
    one.remember("machine", "package", "vim", scope="machine", cardinality="many")
    child.on_restore("before")
    assert [f.value for f in child.facts("machine", "package")] == ["curl"]
    assert child.watermark("before").branch == child.branch
    with pytest.raises(NotFound):
        memory.space("three").on_restore("before")


def test_a_watermark_is_set_once_and_must_exist(memory: Memory, mem: Space) -> None:
    first = mem.watermark("snap_1")
    mem.record("more")
    assert mem.watermark("snap_1") == first
    with pytest.raises(NotFound):
        mem.on_restore("snap_missing")
    with pytest.raises(InvalidRequest):
        mem.on_restore("snap_1", "forget")
    bound = memory.space(agent="hermes-1", branch=mem.branch)
    with pytest.raises(WrongState):
        bound.on_restore("snap_1")
    with pytest.raises(NotFound):
        memory.space(agent="hermes-1", branch="br_missing")


def test_effects_never_go_back(mem: Space) -> None:
    first = mem.effect("mail-1", "sent the invoice")
    assert first.fresh
    mem.watermark("snap_1")
    mem.finish_effect("mail-1", "delivered")
    mem.effect("mail-2", "sent the reminder")
    for policy in ("reconcile", "rewind", "keep"):
        done = mem.on_restore("snap_1", policy)
        assert set(done.effects_since) >= {"mail-1", "mail-2"}
        again = mem.effect("mail-2", "sent the reminder")
        assert not again.fresh
        assert {e.key: e.outcome for e in mem.effects()} == {
            "mail-1": "delivered",
            "mail-2": "started",
        }
    with pytest.raises(NotFound):
        mem.finish_effect("mail-9")


def test_a_fork_sees_its_parent_up_to_the_fork_and_then_its_own(mem: Space) -> None:
    mem.remember("user", "name", "Ada")
    mem.effect("mail-1", "sent the invoice")
    child = mem.fork("hermes-2")
    mem.remember("user", "city", "Rome")
    child.remember("user", "pet", "cat")
    assert values(mem) == {"Ada", "Rome"}
    assert values(child) == {"Ada", "cat"}
    assert [(e.key, e.by) for e in child.effects()] == [("mail-1", "parent")]
    assert not child.effect("mail-1", "sent the invoice").fresh
    with pytest.raises(WrongState):
        child.finish_effect("mail-1")
    with pytest.raises(Conflict):
        mem.fork("hermes-2")
    with pytest.raises(NotFound):
        mem.switch(child.branch)


def test_a_fork_from_a_snapshot_sees_the_snapshot(mem: Space) -> None:
    mem.remember("user", "name", "Ada")
    mem.watermark("snap_1")
    mem.remember("user", "city", "Rome")
    child = mem.fork("hermes-2", snapshot_id="snap_1")
    assert values(child) == {"Ada"}


def test_a_child_changes_what_it_inherited_for_itself_alone(mem: Space) -> None:
    fact = mem.remember("user", "name", "Ada", valid_from=day(-5))
    child = mem.fork("hermes-2")
    child.correct(fact.id, "Grace", "misheard")
    assert (values(mem), values(child)) == ({"Ada"}, {"Grace"})
    mem.retract(fact.id, "no")
    assert (values(mem), values(child)) == (set(), {"Grace"})
    assert [i.text for i in child.recall("user name")] == ["user: name = Grace"]


def test_facts_are_merged_back_with_their_words(mem: Space) -> None:
    mem.remember("user", "editor", "vim", valid_from=day(-5))
    child = mem.fork("hermes-2")
    episode = child.record("The user likes jazz.")
    jazz = child.remember("user", "likes", "jazz", evidence=[episode.id], cardinality="many")
    child.remember("user", "editor", "emacs", valid_from=day(-5), authority="tool_observed")
    installed(child, "ripgrep")
    plan = mem.plan_merge(child.branch)
    assert {f.value for f in plan.facts} == {"jazz", "emacs"}
    assert len(plan.conflicting) == 1
    mem.merge(plan, take=[jazz.id])
    assert values(mem) == {"vim", "jazz"}
    assert [q.text for q in mem.explain(jazz).evidence] == ["The user likes jazz."]  # type: ignore[arg-type]
    assert len(mem.recall("jazz")) >= 1
    mem.merge(mem.plan_merge(child.branch))
    assert values(mem) == {"vim", "jazz", "emacs"}
    assert len(mem.conflicts()) == 1
    assert mem.plan_merge(child.branch).facts == ()
    with pytest.raises(NotFound):
        mem.merge(plan, take=["fact_other"])
    with pytest.raises(WrongState):
        child.merge(plan)


def test_branches_of_another_family_cannot_be_merged(memory: Memory, mem: Space) -> None:
    other = memory.space("stranger")
    with pytest.raises(NotFound):
        mem.plan_merge(other.branch)


def test_the_chain_holds_over_restores_forks_and_merges(memory: Memory, mem: Space) -> None:
    mem.watermark("snap_1")
    installed(mem, "x")
    mem.on_restore("snap_1", "rewind")
    child = mem.fork("hermes-2")
    child.remember("a", "b", "c")
    mem.merge(mem.plan_merge(child.branch))
    assert memory.verify_chain().ok
