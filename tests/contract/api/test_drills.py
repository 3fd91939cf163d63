"""Drills and watches over REST, in Python and on the command line, with looks that a test writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from tests.fakes.serving import ServerThread
from tests.unit.recovery.test_drills import ScriptedDrillLooker
from tests.unit.recovery.test_watches import ScriptedWatchLooker
from torpor import AsyncDrill, AsyncSandbox, Drill, Sandbox, Snapshot
from torpor.base.ids import new_id
from torpor.errors import (
    CheckInconclusive,
    DrillFailed,
    InvalidRequest,
    LastGoodSnapshot,
    NotFound,
    WrongState,
)
from torpor.recovery import dbos_setup
from torpor.recovery.drills import acts
from torpor.recovery.watches import desk

pytestmark = pytest.mark.usefixtures("server", "_looks")
CHECKS = {"required": {"file": {"/etc/agent.conf": {"exists": True}}}}
SCRIPT = ScriptedDrillLooker.script


@pytest.fixture
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts, "DrillLooker", ScriptedDrillLooker)
    monkeypatch.setattr(desk, "WatchLooker", ScriptedWatchLooker)
    monkeypatch.setattr(dbos_setup, "_POLL_S", 0.05)
    SCRIPT.clear()
    ScriptedDrillLooker.gate = ScriptedDrillLooker.entered = None
    ScriptedWatchLooker.script[:] = ["pass"]


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create(metadata={"name": "hermes-1"})


@pytest.fixture
def cli() -> Cli:
    return Cli()


def finished(rest: Rest, drill_id: str) -> dict[str, object]:
    found: dict[str, object] = {"ended_at": None}
    while found["ended_at"] is None:
        found = rest.ok("GET", f"/v1/drills/{drill_id}", params={"wait_seconds": 20})
    return found


def test_a_drill_over_rest(rest: Rest, sandbox: Sandbox) -> None:
    taken = sandbox.snapshot(label="monday")
    made = rest.ok("POST", f"/v1/snapshots/{taken.id}/drills", status=201)
    assert (made["verdict"], made["choice"], made["boots"]) == (None, "named", ["ram", "cold"])
    found = finished(rest, made["id"])
    assert (found["verdict"], found["sandbox_id"]) == ("pass", sandbox.id)
    evidence = rest.ok("GET", f"/v1/drills/{made['id']}/evidence")
    assert evidence["sentence"] == found["sentence"]
    said = rest.http.get(f"/v1/drills/{made['id']}/evidence", params={"format": "text"}).text
    assert said.startswith("pass: snapshot snap_")
    listed = rest.ok("GET", "/v1/drills", params={"target": taken.id})["drills"]
    assert [one["id"] for one in listed] == [made["id"]]
    assert rest.ok("GET", f"/v1/snapshots/{taken.id}")["good"]["found_by"] == made["id"]
    rest.fails("DELETE", f"/v1/snapshots/{taken.id}", 409, "snapshot.last_good")
    rest.ok("DELETE", f"/v1/snapshots/{taken.id}", params={"force": True})


def test_bad_requests(rest: Rest, sandbox: Sandbox) -> None:
    path = f"/v1/sandboxes/{sandbox.id}"
    rest.fails("POST", f"{path}/drills", 404, "object.not_found")
    taken = sandbox.snapshot()
    for body in ({"boots": []}, {"checks": "required: 7"}, {"boots": ["hot"]}, {"x": 1}):
        rest.fails("POST", f"{path}/drills", 400, "request.invalid", json=body)
    schedule = {"schedule": "0 4 * * 8"}
    snapshot = f"/v1/snapshots/{taken.id}/drill-schedules"
    rest.fails("POST", snapshot, 400, "request.invalid", json=schedule)
    for where in (f"/v1/drills/{new_id('drl')}", f"{path}/watch"):
        rest.fails("GET", where, 404, "object.not_found")
    rest.fails("GET", "/v1/drills/drl_1", 400, "request.invalid")
    rest.fails("PUT", f"{path}/watch", 400, "request.invalid", json={"checks": "x"})
    rest.fails("POST", f"{path}/watch/look", 404, "object.not_found")
    assert rest.ok("GET", "/v1/drills", params={"target": taken.id})["drills"] == []


def test_a_drill_in_python(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no snapshot"):
        sandbox.drill()
    taken = sandbox.snapshot()
    file = tmp_path / "checks.yaml"
    file.write_text("required: {file: {/x: {exists: true}}}")
    steps: list[str] = []
    drill = sandbox.drill(checks=file, progress=lambda info: steps.append(info.step))
    assert (drill.verdict, drill.info.choice) == ("pass", "newest")
    assert drill.check() is drill
    assert drill.evidence is not None
    assert drill.evidence["checks"]["source"] == str(file)
    assert drill.points["boots"] == "pass"
    assert drill.text.startswith(drill.sentence[:20])
    assert steps[-1] == "over"
    assert [d.id for d in Drill.list(sandbox.id)] == [drill.id]
    assert Drill.get(drill.id).text == drill.text

    SCRIPT["cold"] = "fail"
    failed = Snapshot.get(taken.id).drill(boots=("cold",))
    with pytest.raises(DrillFailed, match="the agent's process starts"):
        failed.check()
    SCRIPT["cold"] = "inconclusive"
    with pytest.raises(CheckInconclusive):
        taken.drill(boots=("cold",)).check()
    file.write_text("required: 7")
    with pytest.raises(InvalidRequest, match=r"checks\.yaml:1"):
        taken.drill(checks=file)
    with pytest.raises(NotFound, match="there is no checks file"):
        taken.drill(checks=tmp_path / "none.yaml")


def test_one_that_is_not_over_has_no_evidence(
    rest: Rest, server: ServerThread, sandbox: Sandbox
) -> None:
    sandbox.snapshot()

    async def shut() -> None:
        ScriptedDrillLooker.gate = asyncio.Event()
        ScriptedDrillLooker.entered = asyncio.Event()

    async def until_entered() -> None:
        assert ScriptedDrillLooker.entered is not None
        await asyncio.wait_for(ScriptedDrillLooker.entered.wait(), 20)

    async def open_it() -> None:
        assert ScriptedDrillLooker.gate is not None
        ScriptedDrillLooker.gate.set()

    server.run(shut())
    drill = sandbox.drill(wait=False)
    server.run(until_entered())
    assert drill.verdict is None
    assert drill.evidence is None
    rest.fails("GET", f"/v1/drills/{drill.id}/evidence", 409, "object.wrong_state")
    with pytest.raises(CheckInconclusive, match="not over"):
        drill.check()
    server.run(open_it())
    assert drill.wait().verdict == "pass"
    assert issubclass(WrongState, Exception)


def test_schedules_in_python(sandbox: Sandbox) -> None:
    made = sandbox.schedule_drills("0 4 * * 1", checks=CHECKS, boots=("cold",))
    assert (made.sandbox_id, made.schedule) == (sandbox.id, "0 4 * * 1")
    taken = sandbox.snapshot()
    other = taken.schedule_drills("@monthly")
    assert {i.id for i in Drill.schedules()} >= {made.id, other.id}
    assert Drill.unschedule(other.id).snapshot_id == taken.id
    assert Drill.unschedule(made.id).id == made.id
    with pytest.raises(NotFound):
        Drill.unschedule(made.id)


def test_a_watch_in_python(sandbox: Sandbox) -> None:
    assert sandbox.watched() is None
    with pytest.raises(NotFound):
        Sandbox.handle(new_id("sbx")).watched()
    info = sandbox.watch(CHECKS, every_seconds=3600)
    assert (info.every_seconds, info.outcome) == (3600, None)
    good = sandbox.snapshot()
    good.drill(boots=("cold",))
    ScriptedWatchLooker.script[:] = ["fail"]
    found = sandbox.look()
    assert (found.outcome, found.last_good) == ("fail", good.id)
    assert found.offer in (sandbox.refresh().health_note or "")
    assert sandbox.watched() == found
    sandbox.unwatch()
    assert sandbox.refresh().health_note is None
    with pytest.raises(NotFound):
        sandbox.look()


def test_in_async_python() -> None:
    async def scene() -> None:
        sandbox = await AsyncSandbox.create()
        taken = await sandbox.snapshot()
        drill = await taken.drill(boots=("cold",))
        assert drill.verdict == "pass"
        assert [d.id for d in await AsyncDrill.list(taken.id)] == [drill.id]
        assert (await AsyncDrill.get(drill.id)).points == drill.points
        made = await sandbox.schedule_drills("0 4 * * 1")
        assert made.id in [i.id for i in await AsyncDrill.schedules()]
        await AsyncDrill.unschedule(made.id)
        await sandbox.watch(CHECKS, schedule="0 4 * * *")
        assert (await sandbox.look()).outcome == "pass"
        assert (await sandbox.unwatch()).schedule == "0 4 * * *"
        with pytest.raises(LastGoodSnapshot):
            await taken.delete()
        await taken.delete(force=True)

    asyncio.run(scene())


# ---- the command line ----


def test_drills_on_the_command_line(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.snapshot(label="monday")
    file = tmp_path / "checks.yaml"
    file.write_text("required: {file: {/x: {exists: true}}}")
    said = cli("drill", "hermes-1", "--checks", str(file))
    assert said.startswith("pass: snapshot snap_")
    assert "with its memory" in said
    (listed,) = cli.json("drill", "ls", "hermes-1")
    assert listed["choice"] == "newest"
    assert cli.json("drills")[0]["id"] == listed["id"]
    assert cli("drills", sandbox.id).count("\n") == 2
    assert cli("drill", "show", listed["id"][:12]) == said
    assert cli.json("drill", "show", listed["id"])["evidence"]["verdict"] == "pass"

    SCRIPT["cold"] = "fail"
    failed = cli("drill", "hermes-1@monday", "--boots", "cold", code=107)
    assert failed.startswith("fail: the agent's process starts?")
    SCRIPT["cold"] = "inconclusive"
    found = cli.json("drill", sandbox.id, "--boots", "cold", code=91)
    assert found["drill"]["verdict"] == "inconclusive"
    detached = cli("drill", sandbox.id, "--boots", "cold", "-d").strip()
    assert Drill.get(detached).wait().verdict == "inconclusive"

    assert "none of both" in cli.fails("drill", sandbox.id, "--boots", "x", code=64)
    cli.fails("drill", "nobody", code=66)
    cli.fails("drill", "nobody@monday", code=66)
    cli.fails("drill", "show", "drl_zzz", code=66)


def test_schedules_on_the_command_line(cli: Cli, sandbox: Sandbox) -> None:
    said = cli("drill", "hermes-1", "--schedule", "0 4 * * 1")
    made = said.split()[0]
    assert "first 20" in said
    assert made in cli("drill", "schedule", "ls")
    assert cli.json("drill", "schedule", "ls")[0]["sandbox_id"] == sandbox.id
    assert cli.json("drill", "schedule", "rm", made) == {"deleted": [made]}
    assert "is no schedule" in cli.fails("drill", "hermes-1", "--schedule", "soon", code=64)


def test_the_last_good_snapshot_on_the_command_line(cli: Cli, sandbox: Sandbox) -> None:
    taken = sandbox.snapshot(label="monday")
    cli("drill", taken.id)
    assert "good" in cli("snapshot", "show", taken.id)
    said = cli.fails("snapshot", "rm", taken.id, code=106)
    assert f"torpor snapshot rm {taken.id} --force" in said
    cli("snapshot", "rm", taken.id, "--force")


def test_watches_on_the_command_line(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "checks.yaml"
    file.write_text(json.dumps(CHECKS))
    said = cli("watch", "hermes-1", "--checks", str(file), "--every", "6h")
    assert "every 6 h" in said
    taken = sandbox.snapshot(label="monday")
    cli("drill", taken.id)
    ScriptedWatchLooker.script[:] = ["fail"]
    failed = cli("watch", "look", "hermes-1", code=90)
    offer = f"torpor rollback {sandbox.id} {taken.id} --cold"
    assert offer in failed
    assert offer in cli("watch", "show", "hermes-1")
    assert offer in cli("ls")
    assert offer in cli("get", "hermes-1")
    assert cli.json("watch", "ls")[0]["outcome"] == "fail"
    assert "fail" in cli("watch", "ls")
    assert "not watched" in cli("watch", "rm", "hermes-1")
    assert "is not watched" in cli.fails("watch", "show", "hermes-1", code=66)
    assert offer not in cli("ls")
    cli.fails("watch", "hermes-1", "--checks", str(file), "--every", "often", code=64)
