"""What the six points rest on, what is held, and how it is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine
from torpor.base.clock import SystemClock
from torpor.model import ProcessInfo, SandboxSpec
from torpor.model_checks import CheckReport, CheckResult
from torpor.model_drills import DrillSpec
from torpor.model_inventory import Entry, Inventory, Section
from torpor.recovery.checks import regexes
from torpor.recovery.drills.look import _Look
from torpor.recovery.drills.points import (
    Found,
    add_checks,
    add_holdings,
    add_processes,
    add_units,
    missing_units,
)
from torpor.recovery.drills.still import SCHEDULERS, held_of
from torpor.recovery.drills.words import text
from torpor.recovery.profiles import shipped
from torpor.recovery.profiles.model import AgentProfile

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def inventory(**kinds: dict[str, dict[str, Any]]) -> Inventory:
    sections = {
        kind: Section(entries={n: Entry(name=n, shown=shown) for n, shown in entries.items()})
        for kind, entries in kinds.items()
    }
    return Inventory(
        taken_at=NOW,
        profile="machine",
        profile_digest="0" * 16,
        key_id="0" * 16,
        duration_ms=1,
        sections=sections,
    )


def result(kind: str, name: str, outcome: str, group: str = "required") -> CheckResult:
    return CheckResult(
        group=group,  # type: ignore[arg-type]
        kind=kind,
        name=name,
        outcome=outcome,  # type: ignore[arg-type]
        reason=f"it is {outcome}",
        started_at=NOW,
        duration_ms=1,
        attempts=1,
    )


def report(*results: CheckResult) -> CheckReport:
    return CheckReport(source="c", started_at=NOW, duration_ms=1, results=results)


NOTHING_HELD = held_of(None, None)


@pytest.mark.parametrize("name", ["agent", "files", "services", "schedule", "task", "boots"])
def test_a_point_with_nothing_to_look_at_does_not_pass(name: str) -> None:
    point = Found().point(name)  # type: ignore[arg-type]
    assert point.outcome == "nothing"
    assert point.why


@pytest.mark.parametrize(
    ("kind", "name", "point"),
    [
        ("process", "x", "agent"),
        ("file", "/x", "files"),
        ("package", "x", "files"),
        ("sqlite", "/x", "files"),
        ("inventory", "skills", "files"),
        ("inventory", "cron.shown", "schedule"),
        ("service", "x", "services"),
        ("port", "tcp:1", "services"),
        ("http", "http://x", "services"),
        ("command", "x", "task"),
        ("turn", "x", "task"),
        ("executable", "x", "task"),
        ("machine", "answers", "boots"),
    ],
)
def test_each_check_has_its_point(kind: str, name: str, point: str) -> None:
    found = Found()
    add_checks(found, report(result(kind, name, "pass")), NOTHING_HELD, is_cold=False)
    assert list(found.by_point) == [point]
    assert found.point(point).outcome == "pass"  # type: ignore[arg-type]


def test_the_worst_decides_and_wanted_checks_do_not() -> None:
    found = Found()
    found.add("files", "pass", "one")
    found.add("files", "inconclusive", "two")
    add_checks(
        found,
        report(result("file", "/a", "fail", "wanted"), result("file", "/b", "skipped")),
        NOTHING_HELD,
        is_cold=False,
    )
    assert (found.point("files").outcome, found.point("files").why) == ("inconclusive", "two")
    add_checks(found, report(result("file", "/c", "fail")), NOTHING_HELD, is_cold=False)
    assert found.point("files").outcome == "fail"


def test_a_turn_without_its_provider_says_nothing() -> None:
    found = Found()
    add_checks(found, report(result("turn", "t", "fail")), NOTHING_HELD, is_cold=False)
    assert found.point("task").outcome == "nothing"
    assert "provider" in found.point("task").why


def test_a_service_that_is_held_back_says_nothing_after_a_boot() -> None:
    for is_cold, outcome in ((True, "nothing"), (False, "fail")):
        found = Found()
        add_checks(found, report(result("service", "cron", "fail")), NOTHING_HELD, is_cold=is_cold)
        assert found.point("services").outcome == outcome


def test_what_is_gone_fails_at_its_point() -> None:
    before = inventory(
        skills={"one": {}, "two": {}}, jobs={"daily": {"every": "1d"}}, files={"/a": {"size": 1}}
    )
    found = Found()
    add_holdings(found, before, before)
    assert (found.point("files").outcome, found.point("schedule").outcome) == ("pass", "pass")
    found = Found()
    now = inventory(skills={"one": {}}, jobs={"daily": {"every": "2d"}}, files={"/a": {"size": 2}})
    add_holdings(found, before, now)
    assert found.point("files").why == "skills two is gone"
    assert found.point("schedule").why == "jobs daily is not what it was"
    found = Found()
    add_holdings(found, before, inventory(skills={"one": {}, "two": {}}))
    assert found.point("schedule").outcome == "inconclusive"


def test_services_that_ran_have_to_run_but_not_those_that_are_held() -> None:
    before = inventory(
        units={
            "a.service": {"state": "active", "enabled": True},
            "off.service": {"state": "inactive", "enabled": True},
            "asked-for.service": {"state": "active", "enabled": False},
            "cron.service": {"state": "active", "enabled": True},
            "ann: own.service": {"state": "active", "enabled": True},
        }
    )
    for state, outcome in (("active", "pass"), ("failed", "fail")):
        now, found = inventory(units={"a.service": {"state": state}}), Found()
        add_units(found, before, now, NOTHING_HELD)
        assert found.point("services").outcome == outcome
        assert missing_units(before, now, NOTHING_HELD) == (state == "failed")
    found = Found()
    add_units(found, inventory(units={}), inventory(units={}), NOTHING_HELD)
    assert found.point("services").outcome == "nothing"


def test_processes() -> None:
    found = Found()
    add_processes(found, [("hermes.*gateway", "", True)])
    assert found.point("agent").outcome == "pass"
    add_processes(found, [("strange", "it took too long", False)])
    assert found.point("agent").outcome == "inconclusive"
    add_processes(found, [("other", "", False)])
    assert found.point("agent").why == "a process like 'other' does not run"


def test_a_careless_pattern_of_a_machines_own_does_not_hold_up_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both the pattern and the command line can be the machine's."""
    monkeypatch.setattr(regexes, "SEARCH_LIMIT_S", 1.0)
    profile = AgentProfile(
        name="own",
        processes=("^(a+)+$", "^gate.*way$"),
        freeze_processes=("gateway",),
    )

    async def processes() -> list[ProcessInfo]:
        said = ((7, "S", "a" * 60 + "!"), (8, "T", "gateway"), (9, "T", "gate-keeper"))
        return [
            ProcessInfo(
                pid=pid,
                ppid=1,
                user="root",
                state=state,
                rss_bytes=1,
                command=command,
                exec_id=None,
            )
            for pid, state, command in said
        ]

    async def main() -> None:
        engine = FakeEngine()
        box = await engine.create(SandboxSpec(template="base"))
        monkeypatch.setattr(engine.sandboxes[box.id].guest, "processes", processes)
        ran: list[object] = []
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.05)
                ticks += 1

        class Probe:
            async def run(self, command: object, **_: object) -> None:
                ran.append(command)

        ticking = asyncio.create_task(tick())
        try:
            async with engine.guest(box.id) as guest:
                look = _Look(guest, DrillSpec(), "ram", None, SystemClock(), lambda _: None)
                look._held = held_of(profile, None)
                await look._let_go(Probe(), profile)  # type: ignore[arg-type]
                await look._settled(profile)
        finally:
            ticking.cancel()
            await engine.aclose()
        assert ran == [("kill", "-CONT", "8")]
        point = look._found.point("agent")
        assert point.outcome == "inconclusive"
        assert "took longer than 1 s" in point.why
        assert "a process like '^gate.*way$' runs" in point.details
        assert ticks > 10, "others are served meanwhile"

    asyncio.run(main())


