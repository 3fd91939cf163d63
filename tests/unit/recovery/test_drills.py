"""Drills over an engine in memory, with the real workflow and looks that a test writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

from tests.unit.recovery.stage import NOW, Stage, check_report
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.db.database import Database
from torpor.db.drills import DrillRow, DrillRows
from torpor.errors import (
    GuestUnreachable,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    TorporError,
    VmmFailed,
)
from torpor.model import DRILL_MARK, SandboxFilter, SandboxId, SnapshotId, SnapshotInfo
from torpor.model_drills import DrillId, DrillInfo, DrillSpec, Point, PointName, ScheduleInfo
from torpor.recovery import dbos_setup, durable
from torpor.recovery.cron import check_schedule, next_time
from torpor.recovery.drills import acts, requests
from torpor.recovery.drills.choose import choose
from torpor.recovery.drills.look import Findings
from torpor.recovery.drills.still import SCHEDULERS
from torpor.recovery.drills.words import text
from torpor.recovery.timetable import Timetable

NAMES: tuple[PointName, ...] = ("agent", "files", "services", "task", "schedule")
Said = str | Exception


class ScriptedDrillLooker:
    """Finds what the test wrote for each way of coming back."""

    script: ClassVar[dict[str, Said]] = {}
    once: ClassVar[list[Said]] = []
    """What is only found the first time."""
    clones: ClassVar[list[Any]] = []
    held: ClassVar[list[Any]] = []
    gate: ClassVar[asyncio.Event | None] = None
    entered: ClassVar[asyncio.Event | None] = None

    def __init__(self, engine: Any, _clock: object) -> None:
        self._engine = engine

    async def look(self, sandbox_id: SandboxId, spec: DrillSpec, memory: str, **_: Any) -> Findings:
        self.clones.append(await self._engine.get(sandbox_id))
        self.held.extend(self._engine.sandboxes[sandbox_id].guest.held_still)
        if self.entered is not None:
            self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        said = self.script.get(memory, "pass")
        if said in self.once:
            del self.script[memory]
        if isinstance(said, Exception):
            raise said
        points = tuple(
            Point(name=name, outcome=said if name == "agent" else "pass", why=f"it is {said}")  # type: ignore[arg-type]
            for name in NAMES
        )
        return Findings(points=points, checks=check_report("pass"), profile="machine")


Act = Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Act:
    monkeypatch.setattr(acts, "DrillLooker", ScriptedDrillLooker)
    monkeypatch.setattr(dbos_setup, "_POLL_S", 0.02)
    looker = ScriptedDrillLooker
    for known in (looker.script, looker.once, looker.clones, looker.held):
        known.clear()
    looker.gate = looker.entered = None

    def run(scene: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            home = Home(tmp_path / "home")
            home.prepare()
            Database.open(home.database).close()
            stage = Stage(home)
            await stage.recovery.start()
            try:
                await scene(stage)
            finally:
                await stage.recovery.aclose()
                await stage.engine.aclose()

        asyncio.run(main())

    return run


async def over(stage: Stage, info: DrillInfo) -> DrillInfo:
    async with asyncio.timeout(20):
        while info.is_open:
            info = await stage.recovery.drills.get(info.id, wait_seconds=5)
    return info


async def evidence(stage: Stage, info: DrillInfo) -> Any:
    found = await stage.recovery.drills.evidence(info.id)
    assert found is not None
    return found


def test_a_good_snapshot_is_marked_and_nothing_is_left(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox(network="user", metadata={"agent": "ann"})
        taken = await stage.engine.snapshot(box.id, label="good")
        begun = await stage.recovery.drills.begin(taken.id, DrillSpec(author="ann"))
        assert (begun.choice, begun.verdict) == ("named", None)
        info = await over(stage, begun)
        assert info.verdict == "pass", info
        assert "6 of 6 points pass" in info.sentence
        clones = ScriptedDrillLooker.clones
        assert [c.boot_mode for c in clones] == ["restore", "cold"]
        for clone in clones:
            assert (clone.network, clone.metadata) == ("none", {DRILL_MARK: info.id})
            assert clone.agent == clone.id, "the memory of the agent is not its"
            assert clone.ttl_seconds > 3600
        assert all(set(SCHEDULERS) <= set(still.units) for still in ScriptedDrillLooker.held)
        assert all("timers.target" in still.masks for still in ScriptedDrillLooker.held)
        assert len(ScriptedDrillLooker.held) == 2
        states = {str(s.info.state) for i, s in stage.engine.sandboxes.items() if i != box.id}
        assert states == {"deleted"}
        assert not stage.engine.claims._by_sandbox
        found = await stage.engine.get_snapshot(taken.id)
        assert found.protected == ()
        assert found.good is not None
        assert found.good.found_by == info.id
        kept = json.loads((stage.home.drills / f"{info.id}.json").read_text())
        assert kept == await evidence(stage, info)
        assert kept["left_behind"] == []
        assert [b["memory"] for b in kept["boots"]] == ["ram", "cold"]
        assert all(b["recovery_ms"]["machine"] >= 0 for b in kept["boots"])
        assert [p["name"] for p in kept["points"]] == ["boots", *NAMES]

    act(scene)


@pytest.mark.parametrize(
    ("script", "verdict", "words"),
    [
        ({"cold": "fail"}, "fail", "the agent's process starts? from its disk: it is fail"),
        ({"ram": "inconclusive"}, "inconclusive", "with its memory: it is inconclusive"),
        ({"ram": "nothing", "cold": "nothing"}, "pass", "nothing to look at: the agent's process"),
        ({"cold": GuestUnreachable("it is gone")}, "fail", "the machine boots? from its disk"),
    ],
)
def test_what_was_found_decides(
    act: Act, script: dict[str, Said], verdict: str, words: str
) -> None:
    async def scene(stage: Stage) -> None:
        ScriptedDrillLooker.script.update(script)
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        await stage.engine.mark_good(taken.id, "chg", "a change was kept")
        info = await over(stage, await stage.recovery.drills.begin(taken.id, DrillSpec()))
        assert info.verdict == verdict, info
        assert words in info.sentence
        good = (await stage.engine.get_snapshot(taken.id)).good
        assert (good is None) == (verdict == "fail"), "a snapshot that fails is good no more"

    act(scene)


@pytest.mark.parametrize("error", [GuestUnreachable("it is gone"), VmmFailed("out of memory")])
def test_a_clone_that_dies_once_speaks_against_no_snapshot(act: Act, error: TorporError) -> None:
    async def scene(stage: Stage) -> None:
        looker = ScriptedDrillLooker
        looker.script["ram"] = error
        looker.once.append(error)
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        begun = await stage.recovery.drills.begin(taken.id, DrillSpec(boots=("ram",)))
        info = await over(stage, begun)
        assert info.verdict == "pass", info
        found = await evidence(stage, info)
        assert found["interrupted"] == [f"ram: {error.message}; it was begun anew"]
        assert len(looker.clones) == 2
        assert [s.id for s in (await stage.engine.list(SandboxFilter())).items] == [box.id]

    act(scene)


@pytest.mark.parametrize("ram", ["pass", "fail"])
def test_what_is_only_late_fails_and_stays_known_to_be_good(
    act: Act, monkeypatch: pytest.MonkeyPatch, ram: Said
) -> None:
    monkeypatch.setattr(requests, "_SECONDS", (0.1, 60))
    looker = ScriptedDrillLooker

    class Slow(looker):  # type: ignore[misc, valid-type]
        async def look(self, sandbox_id: Any, spec: Any, memory: str, **more: Any) -> Findings:
            if memory == "cold":
                await asyncio.Event().wait()
            found: Findings = await super().look(sandbox_id, spec, memory, **more)
            return found

    monkeypatch.setattr(acts, "DrillLooker", Slow)

    async def scene(stage: Stage) -> None:
        looker.script["ram"] = ram
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        await stage.engine.mark_good(taken.id, "chg", "a change was kept")
        info = await over(
            stage, await stage.recovery.drills.begin(taken.id, DrillSpec(limit_seconds=1))
        )
        assert info.verdict == "fail"
        assert [boot["late"] for boot in (await evidence(stage, info))["boots"]] == [False, True]
        good = (await stage.engine.get_snapshot(taken.id)).good
        assert (good is None) == (ram == "fail")

    act(scene)


def test_what_cannot_be_tried_is_no_failure(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        stage.engine.foreign.add(taken.id)
        info = await over(stage, await stage.recovery.drills.begin(taken.id, DrillSpec()))
        assert info.verdict == "inconclusive"
        assert "another CPU" in info.sentence
        cold = await stage.recovery.drills.begin(taken.id, DrillSpec(boots=("cold",)))
        assert (await over(stage, cold)).verdict == "pass"

    act(scene)


def test_damaged_files_fail_before_anything_boots(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        stage.engine.damaged.update(stage.engine.points[taken.id].layers)
        info = await over(stage, await stage.recovery.drills.begin(taken.id, DrillSpec()))
        assert info.verdict == "fail"
        assert "is damaged" in info.sentence
        assert ScriptedDrillLooker.clones == []

    act(scene)


def test_the_next_daemon_begins_a_way_anew(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        ScriptedDrillLooker.gate = asyncio.Event()
        ScriptedDrillLooker.entered = asyncio.Event()
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        begun = await stage.recovery.drills.begin(taken.id, DrillSpec(boots=("ram",)))
        await asyncio.wait_for(ScriptedDrillLooker.entered.wait(), 10)
        assert (await stage.engine.get_snapshot(taken.id)).protected
        ScriptedDrillLooker.gate.set()
        ScriptedDrillLooker.gate = None
        info = await over(stage, begun)
        assert info.verdict == "pass"

    act(scene)


def test_a_way_that_is_interrupted_too_often_is_not_tried_again(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        looker = ScriptedDrillLooker
        looker.gate = asyncio.Event()
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        spec = DrillSpec(boots=("ram",))
        looker.entered = asyncio.Event()
        begun = await stage.recovery.drills.begin(taken.id, spec)
        for _ in range(acts.TRIES):
            await looker.entered.wait()
            looker.entered = asyncio.Event()
            await stage.restart()
        info = await over(stage, begun)
        assert info.verdict == "inconclusive"
        kept = await evidence(stage, info)
        assert len(kept["interrupted"]) == acts.TRIES
        assert f"it was interrupted {acts.TRIES} times" in text(kept)
        assert "it was not looked at" in text(kept)

    act(scene)


def test_a_daemon_that_dies_in_the_middle(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        ScriptedDrillLooker.gate = asyncio.Event()
        ScriptedDrillLooker.entered = asyncio.Event()
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        begun = await stage.recovery.drills.begin(taken.id, DrillSpec(boots=("ram",)))
        await asyncio.wait_for(ScriptedDrillLooker.entered.wait(), 10)
        ScriptedDrillLooker.gate = None
        await stage.restart()
        info = await over(stage, begun)
        assert info.verdict == "pass", info
        kept = await evidence(stage, info)
        assert "begun anew" in kept["interrupted"][0]
        assert kept["left_behind"] == []
        living = [i for i, s in stage.engine.sandboxes.items() if str(s.info.state) != "deleted"]
        assert living == [box.id]

    act(scene)


def test_a_daemon_that_dies_before_a_drill_is_written_down_holds_nothing(act: Act) -> None:
    class Died(BaseException):
        pass

    def insert(*_: object) -> NoReturn:
        raise Died

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        patch = pytest.MonkeyPatch()
        patch.setattr(DrillRows, "insert", insert)
        with pytest.raises(Died):
            await stage.recovery.drills.begin(taken.id, DrillSpec())
        patch.undo()
        await stage.restart()
        assert (await stage.engine.get_snapshot(taken.id)).protected == ()
        await stage.engine.delete_snapshot(taken.id)

    act(scene)


def test_a_drill_waits_for_room_on_the_disk(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_AGAIN_S", 0.05)

    async def scene(stage: Stage) -> None:
        rows, refused = stage.recovery.drills._rows, []
        save = rows.save

        def full(row: DrillRow) -> None:
            if len(refused) < 3:
                refused.append(row.info.step)
                raise InsufficientResources("the disk is full")
            save(row)

        monkeypatch.setattr(rows, "save", full)
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        begun = await stage.recovery.drills.begin(taken.id, DrillSpec(boots=("cold",)))
        info = await over(stage, begun)
        assert info.verdict == "pass", info
        assert refused == ["reading the snapshot's files"] * 3
        assert (await stage.engine.get_snapshot(taken.id)).protected == ()

    act(scene)


def test_no_secret_that_was_given_is_kept_when_it_is_over(act: Act) -> None:
    checks = "required: {http: {'http://x': {username: a, password: hunter22}}}"

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        begun = await stage.recovery.drills.begin(
            taken.id, DrillSpec(checks=checks, boots=("ram",))
        )
        assert (await over(stage, begun)).verdict == "pass"
        rows = DrillRows.attach(stage.home.database)
        row = rows.get(begun.id)
        rows.close()
        assert row is not None
        assert row.spec.checks is not None
        assert "username: a" in row.spec.checks
        for kept in (row.spec.checks, json.dumps(await evidence(stage, begun))):
            assert "hunter22" not in kept

    act(scene)


def test_a_drill_that_nobody_carries_out_is_ended(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        clone = await stage.engine.restore(taken.id, acts.RestoreSpec(network="none"))
        await stage.engine.protect(taken.id, "drl", "it is tried")
        rows = DrillRows.attach(stage.home.database)
        lost = _row(box.id, taken.id)
        await stage.recovery.aclose()
        rows.insert(replace(lost, notes={"clones": [clone.id]}))
        rows.close()
        await stage.restart()
        info = await over(stage, lost.info)
        assert info.verdict == "inconclusive"
        assert "lost track" in info.sentence
        assert str((await stage.engine.get(clone.id)).state) == "deleted"
        assert (await evidence(stage, info))["left_behind"] == []

    act(scene)


def _row(sandbox_id: SandboxId, snapshot_id: SnapshotId) -> DrillRow:
    info = DrillInfo(
        id=DrillId(new_id("drl")),
        snapshot_id=snapshot_id,
        sandbox_id=sandbox_id,
        choice="named",
        author="",
        workspace="default",
        created_at=NOW,
        updated_at=NOW,
        boots=("ram",),
    )
    return DrillRow(info, DrillSpec())


# ---- bad input ----


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (DrillSpec(boots=()), "each once"),
        (DrillSpec(boots=("ram", "ram")), "each once"),
        (DrillSpec(boots=("warm",)), "'ram' or 'cold'"),  # type: ignore[arg-type]
        (DrillSpec(limit_seconds=1), "limit_seconds"),
        (DrillSpec(checks="required:\n  files: {}", checks_source="my.yaml"), "my.yaml:2:3"),
        (DrillSpec(author="a\nb"), "author"),
    ],
)
def test_what_cannot_be_is_refused_before_anything(act: Act, spec: DrillSpec, words: str) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        taken = await stage.engine.snapshot(box.id)
        with pytest.raises(InvalidRequest, match=words):
            await stage.recovery.drills.begin(taken.id, spec)
        assert await stage.recovery.drills.list() == []
        assert (await stage.engine.get_snapshot(taken.id)).protected == ()

    act(scene)


def test_what_is_not_there(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        drills = stage.recovery.drills
        box = await stage.sandbox()
        with pytest.raises(NotFound, match="has no snapshot"):
            await drills.begin(box.id, DrillSpec())
        for target in (new_id("sbx"), new_id("snap")):
            with pytest.raises(NotFound):
                await drills.begin(target, DrillSpec())
        with pytest.raises(NotFound):
            await drills.get(new_id("drl"))
        with pytest.raises(InvalidRequest):
            await drills.get("drl_x")
        with pytest.raises(NotFound):
            await drills.drop_schedule(new_id("sch"))

    act(scene)


# ---- in turn, and by the clock ----


def test_newest_oldest_and_a_random_one_in_turn(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        taken = [await stage.engine.snapshot(box.id) for _ in range(3)]
        await stage.engine.snapshot(box.id, label="failed-chg_0")
        seen = []
        for _ in range(4):
            begun = await stage.recovery.drills.begin(box.id, DrillSpec(boots=("cold",)))
            info = await over(stage, begun)
            seen.append((info.choice, info.snapshot_id))
        assert seen == [
            ("newest", taken[2].id),
            ("oldest", taken[0].id),
            ("random", taken[1].id),
            ("newest", taken[2].id),
        ]

    act(scene)


def test_one_snapshot_has_all_turns() -> None:
    only = SnapshotInfo.__new__(SnapshotInfo)
    for name, value in (("id", "snap_1"), ("created_at", NOW), ("reason", "snapshot")):
        object.__setattr__(only, name, value)
    object.__setattr__(only, "label", None)
    earlier: list[DrillInfo] = []
    for choice in ("newest", "oldest", "random", "newest"):
        found = choose(SandboxId("sbx"), [only], earlier)
        assert found == (only, choice)
        row = _row(SandboxId("sbx"), only.id)
        earlier.insert(0, replace(row.info, choice=found[1]))


def test_what_was_missed_is_made_up_for_once(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        await stage.engine.snapshot(box.id)
        made = await stage.recovery.drills.add_schedule(
            box.id, DrillSpec(boots=("cold",)), "0 4 * * 1"
        )
        assert (made.next_at.weekday(), made.next_at.hour) == (0, 4)
        assert made.next_at > made.created_at
        await stage.recovery.aclose()
        rows = DrillRows.attach(stage.home.database)
        missed = made.created_at - timedelta(days=60)
        rows.put_schedule(replace(made, next_at=missed), DrillSpec(boots=("cold",)))
        rows.close()
        await stage.restart()
        drills = stage.recovery.drills
        async with asyncio.timeout(10):
            while not (found := await drills.list(box.id)):
                await asyncio.sleep(0.02)
        assert (await over(stage, found[0])).verdict == "pass"
        assert found[0].schedule_id == made.id
        (now,) = await drills.schedules()
        assert (now.next_at > made.created_at, now.last_drill) == (True, found[0].id)
        assert len(await drills.list()) == 1, "once, however often it was missed"
        assert (await drills.drop_schedule(made.id)).id == made.id
        assert await drills.schedules() == []

    act(scene)


def test_a_clock_that_was_ahead_for_a_while_stops_no_schedule(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        drills = stage.recovery.drills
        made = await drills.add_schedule(box.id, DrillSpec(), "0 4 * * 1")
        await drills._do_due(made.next_at + timedelta(days=4000))
        (ahead,) = await drills.schedules()
        assert ahead.next_at > made.next_at + timedelta(days=3999)
        await stage.restart()
        drills = stage.recovery.drills
        async with asyncio.timeout(10):
            while (await drills.schedules())[0].next_at == ahead.next_at:
                await asyncio.sleep(0.01)
        assert (await drills.schedules())[0].next_at == made.next_at

    act(scene)


def test_a_clock_that_is_set_back_while_the_daemon_runs(caplog: pytest.LogCaptureFixture) -> None:
    class Set:
        at = NOW

        def now(self) -> datetime:
            return self.at

        def monotonic_s(self) -> float:
            return 0.0

    clock, calls = Set(), list[datetime]()

    async def main() -> None:
        async def set_back(now: datetime) -> None:
            calls.append(now)
            if len(calls) == 2:
                raise OSError("the disk is full")

        async def do_due(_: datetime) -> None:
            raise AssertionError("nothing is due")

        table = Timetable("test", clock, lambda: None, do_due, set_back)
        running = asyncio.create_task(table.run())
        for at in (NOW, NOW + timedelta(hours=1), NOW, NOW):
            clock.at = at
            table.wake()
            for _ in range(5):
                await asyncio.sleep(0)
        running.cancel()

    asyncio.run(main())
    assert calls == [NOW, NOW, NOW], (
        "when it begins, when it is set back, and again after a failure"
    )
    assert "the disk is full" in caplog.text


def test_a_schedule_of_what_is_gone_says_so(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        drills = stage.recovery.drills
        made = await drills.add_schedule(box.id, DrillSpec(), "*/5 * * * *")
        await drills._do_due(made.next_at)
        (now,) = await drills.schedules()
        assert "has no snapshot" in now.note
        assert now.next_at > made.next_at

    act(scene)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "every monday",
        "0 4 * *",
        "0 4 * * 8",
        "* * * * * *",
        "0 4 31 2 *",
        "x" * 300,
        "r R * * *",
        "0 R(2-4) * * *",
        "H 4 * * *",
    ],
)
def test_no_schedule(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no schedule"):
        check_schedule(text, now=NOW)


def test_schedules() -> None:
    assert check_schedule("  0  4 * *   1 ", now=NOW) == "0 4 * * 1"
    assert check_schedule("0 4 * mar,apr fri", now=NOW) == "0 4 * mar,apr fri"
    assert next_time("0 4 * * 1", NOW).isoformat() == "2026-11-30T04:00:00+00:00"
    info = ScheduleInfo(
        id="sch", schedule="@daily", sandbox_id=SandboxId("s"), snapshot_id=None, workspace="w",
        author="a", created_at=NOW, next_at=NOW,
    )  # fmt: skip
    assert ScheduleInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
