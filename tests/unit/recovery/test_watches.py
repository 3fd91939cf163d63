"""Watches over an engine in memory, with looks that a test writes, and the look itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

from tests.unit.recovery.stage import NOW, ScriptedLooker, Stage
from torpor.base.clock import SystemClock
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.db.database import Database
from torpor.db.watches import WatchRows
from torpor.errors import (
    DataDamaged,
    HostNotReady,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    TorporError,
)
from torpor.model import SandboxId, SandboxState
from torpor.model_changes import ChangeState
from torpor.model_watches import WatchInfo, WatchSpec
from torpor.recovery import dbos_setup
from torpor.recovery.changes import acts
from torpor.recovery.watches import desk
from torpor.recovery.watches.look import Seen, WatchLooker

CHECKS = "required: {file: {/etc/agent.conf: {exists: true}}}"
SPEC = WatchSpec(checks=CHECKS)
REAL = WatchLooker


class ScriptedWatchLooker:
    """Finds what the test wrote; the last word holds for all that follow."""

    script: ClassVar[list[str]] = []
    looked: ClassVar[list[str]] = []

    def __init__(self, engine: Any, _clock: object) -> None:
        self._engine = engine

    async def look(self, sandbox_id: SandboxId, _spec: WatchSpec) -> Seen:
        info = await self._engine.get(sandbox_id)
        if info.state is SandboxState.DELETED:
            raise NotFound("it is gone")
        self.looked.append(sandbox_id)
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return Seen(said, f"it is {said}", ("the reason",))  # type: ignore[arg-type]


Act = Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Act:
    monkeypatch.setattr(desk, "WatchLooker", ScriptedWatchLooker)
    monkeypatch.setattr(acts, "Looker", ScriptedLooker)
    monkeypatch.setattr(dbos_setup, "_POLL_S", 0.02)
    ScriptedLooker.script.clear()
    ScriptedWatchLooker.script[:] = ["pass"]
    ScriptedWatchLooker.looked.clear()

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


def told(stage: Stage) -> list[tuple[str, str]]:
    """Return the events of watches."""
    return [(e.kind, e.state) for e in stage.engine.log._events if e.kind == "watch"]


def test_damage_is_told_with_the_way_back_until_it_is_mended(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        watches, box = stage.recovery.watches, await stage.sandbox()
        good = await stage.engine.snapshot(box.id)
        await stage.engine.mark_good(good.id, "drl_1", "a drill passed")
        await watches.put(box.id, SPEC)
        assert (await watches.look(box.id)).outcome == "pass"
        assert told(stage) == []

        ScriptedWatchLooker.script[:] = ["fail", "inconclusive", "fail", "pass"]
        first = await watches.look(box.id)
        assert (first.outcome, first.last_good) == ("fail", good.id)
        assert first.offer == f"torpor rollback {box.id} {good.id} --cold"
        note = (await stage.engine.get(box.id)).health_note
        assert note is not None
        assert first.offer in note
        assert "the reason" in note
        assert told(stage) == [("watch", "failing")]

        unclear = await watches.look(box.id)
        assert (unclear.outcome, unclear.failing_since) == ("inconclusive", first.failing_since)
        assert told(stage) == [("watch", "failing")], "what could not be told is no damage"
        again = await watches.look(box.id)
        assert again.failing_since == first.failing_since
        mended = await watches.look(box.id)
        assert (mended.outcome, mended.failing_since, mended.offer) == ("pass", None, "")
        assert (await stage.engine.get(box.id)).health_note is None
        assert told(stage)[-1] == ("watch", "passing")

    act(scene)


def test_without_a_good_snapshot_nothing_is_offered(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        watches, box = stage.recovery.watches, await stage.sandbox()
        await stage.engine.snapshot(box.id)
        await watches.put(box.id, SPEC)
        ScriptedWatchLooker.script[:] = ["fail"]
        found = await watches.look(box.id)
        assert (found.last_good, found.offer) == (None, "")
        assert f"torpor drill {box.id}" in str((await stage.engine.get(box.id)).health_note)

    act(scene)


def test_inconclusive_alone_is_no_damage(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        watches, box = stage.recovery.watches, await stage.sandbox()
        await watches.put(box.id, SPEC)
        ScriptedWatchLooker.script[:] = ["inconclusive"]
        assert (await watches.look(box.id)).failing_since is None
        assert (await stage.engine.get(box.id)).health_note is None
        assert told(stage) == []

    act(scene)


def test_a_machine_that_is_being_changed_is_left_to_its_change(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        watches, box = stage.recovery.watches, await stage.sandbox()
        await watches.put(box.id, SPEC)
        change = await stage.change(box.id, command="true", probation_seconds=60)
        await stage.until(change, ChangeState.PROBATION)
        found = await watches.look(box.id)
        assert (found.outcome, found.looked_at) == ("skipped", None)
        assert change.id in found.sentence
        assert ScriptedWatchLooker.looked == []
        await stage.desk.confirm(change.id)
        assert (await watches.look(box.id)).outcome == "pass"

    act(scene)


def test_the_clock_looks_and_what_was_missed_is_made_up_for_once(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        watches, box = stage.recovery.watches, await stage.sandbox()
        made = await watches.put(box.id, SPEC)
        assert made.every_seconds == 86400
        assert made.next_at - made.created_at == timedelta(days=1)
        ScriptedWatchLooker.script[:] = ["fail"]
        await watches.look(box.id)
        await stage.recovery.aclose()
        rows = WatchRows.attach(stage.home.database)
        ((info, spec),) = rows.all()
        rows.put(replace(info, next_at=made.created_at - timedelta(days=30)), spec)
        rows.close()
        ScriptedWatchLooker.looked.clear()
        box_ = stage.engine.sandboxes[box.id]
        box_.info = replace(box_.info, health_note=None)  # the engine is a new one, too
        await stage.restart()
        assert (await stage.engine.get(box.id)).health_note, "what was found is shown again"
        async with asyncio.timeout(10):
            while not ScriptedWatchLooker.looked:
                await asyncio.sleep(0.02)
        found = await stage.recovery.watches.get(box.id)
        assert found.next_at > made.created_at
        assert ScriptedWatchLooker.looked == [box.id]

    act(scene)


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, schedule="0 4 * * *")])
def test_a_clock_that_was_ahead_for_a_while_stops_no_watch(act: Act, spec: WatchSpec) -> None:
    async def scene(stage: Stage) -> None:
        watches, box = stage.recovery.watches, await stage.sandbox()
        made = await watches.put(box.id, spec)
        await watches._do_due(made.next_at + timedelta(days=4000))
        ahead = await watches.get(box.id)
        assert ahead.next_at > made.next_at + timedelta(days=3999)
        await stage.restart()
        async with asyncio.timeout(10):
            while (found := await stage.recovery.watches.get(box.id)).next_at == ahead.next_at:
                await asyncio.sleep(0.01)
        assert found.next_at - made.next_at < timedelta(days=2)

    act(scene)


def test_looks_that_take_longer_than_the_time_between_two_do_not_pile_up(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def slow(self: ScriptedWatchLooker, sandbox_id: SandboxId, _: WatchSpec) -> Seen:
        self.looked.append(sandbox_id)
        await gate.wait()
        return Seen("pass", "it is well")

    async def scene(stage: Stage) -> None:
        monkeypatch.setattr(ScriptedWatchLooker, "look", slow)
        watches, box = stage.recovery.watches, await stage.sandbox()
        made = await watches.put(box.id, replace(SPEC, every_seconds=60))
        times = [made.next_at + timedelta(seconds=61 * n) for n in range(5)]
        for time in times:
            await watches._do_due(time)
        gate.set()
        async with asyncio.timeout(10):
            while (await watches.get(box.id)).outcome is None:
                await asyncio.sleep(0.01)
        found = await watches.get(box.id)
        assert found.next_at == times[-1] + timedelta(seconds=60), "it was not put back"
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert ScriptedWatchLooker.looked == [box.id]
        await watches._do_due(found.next_at)
        async with asyncio.timeout(10):
            while len(ScriptedWatchLooker.looked) < 2:
                await asyncio.sleep(0.01)

    act(scene)


def test_a_watch_ends_and_goes_with_its_sandbox(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        watches, box = stage.recovery.watches, await stage.sandbox()
        await watches.put(box.id, SPEC)
        ScriptedWatchLooker.script[:] = ["fail"]
        await watches.look(box.id)
        replaced = await watches.put(box.id, replace(SPEC, schedule="0 4 * * *"))
        assert (replaced.every_seconds, replaced.outcome) == (None, None)
        assert (await stage.engine.get(box.id)).health_note is None
        assert [i.sandbox_id for i in await watches.list()] == [box.id]
        assert (await watches.drop(box.id)).sandbox_id == box.id
        with pytest.raises(NotFound, match="is not watched"):
            await watches.get(box.id)
        await watches.put(box.id, SPEC)
        await stage.engine.delete(box.id)
        with pytest.raises(NotFound):
            await watches.look(box.id)
        assert await watches.list() == []

    act(scene)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (WatchSpec(checks="required: {files: {}}", checks_source="my.yaml"), "my.yaml:1"),
        (replace(SPEC, every_seconds=1.0), "every_seconds"),
        (replace(SPEC, every_seconds=600.0, schedule="0 4 * * *"), "both"),
        (replace(SPEC, schedule="never"), "is no schedule"),
    ],
)
def test_what_cannot_be_is_refused(act: Act, spec: WatchSpec, words: str) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        with pytest.raises(InvalidRequest, match=words):
            await stage.recovery.watches.put(box.id, spec)
        with pytest.raises(NotFound):
            await stage.recovery.watches.put(SandboxId(new_id("sbx")), SPEC)
        assert await stage.recovery.watches.list() == []

    act(scene)


# ---- the look itself ----


def test_who_sleeps_is_not_woken_unless_asked(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        looker = REAL(stage.engine, SystemClock())
        await stage.engine.hibernate(box.id)
        assert (await looker.look(box.id, SPEC)).outcome == "skipped"
        assert (await stage.engine.get(box.id)).state is SandboxState.HIBERNATED
        seen = await looker.look(box.id, replace(SPEC, wake=True, checks="folders: true"))
        assert seen.outcome == "inconclusive", seen
        assert (await stage.engine.get(box.id)).state is SandboxState.HIBERNATED, "asleep again"

    act(scene)


def test_a_machine_that_ended_is_damage_and_one_that_is_paused_is_not(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        looker = REAL(stage.engine, SystemClock())
        box = await stage.sandbox()
        await stage.engine.pause(box.id)
        assert (await looker.look(box.id, SPEC)).outcome == "skipped"
        await stage.engine.resume(box.id)
        stage.fail(box.id)
        seen = await looker.look(box.id, SPEC)
        assert (seen.outcome, seen.sentence) == ("fail", "the machine ended: it is gone")
        await stage.engine.delete(box.id)
        with pytest.raises(NotFound):
            await looker.look(box.id, SPEC)

    act(scene)


def test_a_machine_that_lost_its_agent_is_looked_at_where_it_was(act: Act) -> None:
    spec = WatchSpec(checks="folders: false\nrequired: {inventory: {skills: superset}}")

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        good = await stage.engine.snapshot(box.id)
        assert (await stage.engine.snapshot_inventory(good.id)).profile == "hermes"
        await stage.engine.mark_good(good.id, "drl_1", "a drill passed")
        guest = stage.engine.sandboxes[box.id].guest
        looker = REAL(stage.engine, SystemClock())
        assert (await looker.look(box.id, spec)).outcome == "pass"
        guest.fits, guest.held["skills"] = (), {}
        found = await looker.look(box.id, spec)
        assert "skills" in guest.plans[-1]["sources"]
        assert found.outcome == "fail"

    act(scene)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (DataDamaged("a layer is not what was written"), "fail"),
        (InsufficientResources("no memory is left"), "inconclusive"),
        (HostNotReady("the agent is too old"), "inconclusive"),
    ],
)
def test_a_machine_that_cannot_be_woken_is_told(
    act: Act, monkeypatch: pytest.MonkeyPatch, error: TorporError, outcome: str
) -> None:
    def refuses(*_: object) -> NoReturn:
        raise error

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        await stage.engine.hibernate(box.id)
        monkeypatch.setattr(stage.engine, "guest", refuses)
        seen = await REAL(stage.engine, SystemClock()).look(box.id, replace(SPEC, wake=True))
        assert seen.outcome == outcome
        assert error.message in seen.sentence

    act(scene)


@pytest.mark.parametrize("error", [NotFound("no profile is called so"), RuntimeError("a fault")])
def test_a_look_that_comes_to_nothing_is_not_taken_for_the_one_before(
    act: Act, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def broken(*_: object) -> NoReturn:
        raise error

    async def scene(stage: Stage) -> None:
        watches, box = stage.recovery.watches, await stage.sandbox()
        await watches.put(box.id, SPEC)
        assert (await watches.look(box.id)).outcome == "pass"
        monkeypatch.setattr(ScriptedWatchLooker, "look", broken)
        await watches._look_by_the_clock(box.id)
        found = await watches.get(box.id)
        assert found.outcome == "inconclusive"
        assert str(error.args[0]) in found.sentence

    act(scene)


def test_values_survive_json() -> None:
    info = WatchInfo(
        sandbox_id=SandboxId("s"), workspace="w", checks_source="c", schedule=None,
        every_seconds=60.0, wake=False, author="a", created_at=NOW, next_at=NOW,
        failing_since=NOW, reasons=("x",),
    )  # fmt: skip
    assert WatchInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
