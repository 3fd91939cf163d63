"""What a look finds, and what two looks say of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.fakes.engine import FakeEngine
from tests.unit.recovery.inventories import entry, inventory, section
from tests.unit.recovery.stage import check_report
from torpor.base.clock import SystemClock
from torpor.base.home import Home
from torpor.errors import (
    DataDamaged,
    InsufficientResources,
    LimitExceeded,
    NotFound,
    TorporError,
)
from torpor.model import SandboxInfo, SandboxSpec, SandboxState
from torpor.model_changes import ChangeId, ChangeSpec
from torpor.recovery.changes import looks
from torpor.recovery.changes.holdings import Holdings, HoldingsFiles, rules_of
from torpor.recovery.changes.looks import Look, Looker, look_json, opinion
from torpor.recovery.profiles import shipped

SPEC = ChangeSpec(reason="x", command="y", inventory=False)


def looked(
    act: Callable[[FakeEngine, SandboxInfo], Coroutine[Any, Any, None]] | None = None,
) -> Look:
    """Return what a look at a sandbox finds after `act`."""

    async def main() -> Look:
        engine = FakeEngine()
        box = await engine.create(SandboxSpec(template="base"))
        if act is not None:
            await act(engine, box)
        looker = Looker(engine, SystemClock())
        try:
            return await looker.look(box.id, SPEC, "after", before=None, progress=lambda _: None)
        finally:
            await engine.aclose()

    return asyncio.run(main())


def test_a_machine_that_answers() -> None:
    assert looked() == Look(phase="after", answers=True)


def test_a_machine_that_comes_late_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_RETRY_S", 0.02)

    async def act(engine: FakeEngine, box: SandboxInfo) -> None:
        guest = engine.sandboxes[box.id].guest
        guest.reachable = False
        asyncio.get_running_loop().call_later(0.1, lambda: setattr(guest, "reachable", True))

    assert looked(act).answers


def test_a_machine_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_RETRY_S", 0.02)
    monkeypatch.setattr(looks, "ANSWER_S", 0.1)

    async def act(engine: FakeEngine, box: SandboxInfo) -> None:
        engine.sandboxes[box.id].guest.reachable = False

    found = looked(act)
    assert (found.answers, found.is_away, found.problem) == (
        False,
        False,
        "the agent does not answer",
    )


def test_a_machine_that_ended_or_stands_still() -> None:
    async def ended(engine: FakeEngine, box: SandboxInfo) -> None:
        found = engine.sandboxes[box.id]
        found.info = replace(found.info, state=SandboxState.FAILED, error="it is gone\nand more")

    async def paused(engine: FakeEngine, box: SandboxInfo) -> None:
        await engine.pause(box.id)

    async def deleted(engine: FakeEngine, box: SandboxInfo) -> None:
        await engine.delete(box.id)

    assert looked(ended).problem == "the machine ended: it is gone"
    assert looked(paused).is_away
    with pytest.raises(NotFound):
        looked(deleted)


@pytest.mark.parametrize("error", [InsufficientResources("no memory"), LimitExceeded("too many")])
def test_a_sleeping_machine_that_the_host_has_no_room_for_says_nothing(
    error: TorporError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise error

    async def act(engine: FakeEngine, box: SandboxInfo) -> None:
        await engine.hibernate(box.id)
        monkeypatch.setattr(engine, "guest", full)

    found = looked(act)
    assert (found.answers, found.is_away, found.problem) == (False, True, error.message)
    assert opinion({}, found, SPEC, None).verdict == "inconclusive"


def test_what_looks_say() -> None:
    before = look_json(Look(phase="before", answers=True, checks=check_report("pass")))

    def said(**now: Any) -> tuple[str, str]:
        found = opinion(before, Look(phase="after", answers=True, **now), SPEC, None)
        return found.verdict, found.ending

    assert said(checks=check_report("pass")) == ("pass", "none")
    assert said(checks=check_report("fail")) == ("fail", "checks")
    assert said(checks=check_report("inconclusive")) == ("inconclusive", "none")
    assert said() == ("pass", "none")
    dead = opinion(before, Look(phase="after", answers=False, problem="gone"), SPEC, None)
    assert (dead.verdict, dead.ending, dead.reasons) == ("fail", "machine", ("gone",))
    away = opinion(
        before, Look(phase="after", answers=False, problem="paused", is_away=True), SPEC, None
    )
    assert away.verdict == "inconclusive"


def held(**kinds: list[str]) -> Holdings:
    sections = {kind: section(*map(entry, names)) for kind, names in kinds.items()}
    return Holdings(inventory=inventory(sections), profile=shipped("machine"))


def test_what_the_agent_lost_is_a_failure_unless_it_was_allowed() -> None:
    before, after = held(skills=["a", "b"], debian=["x"]), held(skills=["a"], debian=["x", "y"])
    now = Look(phase="after", answers=True, checks=check_report("pass"), holdings=after)
    found = opinion({}, now, SPEC, before)
    assert (found.verdict, found.ending) == ("fail", "inventory")
    assert found.reasons[-1] == "skills 'b' is gone (to allow it: --allow skills)"
    assert found.sentences
    allowed = opinion({}, now, replace(SPEC, allow=("skills",)), before)
    assert allowed.verdict == "pass", "packages may differ anyway"
    both = opinion({}, replace(now, checks=check_report("fail")), SPEC, before)
    assert both.ending == "checks"


def test_what_speaks_for_a_change_is_told() -> None:
    before = look_json(Look(phase="before", answers=True, checks=check_report("pass")))
    failed = look_json(Look(phase="before", answers=True, checks=check_report("fail")))
    was, grown = held(skills=["a"], debian=["x"]), held(skills=["a"], debian=["x", "y"])

    def evidence(before: dict[str, Any], held: Holdings | None, **now: Any) -> tuple[str, ...]:
        return opinion(before, Look(phase="after", answers=True, **now), SPEC, held).evidence

    good, bad = check_report("pass"), check_report("fail")
    assert evidence(before, None, checks=good) == ("1 required check passes, as before the change",)
    assert evidence(failed, None, checks=good) == ("1 required check passes, 0 before the change",)
    assert evidence(before, None, checks=bad) == ()
    assert evidence({}, was, holdings=was) == (
        "of what was listed in the machine (2 entries; no agent profile fits) nothing differs",
    )
    assert evidence({}, was, holdings=grown) == (
        "of what was listed in the machine (3 entries; no agent profile fits) what differs (1) may",
    )
    assert evidence({}, grown, holdings=held(skills=[], debian=["x"])) == (), "it lost a skill"
    known = replace(was, profile=shipped("hermes"))
    assert "; profile hermes)" in evidence({}, known, holdings=known)[0]
    (little,) = evidence({}, None)
    assert little.startswith("the machine answers; nothing else")


def test_what_could_not_be_listed_is_said() -> None:
    before = held(skills=["a"])
    now = Look(phase="after", answers=True, unlisted="it could not be listed")
    assert opinion({}, now, SPEC, before).verdict == "inconclusive"
    never = opinion({"unlisted": "its agent is too old"}, now, SPEC, None)
    assert (never.verdict, never.warnings) == (
        "pass",
        ("nothing was compared: its agent is too old",),
    )


def test_rules_of_a_change() -> None:
    hermes = shipped("hermes")
    loose = rules_of(hermes, SPEC)
    assert loose["settings"] == loose["versions"] == "may-change"
    assert loose["skills"] == "superset"
    strict = rules_of(hermes, replace(SPEC, change_kind="update"))
    assert strict["settings"] == "equal"
    assert rules_of(hermes, replace(SPEC, allow=("memory",)))["memory"] == "may-change"
    assert "memory.content" not in rules_of(hermes, replace(SPEC, allow=("memory",)))


def test_what_was_held_is_kept_for_the_next_daemon(tmp_path: Path) -> None:
    async def main() -> None:
        home = Home(tmp_path / "home")
        home.prepare()
        files = HoldingsFiles(home)
        change = ChangeId("chg_00000000000000000001")
        assert await files.read(change, SPEC) is None
        was = held(skills=["a", "b"])
        await files.write(change, was)
        assert (home.changes.stat().st_mode & 0o777) == 0o700
        found = await files.read(change, SPEC)
        assert found is not None
        assert (found.inventory, found.profile) == (was.inventory, was.profile)
        (home.changes / change / "before.json").write_text("{")
        with pytest.raises(DataDamaged):
            await files.read(change, SPEC)
        await files.remove(change)
        await files.remove(change)
        assert list(home.changes.iterdir()) == []

    asyncio.run(main())


def test_inventory_checks_before_a_change_say_what_will_be_compared() -> None:
    text = "folders: false\nrequired: {inventory: {skills: superset, debian: equal}}"
    spec = ChangeSpec(reason="x", command="y", checks=text, profile="hermes")

    async def main() -> tuple[Look, Look]:
        engine = FakeEngine()
        box = await engine.create(SandboxSpec(template="base"))
        guest = engine.sandboxes[box.id].guest
        guest.cut_kinds = {"debian"}
        looker = Looker(engine, SystemClock())
        try:
            before = await looker.look(box.id, spec, "before", before=None, progress=lambda _: None)
            del guest.held["skills"]["mail"]
            held = before.holdings
            after = await looker.look(box.id, spec, "after", before=held, progress=lambda _: None)
        finally:
            await engine.aclose()
        return before, after

    before, after = asyncio.run(main())
    assert before.checks is not None
    assert [check.outcome for check in before.checks.results] == ["pass", "inconclusive"]
    assert "does not list all debian" in before.checks.results[1].reason
    assert after.checks is not None
    assert [check.outcome for check in after.checks.results] == ["fail", "inconclusive"]


@pytest.mark.parametrize(
    "planted", [None, "format: 1\nname: mine\ntitle: Mine\nhomes: [/nowhere]\n"]
)
def test_after_a_change_it_is_looked_where_it_was_looked_before(planted: str | None) -> None:
    """A change that lost the agent, or brought a profile that looks nowhere, hides nothing by that."""
    spec = ChangeSpec(reason="x", command="y")

    async def main() -> list[Look]:
        engine = FakeEngine()
        box = await engine.create(SandboxSpec(template="base"))
        guest = engine.sandboxes[box.id].guest
        looker = Looker(engine, SystemClock())
        try:
            before = await looker.look(box.id, spec, "before", before=None, progress=lambda _: None)
            guest.fits, guest.own_profile = (), planted
            held = before.holdings
            after = await looker.look(box.id, spec, "after", before=held, progress=lambda _: None)
            first, second = guest.plans
            assert first["sources"]["skills"], "Hermes was found"
            assert second == first
        finally:
            await engine.aclose()
        return [before, after]

    for look in asyncio.run(main()):
        assert look.holdings is not None
        assert look.holdings.profile.name == "hermes"


def test_a_machines_own_profile_is_read_once(tmp_path: Path) -> None:
    text = "format: 1\nname: mine\ntitle: Mine\nhomes: [/srv/mine]\n"

    async def main() -> None:
        engine = FakeEngine()
        box = await engine.create(SandboxSpec(template="base"))
        guest = engine.sandboxes[box.id].guest
        guest.own_profile = text  # and no such file: whoever reads it again finds another, or none
        spec = ChangeSpec(reason="x", command="y")
        try:
            look = await Looker(engine, SystemClock()).look(
                box.id, spec, "before", before=None, progress=lambda _: None
            )
        finally:
            await engine.aclose()
        assert look.holdings is not None
        assert look.holdings.profile_text == text
        home = Home(tmp_path / "home")
        home.prepare()
        change, files = ChangeId("chg_00000000000000000001"), HoldingsFiles(home)
        await files.write(change, look.holdings)
        found = await files.read(change, spec)
        assert found is not None
        assert found.profile == look.holdings.profile
        assert found.profile_text == text

    asyncio.run(main())