def test_what_is_held_of_an_agent_that_schedules_itself() -> None:
    held = held_of(
        shipped("hermes"),
        inventory(
            units={"hermes-gateway-1.service": {}, "x.service": {}},
            timers={"a.timer": {}, "ann: b.timer": {}},
        ),
    )
    assert held.agent_units == ("hermes-gateway*.service",)
    assert {"hermes-gateway-1.service", "a.timer", "timers.target", *SCHEDULERS} <= set(
        held.still.masks
    )
    assert not any(":" in name or "*" in name or name == "x.service" for name in held.still.masks)
    assert held.holds("cron.service")
    assert not held.holds("hermes-gateway-1.service"), "it is let go for the checks"
    own = AgentProfile(name="own", freeze_units=("sched.service",), services=("agent.service",))
    assert held_of(own, None).agent_units == ()
    assert held_of(own, None).holds("sched.service")


def test_evidence_as_text() -> None:
    point = {"name": "boots", "title": "the machine boots", "outcome": "fail", "why": "\x1b[2J"}
    evidence: dict[str, Any] = {
        "id": "drl_1",
        "sentence": "fail: it does not",
        "started_at": NOW.isoformat(),
        "ended_at": NOW.isoformat(),
        "sandbox_id": "sbx_1",
        "snapshot": {"id": "snap_1", "label": None, "choice": "oldest"},
        "data_age_seconds": 200000,
        "checks": {"source": "c.yaml"},
        "files": {"damaged": ["lyr_1: bad"]},
        "interrupted": [],
        "left_behind": [],
        "boots": [
            {
                "memory": "cold",
                "boot_mode": "cold",
                "recovery_ms": {"machine": 12345, "checked": 20000},
                "points": [point, {**point, "outcome": "nothing", "why": "w" * 200}],
                "let_go_for_checks": ["a.service"],
                "notes": ["a note"],
            }
        ],
    }
    said = text(evidence)
    assert "\x1b" not in said
    for words in ("sbx_1 (oldest)", "2 days", "answered after 12.3 s", "FAIL", "lyr_1: bad"):
        assert words in said
    assert "answered after 12.3 s, and all was looked at after 20.0 s" in said
    assert max(map(len, said.splitlines())) <= 100
    evidence["boots"][0]["boot_mode"] = None
    said = text(evidence)
    assert "all was looked at" not in said
    assert "answered after 12.3 s, and looking at it was broken off after 20.0 s" in said


def test_a_point_is_kept_as_it_is() -> None:
    from torpor.model_drills import Point

    point = replace(Found().point("agent"), details=("a", "b"))
    assert Point.from_json(point.to_json()) == point


def test_a_machines_own_profile_is_read_once() -> None:
    """A second reading could find another one, or none."""
    text = "format: 1\nname: mine\ntitle: Mine\nhomes: [/srv/mine]\n"

    async def main() -> None:
        engine = FakeEngine()
        box = await engine.create(SandboxSpec(template="base"))
        engine.sandboxes[box.id].guest.own_profile = text
        try:
            async with engine.guest(box.id) as guest:
                look = _Look(guest, DrillSpec(), "ram", None, SystemClock(), lambda _: None)
                profile, own = await look._own_profile()
        finally:
            await engine.aclose()
        assert (profile.name, own) == ("mine", text)

    asyncio.run(main())


def test_patterns_of_our_own_take_no_process_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: object, **__: object) -> None:
        raise AssertionError("a process was begun")

    monkeypatch.setattr(regexes.proc, "run", run)
    hermes = shipped("hermes")
    look = _Look.__new__(_Look)
    found = look._fits(hermes, hermes.processes[0], ["python hermes.py gateway", "gateway hermes"])
    assert asyncio.run(found) == ("", [True, False])
    own = replace(hermes, title="another")
    with pytest.raises(AssertionError, match="begun"):
        asyncio.run(look._fits(own, hermes.processes[0], [""]))
