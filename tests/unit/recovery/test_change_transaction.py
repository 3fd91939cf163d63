"""Every way that a change can end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOS
from sqlalchemy.exc import OperationalError

from tests.unit.recovery.stage import Act, ScriptedLooker, Stage
from torpor.base.clock import SystemClock
from torpor.db.changes import ChangeRow
from torpor.errors import (
    Conflict,
    GuestFailed,
    GuestUnreachable,
    InsufficientResources,
    InvalidRequest,
    LastGoodSnapshot,
    NotFound,
    VmmFailed,
    WrongState,
)
from torpor.model import RestoreSpec, SandboxState
from torpor.model_changes import ChangeState
from torpor.model_inventory import Inventory
from torpor.model_inventory_diff import InventoryDiff, compare
from torpor.model_volumes import VolumeMount
from torpor.recovery import dbos_setup, durable
from torpor.recovery.changes import acts, desk, undoing
from torpor.recovery.changes.acts import Acts
from torpor.recovery.changes.looks import Look, Looker
from torpor.recovery.changes.page import page
from torpor.recovery.changes.words import text
from torpor.recovery.desk import Recovery

S = ChangeState
SCRIPT = ScriptedLooker.script


def test_a_good_change_is_kept(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="mark one; echo fine", author="ann")
        assert (begun.state, begun.sandbox_id, begun.author) == (S.IDLE, box.id, "ann")
        ended = await stage.until(begun)
        assert (ended.state, ended.verdict) == (S.KEPT, "kept"), ended.why
        assert ended.snapshot_id is not None
        point = await stage.engine.get_snapshot(ended.snapshot_id)
        assert (point.label, point.protected) == (f"before-{ended.id}", ())
        assert stage.engine.sandboxes[box.id].guest.marks["one"] == 1
        assert (await stage.engine.get(box.id)).generation == box.generation
        assert ScriptedLooker.asked == ["before", "after"]
        assert ended.why == "1 required check passes, as before the change"
        report = await stage.desk.report(ended.id)
        assert report["evidence"] == [ended.why]
        assert report["passing"] == ["required/command:ready: it is pass"]
        assert "required/command:ready: it is pass" in text(report)
        assert "required/command:ready: it is pass" in page(report)
        assert report["command"]["stdout_tail"] == "fine\n"
        assert [s["name"] for s in report["steps"]] == [
            "look before",
            "snapshot",
            "change",
            "verify",
        ]
        await stage.engine.hibernate(box.id)  # nothing holds it any more

    act(scene)


@pytest.mark.parametrize(
    ("command", "ending", "why"),
    [
        ("echo oh no; exit 3", "command", "ended with status 3"),
        ("sleep 60", "command", "killed at its limit"),
        ("lost", "machine", "cannot be known"),
    ],
)
def test_a_command_that_fails_is_rolled_back(act: Act, command: str, ending: str, why: str) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command=command, command_timeout_seconds=1)
        ended = await stage.until(begun)
        assert (ended.state, ended.verdict, ended.ending) == (S.ROLLED_BACK, "rolled_back", ending)
        assert why in ended.why
        info = await stage.engine.get(box.id)
        assert (info.boot_mode, info.state) == ("cold", SandboxState.RUNNING)
        assert info.parent_snapshot == ended.snapshot_id
        failed = await stage.engine.get_snapshot(ended.failed_snapshot_id)  # type: ignore[arg-type]
        assert (failed.label, failed.protected) == (f"failed-{ended.id}", ())
        await stage.engine.rollback(box.id, failed.id)  # the undo can be undone

    act(scene)


def test_checks_that_fail_roll_back_with_the_evidence(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        SCRIPT["after"] = ["fail"]
        box = await stage.sandbox()
        ended = await stage.until(await stage.change(box.id, command="true", memory="ram"))
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "checks")
        assert "required/command:ready fails" in ended.why
        assert (await stage.engine.get(box.id)).boot_mode == "restore"
        report = await stage.desk.report(ended.id)
        (probe,) = report["probes"]
        assert (probe["before"]["outcome"], probe["after"]["outcome"]) == ("pass", "fail")
        assert report["log_lines"] == ["required/command:ready: the last line"]
        assert report["undone"]["verdict"] == "pass"
        assert any("torpor restore" in step["command"] for step in report["next"])
        assert "stays done" in report["not_undone"][0]

    act(scene)


def test_what_failed_before_is_not_the_changes_fault(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        SCRIPT["before"], SCRIPT["after"] = ["fail"], ["fail"]
        box = await stage.sandbox()
        ended = await stage.until(await stage.change(box.id, command="true"))
        assert (ended.state, ended.verdict) == (S.KEPT, "inconclusive")
        assert (
            "failed before the change too"
            in (await stage.desk.report(ended.id))["verdict_reasons"][-1]
        )

    act(scene)


@pytest.mark.parametrize("probation", [0.0, 0.3])
def test_a_provider_that_is_down_rolls_back_nothing(act: Act, probation: float) -> None:
    async def scene(stage: Stage) -> None:
        SCRIPT["after"] = SCRIPT["probation"] = ["inconclusive"]
        box = await stage.sandbox()
        begun = await stage.change(
            box.id, command="true", probation_seconds=probation, require_confirm=False
        )
        ended = await stage.until(begun)
        assert (ended.state, ended.verdict) == (S.KEPT, "inconclusive")
        assert "could not be told" in ended.why
        assert (await stage.engine.get(box.id)).generation == box.generation

    act(scene)


def test_a_machine_that_dies_is_put_back_all_the_same(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        SCRIPT["after"] = ["dead"]
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="sleep 30")
        await stage.until(begun, S.CHANGING)
        await stage.running(box.id)
        stage.fail(box.id)
        ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "machine")
        assert "cannot be known" in ended.why
        assert ended.failed_snapshot_id is None
        assert "could not be kept" in (await stage.desk.report(ended.id))["failed_state"]
        assert (await stage.engine.get(box.id)).state is SandboxState.RUNNING

    act(scene)


@pytest.mark.parametrize("is_host_booted", [False, True])
def test_a_machine_that_went_with_its_host_speaks_against_no_target(
    act: Act, monkeypatch: pytest.MonkeyPatch, is_host_booted: bool
) -> None:
    async def scene(stage: Stage) -> None:
        SCRIPT["probation"] = ["dead"]
        box = await stage.sandbox()
        begun = await stage.change(
            box.id, command="true", target="z 1", probation_seconds=60, interval_seconds=1
        )
        await stage.until(begun, S.PROBATION)
        await stage.recovery.aclose()
        if is_host_booted:
            monkeypatch.setattr("torpor.recovery.changes.acts.host_boot", lambda: "another boot")
        await stage.restart()
        ended = await stage.until(begun)
        assert ended.state is S.ROLLED_BACK, "what was not verified is not kept"
        if is_host_booted:
            assert ended.ending == "daemon"
            assert "says nothing of the change" in ended.why
            await stage.until(await stage.change(box.id, command="true", target="z 1"))
        else:
            assert ended.ending == "machine"
            with pytest.raises(Conflict, match="rolled back before"):
                await stage.change(box.id, command="true", target="z 1")

    act(scene)


def test_a_machine_that_ends_before_the_command_begins_speaks_against_no_target(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Acts.step_begin

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()

        async def failing(self: Acts, row: ChangeRow) -> dict[str, Any]:
            found = await begin(self, row)
            stage.fail(box.id)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Acts, "step_begin", failing)
            begun = await stage.change(box.id, command="mark one", target="two")
            ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "none")
        assert ended.why == "the command was not started: the machine is failed"
        assert stage.engine.sandboxes[box.id].guest.marks["one"] == 0
        again = await stage.change(box.id, command="mark one", target="two")
        assert (await stage.until(again)).state is S.KEPT

    act(scene)


def test_a_confirm_ends_the_probation_early(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", probation_seconds=600)
        with pytest.raises(WrongState, match="only one on probation") as caught:
            await stage.desk.confirm(begun.id)
        assert caught.value.hint is not None
        assert f"torpor change follow {begun.id}" in caught.value.hint
        waiting = await stage.until(begun, S.PROBATION)
        assert waiting.deadline_at is not None
        assert waiting.require_confirm
        kept = await stage.desk.confirm(begun.id, by="ann")
        assert (kept.state, kept.verdict, kept.why) == (S.KEPT, "kept", "confirmed by ann")
        with pytest.raises(WrongState) as caught:
            await stage.desk.confirm(begun.id)
        assert caught.value.hint == f"it is over: torpor report {begun.id}"
        with pytest.raises(WrongState, match="over"):
            await stage.desk.reject(begun.id)

    act(scene)


def test_a_clock_that_is_set_ends_no_probation(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(
            box.id, command="true", probation_seconds=600, interval_seconds=1
        )
        await stage.until(begun, S.PROBATION)
        there = SystemClock.now
        monkeypatch.setattr(SystemClock, "now", lambda self: there(self) + timedelta(hours=2))
        async with asyncio.timeout(20):
            while ScriptedLooker.asked.count("probation") < 2:
                await asyncio.sleep(0.05)
        kept = await stage.desk.confirm(begun.id, by="ann")
        assert (kept.state, kept.why) == (S.KEPT, "confirmed by ann")

    act(scene)


def test_a_confirm_that_races_the_deadline_is_in_time_if_the_clock_was_not_read_yet(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        confirming: list[asyncio.Task[Any]] = []
        looks_at: list[float] = []

        async def clock(_acts: Acts, row: ChangeRow) -> dict[str, Any]:
            if not looks_at:  # the first time is when the probation begins
                looks_at.append(1.0)
                return {"now": 1.0}
            confirming.append(asyncio.ensure_future(stage.desk.confirm(row.info.id, by="ann")))
            await sent.wait()
            return {"now": 3.0}

        sent, send = asyncio.Event(), stage.desk._send

        async def told(*words: Any) -> None:
            await send(*words)
            sent.set()

        async def probation(acts: Acts, row: ChangeRow) -> dict[str, Any]:
            await acts.advance(row, S.PROBATION, deadline_at=stage.desk._clock.now())
            return {"deadline": 2.0, "interval": 600.0, "confirm": True}

        monkeypatch.setattr(stage.desk, "_send", told)
        monkeypatch.setattr(Acts, "step_clock", clock)
        monkeypatch.setattr(Acts, "step_probation", probation)
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", probation_seconds=600)
        ended = await stage.until(begun)
        assert (ended.state, ended.why) == (S.KEPT, "confirmed by ann")
        assert (await confirming[0]).state is S.KEPT

    act(scene)


def test_a_confirm_during_a_long_look_is_noted_and_the_look_decides(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looking, over = ScriptedLooker.look, asyncio.Event(), asyncio.Event()

    async def slow(
        looker: ScriptedLooker, sandbox_id: Any, spec: Any, phase: Any, **more: Any
    ) -> Look:
        if phase == "probation":
            looking.set()
            await over.wait()
        return await look(looker, sandbox_id, spec, phase, **more)

    monkeypatch.setattr(ScriptedLooker, "look", slow)
    monkeypatch.setattr(desk, "ANSWER_S", 0.2)

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(
            box.id, command="true", probation_seconds=600, interval_seconds=1
        )
        async with asyncio.timeout(20):
            await looking.wait()
        noted = await stage.desk.confirm(begun.id, by="ann")
        assert noted.state is S.PROBATION
        over.set()
        assert (await stage.until(begun)).why == "confirmed by ann"

    act(scene)


def test_a_rejection_that_comes_too_late_says_so(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", probation_seconds=600)
        await stage.until(begun, S.PROBATION)
        send = stage.desk._send

        async def late(row: ChangeRow, word: Any) -> None:
            await send(row, {"say": "confirm", "by": "ann"})
            await stage.until(begun)
            await send(row, word)

        monkeypatch.setattr(stage.desk, "_send", late)
        with pytest.raises(Conflict, match=r"too late.*confirmed by ann") as caught:
            await stage.desk.reject(begun.id)
        assert "torpor rollback" in str(caught.value.hint)

    act(scene)


def test_a_report_holds_no_secret_that_a_command_wrote(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(
            box.id, command="echo export OPENAI_API_KEY=sk-proj-0123456789abcdef; exit 1"
        )
        await stage.until(begun)
        report = await stage.desk.report(begun.id)
        assert report["command"]["stdout_tail"] == "export OPENAI_API_KEY=[masked]\n"
        assert "0123456789abcdef" not in "".join(report["log_lines"])

    act(scene)


def test_no_secret_that_was_given_is_kept_when_it_is_over(act: Act) -> None:
    secret = "0123456789abcdef"

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        command = f"mark one; echo api_key={secret}; echo API_KEY={secret} >&2; exit 1"
        begun = await stage.change(
            box.id, command=command, reason=f"a new key, token={secret}", target="a key"
        )
        assert secret not in str(begun)
        ended = await stage.until(begun)
        assert stage.engine.sandboxes[box.id].guest.marks["one"] == 1, "it was run as it is"
        said = [event async for event in stage.desk.events(begun.id)]
        assert {"output", "step", "state"} <= {event.name for event in said}
        snapshots = await stage.engine.snapshots(box.id)
        row = await asyncio.to_thread(stage.desk._rows.get, ended.id)
        for found in (ended, said, snapshots, row, await stage.desk.report(ended.id)):
            assert secret not in str(found)
        assert row.info.command == row.spec.command == command.replace(secret, "[masked]")
        assert [e for e in said if e.name == "output" and "api_key=[masked]" in str(e)]

        command = f"echo api_key={secret}"
        begun = await stage.change(box.id, command=command, probation_seconds=600)
        await stage.until(begun, S.PROBATION)
        row = await asyncio.to_thread(stage.desk._rows.get, begun.id)
        assert secret not in str(row), "its command has ended, and need not be run again"
        await stage.desk.confirm(begun.id)

    act(scene)


def test_no_secret_of_a_hook_is_kept(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()

        async def fail(*_: object) -> None:
            raise GuestFailed("hook db: password=hunter2hunter2 is wrong")

        monkeypatch.setattr(acts, "take_point", fail)
        begun = await stage.change(box.id, command="true", consistency="application")
        ended = await stage.until(begun)
        what = "hook db: password=[masked] is wrong"
        assert ended.why == f"no snapshot could be taken: {what}; nothing was changed"
        report = await stage.desk.report(ended.id)
        assert (report["steps"][-1]["name"], report["steps"][-1]["outcome"]) == ("snapshot", what)
        told = [step["command"] for step in report["next"]]
        assert told == [f"torpor get {box.id}", f"torpor quiesce test {box.id}"]

    act(scene)


def test_silence_rolls_back(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", probation_seconds=0.3, target="x 2")
        ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "silence")
        again = await stage.change(box.id, command="true", target="x 2")  # silence is no proof
        assert (await stage.until(again)).state is S.KEPT

    act(scene)


def test_without_asking_for_a_confirm_silence_keeps(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(
            box.id,
            command="true",
            probation_seconds=0.4,
            require_confirm=False,
            interval_seconds=1,
        )
        ended = await stage.until(begun)
        assert (ended.state, ended.verdict) == (S.KEPT, "kept")
        assert ScriptedLooker.asked == ["before", "after", "probation"]

    act(scene)


def test_damage_in_probation_rolls_back_at_once(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        SCRIPT["probation"] = ["inconclusive", "pass", "fail"]
        box = await stage.sandbox()
        begun = await stage.change(
            box.id, command="true", probation_seconds=600, interval_seconds=1
        )
        await stage.until(begun, S.PROBATION)
        ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "checks")
        assert ScriptedLooker.asked == ["before", "after", *["probation"] * 3, "undone"]

    act(scene)


def test_a_rejection_ends_it_wherever_it_is(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="sleep 60", target="Hermes  0.19")
        await stage.until(begun, S.CHANGING)
        await stage.running(box.id)
        going = await stage.desk.reject(begun.id, by="ann", why="no")
        assert going.state in (S.ROLLING_BACK, S.ROLLED_BACK)
        ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "rejected")
        with pytest.raises(Conflict, match="rolled back before") as caught:
            await stage.change(box.id, command="true", target="hermes 0.19")
        assert caught.value.facts["change_id"] == ended.id
        assert "--force" in str(caught.value.hint)
        waiting = await stage.change(
            box.id, command="true", target="hermes 0.19", force=True, probation_seconds=60
        )
        await stage.until(waiting, S.PROBATION)
        await stage.desk.reject(waiting.id, by="ann")
        assert (await stage.until(waiting)).why == "rejected by ann"

    act(scene)


def test_a_target_that_was_kept_at_last_is_bad_no_more(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        await stage.until(await stage.change(box.id, command="exit 1", target="x 2"))
        with pytest.raises(Conflict, match="rolled back before"):
            await stage.change(box.id, command="true", target="x 2")
        forced = await stage.change(box.id, command="true", target="x 2", force=True)
        assert (await stage.until(forced)).state is S.KEPT
        again = await stage.change(box.id, command="exit 1", target="x 2")
        assert (await stage.until(again)).state is S.ROLLED_BACK
        with pytest.raises(Conflict, match="rolled back before"):
            await stage.change(box.id, command="true", target="x 2")

    act(scene)


def test_a_volume_that_was_attached_meanwhile_is_told(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box, other = await stage.sandbox(), await stage.sandbox()
        volumes = stage.engine.volumes
        for name in ("before", "data", "books", "elsewhere"):
            await volumes.create(name)
        await volumes.attach(box.id, VolumeMount(volume="before", path="/before"))
        await volumes.attach(other.id, VolumeMount(volume="elsewhere", path="/x"))
        begun = await stage.change(box.id, kind="block")
        await stage.until(begun, S.CHANGING)
        await volumes.attach(box.id, VolumeMount(volume="data", path="/data"))
        await volumes.attach(box.id, VolumeMount(volume="books", path="/books", read_only=True))
        await stage.desk.reject(begun.id)
        ended = await stage.until(begun)
        assert ended.state is S.ROLLED_BACK
        report = await stage.desk.report(ended.id)
        assert report["not_undone"][3:] == [
            "Volume books, which was attached at /books meanwhile, is taken off again.",
            "Volume data, which was attached at /data meanwhile, is taken off again; what was written to it stays.",
        ]
        assert "Volume data, which was attached" in page(report)

    act(scene)


def test_a_bad_target_is_known_to_the_family(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        stranger = await stage.sandbox()
        await stage.until(await stage.change(box.id, command="false", target="x 2"))
        snap = await stage.engine.snapshot(box.id)
        child = await stage.engine.restore(snap.id, RestoreSpec())
        with pytest.raises(Conflict, match="rolled back before"):
            await stage.change(child.id, command="true", target="X 2")
        ended = await stage.until(await stage.change(stranger.id, command="true", target="x 2"))
        assert ended.state is S.KEPT

    act(scene)


# ---- blocks ----


def test_a_block_is_made_by_its_client(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, kind="block")
        await stage.until(begun, S.CHANGING)
        assert (await stage.desk.renew(begun.id)).state is S.CHANGING
        gone = await stage.desk.done(begun.id)
        assert gone.state is not S.CHANGING
        assert (await stage.until(begun)).state is S.KEPT
        with pytest.raises(WrongState):
            await stage.desk.renew(begun.id)

    act(scene)


def test_a_client_that_dies_is_rolled_back(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, kind="block", lease_seconds=5)
        await stage.until(begun, S.CHANGING)
        stage.desk._acts.leases[begun.id] = asyncio.get_running_loop().time() + 0.2
        stage.recovery._durable.nudge(begun.id)
        ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "client")

    act(scene)


def test_a_client_that_fails_is_rolled_back_with_its_words(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, kind="block", target="y 1")
        await stage.until(begun, S.CHANGING)
        await stage.desk.reject(begun.id, why="ValueError: no", ending="client")
        ended = await stage.until(begun)
        assert (ended.state, ended.ending, ended.why) == (S.ROLLED_BACK, "client", "ValueError: no")
        await stage.until(await stage.change(box.id, command="true", target="y 1"))

    act(scene)


# ---- refused, or ended, before anything was changed ----


TOO_MUCH = "format: 1\nname: mine\nuser: root\nversions:\n" + "".join(
    f"  - {{name: v{n}, command: 'true'}}\n" for n in range(33)
)
"""A profile that asks for more than can be noted with a snapshot."""


def test_what_is_refused_before_it_begins(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        refusals: list[tuple[dict[str, Any], str]] = [
            ({"command": None}, "needs command"),
            ({"kind": "block", "command": "x"}, "takes no command"),
            ({"command": "x\0y"}, "command has a NUL"),
            ({"command": "x", "cwd": "/\0"}, "cwd has a NUL"),
            ({"command": "x", "reason": ""}, "reason"),
            ({"command": "x", "reason": "a\nb"}, "reason"),
            ({"command": "x", "target": " "}, "target"),
            ({"command": "x", "memory": "warm"}, "memory"),
            ({"command": "x", "probation_seconds": -1}, "probation_seconds"),
            ({"command": "x", "probation_seconds": float("nan")}, "probation_seconds"),
            (
                {"command": "x", "probation_seconds": 86400, "interval_seconds": 1},
                "more than 10000 looks",
            ),
            ({"command": "x", "allow": ("nothing",)}, "no kind 'nothing'"),
            ({"command": "x", "change_kind": "update"}, "no profile is named"),
            ({"command": "x", "profile": "hermes", "change_kind": "no"}, "knows no sort"),
            ({"command": "x", "profile": "a: b: c"}, "profile:1"),
            ({"command": "x", "profile": TOO_MUCH}, "at most 32 commands"),
            ({"command": "x", "checks": "required: {file: ["}, "checks:2:1"),
        ]
        for spec, match in refusals:
            with pytest.raises(InvalidRequest, match=match):
                await stage.change(box.id, **spec)
        with pytest.raises(NotFound):
            await stage.change(box.id, command="x", profile="nobody")
        with pytest.raises(NotFound):
            await stage.change("sbx_00000000000000000000", command="x")  # type: ignore[arg-type]
        await stage.engine.pause(box.id)
        with pytest.raises(WrongState, match="is paused"):
            await stage.change(box.id, command="x")
        await stage.engine.resume(box.id)
        stage.engine.disk_is_full = True
        with pytest.raises(InsufficientResources):
            await stage.change(box.id, command="x")
        assert await stage.desk.list() == []

    act(scene)


def test_a_command_that_cannot_be_begun_changes_nothing(act: Act) -> None:
    """A slip of the pen costs no boot, and nothing that the machine did meanwhile."""

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="mark never", user="nobody-here", target="two")
        ended = await stage.until(begun)
        assert (ended.state, ended.verdict, ended.ending) == (S.FAILED, None, "none")
        assert ended.why == (
            "the command cannot be started: no user 'nobody-here' in the guest; nothing was changed"
        )
        info = await stage.engine.get(box.id)
        assert (info.generation, info.state) == (box.generation, SandboxState.RUNNING)
        assert [s.protected for s in await stage.engine.snapshots(box.id)] == [()]
        again = await stage.change(box.id, command="mark one", target="two")
        assert (await stage.until(again)).state is S.KEPT

    act(scene)


def test_one_change_at_a_time(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", probation_seconds=60)
        with pytest.raises(Conflict, match=begun.id):
            await stage.change(box.id, command="true")
        await stage.until(begun, S.PROBATION)
        with pytest.raises(Conflict, match="a test"):
            await stage.change(box.id, command="true")
        await stage.desk.confirm(begun.id)
        await stage.until(await stage.change(box.id, command="true"))

    act(scene)


@pytest.mark.parametrize("what", ["look", "freeze", "full"])
def test_what_goes_wrong_before_the_snapshot_changes_nothing(act: Act, what: str) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        if what == "look":
            SCRIPT["before"] = ["dead"]
        elif what == "freeze":
            stage.engine.will_not_freeze = True
        else:
            SCRIPT["before"] = [InsufficientResources("the disk is full")]
        ended = await stage.until(await stage.change(box.id, command="mark never"))
        assert (ended.state, ended.verdict, ended.snapshot_id) == (S.FAILED, None, None)
        assert stage.engine.sandboxes[box.id].guest.marks["never"] == 0
        assert (await stage.engine.get(box.id)).generation == box.generation
        stage.engine.will_not_freeze = False
        await stage.engine.hibernate(box.id)

    act(scene)


PROFILE = """
format: 1
name: mine
quiesce:
  - {name: pause, kind: command, hold: HOLD, release: mine resume, required: true}
versions:
  - {name: mine, command: {command: mine --version, user: root}}
cursor: {command: {command: mine outbox, user: root}}
"""


def test_inventories_that_are_large_hold_nobody_up(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(before: Inventory, now: Inventory) -> InventoryDiff:
        threads.append(threading.current_thread())
        return compare(before, now)

    monkeypatch.setattr(acts, "Looker", Looker)
    monkeypatch.setattr("torpor.recovery.inventory.compare", noted)
    monkeypatch.setattr("torpor.recovery.checks.baseline.compare", noted)
    checks = "folders: false\nrequired: {inventory: {skills: superset}}"

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", inventory=True, checks=checks)
        ended = await stage.until(begun)
        assert ended.state is S.KEPT, ended.why
        assert (await stage.desk.report(ended.id))["inventory"]["counts"] == {}
        assert len(threads) == 3, "the check before and after, and all at once"
        assert threading.main_thread() not in threads

    act(scene)


def test_the_profile_that_a_change_names_says_how_its_machine_comes_to_rest(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        mine = PROFILE.replace("HOLD", "mine pause")
        ended = await stage.until(await stage.change(box.id, command="true", profile=mine))
        assert ended.state is S.KEPT
        point = (await stage.desk.report(ended.id))["snapshot"]
        assert point["consistency"] == "application"
        assert [hook["name"] for hook in point["quiesce"]["hooks"]] == ["pause", "sqlite"]
        assert (point["quiesce"]["versions"], point["quiesce"]["cursor"]) == ({"mine": "1.0"}, "42")

        fails = PROFILE.replace("HOLD", '"false"')
        ended = await stage.until(await stage.change(box.id, command="true", profile=fails))
        assert ended.state is S.KEPT, "what cannot be had is told, when nothing was insisted on"
        report = await stage.desk.report(ended.id)
        assert report["snapshot"]["consistency"] == "filesystem"
        (step,) = [step for step in report["steps"] if step["name"] == "snapshot"]
        assert step["outcome"].endswith("-consistent: hook pause: hold ended with status 1")

        wanted: dict[str, Any] = {"profile": fails, "consistency": "application"}
        ended = await stage.until(await stage.change(box.id, command="mark never", **wanted))
        assert (ended.state, ended.snapshot_id) == (S.FAILED, None)
        assert "hook pause: hold ended with status 1" in ended.why
        assert stage.engine.sandboxes[box.id].guest.marks["never"] == 0

        await stage.until(await stage.change(box.id, command="true"))
        (newest, *_) = await stage.engine.snapshots(box.id)
        assert newest.quiesce is not None
        assert [hook.name for hook in newest.quiesce.hooks] == ["sqlite"], "nobody named a profile"

    act(scene)


# ---- others, meanwhile ----


def test_what_others_may_do_meanwhile(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        old = await stage.engine.snapshot(box.id)
        begun = await stage.change(box.id, command="sleep 1", probation_seconds=60)
        await stage.until(begun, S.CHANGING)
        for act_ in (stage.engine.pause, stage.engine.hibernate):
            with pytest.raises(Conflict, match=begun.id):
                await act_(box.id)
        with pytest.raises(Conflict, match="is changing"):
            await stage.engine.rollback(box.id, old.id)
        await stage.engine.snapshot(box.id, label="mine")
        forks = await stage.engine.fork(box.id, RestoreSpec(), count=1)
        await stage.engine.delete(forks[0].id)  # type: ignore[union-attr]
        waiting = await stage.until(begun, S.PROBATION)
        assert waiting.snapshot_id is not None
        with pytest.raises(Conflict, match="may have to go back"):
            await stage.engine.delete_snapshot(waiting.snapshot_id)
        with pytest.raises(Conflict, match="is probation"):
            await stage.engine.rollback(box.id, old.id)
        await stage.engine.hibernate(box.id)  # it may sleep on probation
        assert (await stage.desk.confirm(begun.id)).state is S.KEPT
        good = await stage.engine.last_good(box.id)
        assert good is not None
        assert good.good is not None
        assert good.good.found_by == begun.id
        assert good.id == waiting.snapshot_id
        with pytest.raises(LastGoodSnapshot):
            await stage.engine.delete_snapshot(good.id)
        await stage.engine.delete_snapshot(good.id, force=True)

    act(scene)


@pytest.mark.parametrize("state", [S.CHANGING, S.PROBATION])
def test_a_sandbox_that_is_deleted_ends_its_change(act: Act, state: ChangeState) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        command = "sleep 60" if state is S.CHANGING else "true"
        begun = await stage.change(
            box.id, command=command, probation_seconds=600, interval_seconds=600
        )
        await stage.until(begun, state)
        if state is S.CHANGING:
            await stage.running(box.id)
        await stage.engine.delete(box.id)
        ended = await stage.until(begun, within_s=5)
        unknown = "; whether the change was right cannot be told any more"
        why = "the sandbox was deleted meanwhile" + (unknown if state is S.PROBATION else "")
        assert (ended.state, ended.verdict, ended.why) == (S.FAILED, None, why)
        assert stage.engine.needs == {}
        told = [step["command"] for step in (await stage.desk.report(ended.id))["next"]]
        assert told == [f"torpor restore {ended.snapshot_id}"], "there is nothing to put back"

    act(scene)


def test_a_machine_that_is_paused_on_probation_is_not_blamed(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        SCRIPT["probation"] = ["paused"]
        box = await stage.sandbox()
        begun = await stage.change(
            box.id, command="true", probation_seconds=0.4, require_confirm=False
        )
        ended = await stage.until(begun)
        assert (ended.state, ended.verdict) == (S.KEPT, "inconclusive")

    act(scene)


# ---- undoing that does not go smoothly ----


def test_a_guest_that_does_not_answer_is_kept_as_it_is(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        real, calls = stage.engine.snapshot, []

        async def snapshot(sandbox_id: Any, **wish: Any) -> Any:
            calls.append((await stage.engine.get(sandbox_id)).state)
            if wish["label"].startswith("failed") and calls[-1] is SandboxState.RUNNING:
                raise GuestUnreachable("the agent does not answer")
            return await real(sandbox_id, **wish)

        monkeypatch.setattr(stage.engine, "snapshot", snapshot)
        ended = await stage.until(await stage.change(box.id, command="false"))
        assert ended.state is S.ROLLED_BACK
        assert calls == [SandboxState.RUNNING, SandboxState.RUNNING, SandboxState.PAUSED]
        assert ended.failed_snapshot_id is not None

    act(scene)


def test_memory_that_cannot_go_on_becomes_a_boot_and_is_told(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undoing, "_PAUSE_S", 0.01)

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        real = stage.engine.rollback

        async def rollback(sandbox_id: Any, snapshot_id: Any, **how: Any) -> Any:
            if how["memory"] == "ram":
                raise VmmFailed("no such luck")
            return await real(sandbox_id, snapshot_id, **how)

        monkeypatch.setattr(stage.engine, "rollback", rollback)
        ended = await stage.until(await stage.change(box.id, command="false", memory="ram"))
        assert ended.state is S.ROLLED_BACK
        told = (await stage.desk.report(ended.id))["put_back"]
        assert "booted from its disk (its memory could not go on: no such luck)" in told

    act(scene)


def test_a_machine_that_does_not_come_back_is_tried_until_it_does(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torpor.recovery.changes import workflow

    monkeypatch.setattr(undoing, "_PAUSE_S", 0.01)
    monkeypatch.setattr(workflow, "_TRY_AGAIN_S", 0.02)
    monkeypatch.setattr(workflow, "_TRIES", 3)

    async def scene(stage: Stage) -> None:
        real = stage.engine.rollback
        left = 5

        async def rollback(sandbox_id: Any, snapshot_id: Any, **how: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                raise InsufficientResources("no memory")
            return await real(sandbox_id, snapshot_id, **how)

        monkeypatch.setattr(stage.engine, "rollback", rollback)
        box = await stage.sandbox()
        ended = await stage.until(await stage.change(box.id, command="false"))
        assert ended.state is S.ROLLED_BACK
        left = 1000
        ended = await stage.until(await stage.change(box.id, command="false"))
        assert (ended.state, ended.verdict) == (S.FAILED, None)
        assert "could not be put back: no memory" in ended.why
        (told,) = (await stage.desk.report(ended.id))["next"]
        assert told["command"] == f"torpor rollback {box.id} {ended.snapshot_id} --cold"
        point = await stage.engine.get_snapshot(ended.snapshot_id)  # type: ignore[arg-type]
        assert point.label == f"before-{ended.id}"

    act(scene)


def test_a_step_that_raises_undoes_the_change(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        SCRIPT["after"] = [ZeroDivisionError("a fault of ours")]
        box = await stage.sandbox()
        ended = await stage.until(await stage.change(box.id, command="true", target="z 1"))
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "daemon")
        assert "a fault of ours" in ended.why
        SCRIPT.clear()
        await stage.until(await stage.change(box.id, command="true", target="z 1"))

    act(scene)


def test_a_reboot_before_it_is_verified(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        ended = await stage.until(await stage.change(box.id, command="true", reboot=True))
        info = await stage.engine.get(box.id)
        assert (ended.state, info.boot_mode, info.generation) == (
            S.KEPT,
            "cold",
            box.generation + 1,
        )
        labels = {s.label for s in await stage.engine.snapshots(box.id)}
        assert labels == {f"before-{ended.id}"}
        real = stage.engine.rollback

        async def rollback(sandbox_id: Any, snapshot_id: Any, **how: Any) -> Any:
            if (await stage.engine.get_snapshot(snapshot_id)).label.startswith("boot-"):  # type: ignore[union-attr]
                raise GuestUnreachable("it hangs")
            return await real(sandbox_id, snapshot_id, **how)

        monkeypatch.setattr(stage.engine, "rollback", rollback)
        ended = await stage.until(await stage.change(box.id, command="true", reboot=True))
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "machine")
        assert "it does not boot: it hangs" in ended.why

    act(scene)


# ---- the next daemon ----


@pytest.mark.parametrize("state", [S.CHANGING, S.PROBATION])
def test_the_next_daemon_goes_on(act: Act, state: ChangeState) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        command = "mark one; sleep 1.5; echo done" if state is S.CHANGING else "mark one"
        begun = await stage.change(box.id, command=command, probation_seconds=60)
        await stage.until(begun, state)
        if state is S.CHANGING:
            await stage.running(box.id)
        await stage.restart()
        with pytest.raises(Conflict, match=begun.id):
            await stage.engine.rollback(box.id, (await stage.engine.snapshots(box.id))[0].id)
        await stage.until(begun, S.PROBATION)
        kept = await stage.desk.confirm(begun.id)
        assert kept.state is S.KEPT
        assert stage.engine.sandboxes[box.id].guest.marks["one"] == 1
        if state is S.CHANGING:
            assert (await stage.desk.report(begun.id))["command"]["stdout_tail"] == "done\n"

    act(scene)


def test_a_daemon_whose_clock_was_ahead_leaves_no_probation_without_an_end(act: Act) -> None:
    class Ahead(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(days=4000)

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        await stage.recovery.aclose()
        stage.recovery = Recovery(stage.home, stage.engine, clock=Ahead())
        begun = await stage.change(
            box.id, command="mark one", probation_seconds=2, interval_seconds=1
        )
        await stage.until(begun, S.PROBATION)
        await stage.restart()
        ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "silence")

    act(scene)


def test_a_machine_that_was_booted_meanwhile_knows_no_end(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="mark one; sleep 60")
        await stage.until(begun, S.CHANGING)
        await stage.running(box.id)
        await stage.recovery.aclose()
        guest = stage.engine.sandboxes[box.id].guest
        for found in guest.execs.values():
            found.kill(9)
        guest.execs.clear()
        guest.instance = "another"
        await stage.restart()
        ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "machine")
        assert stage.engine.sandboxes[box.id].guest.marks["one"] == 1, "never started twice"

    act(scene)


def test_a_change_whose_workflow_is_lost_is_undone(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", probation_seconds=600)
        await stage.until(begun, S.PROBATION)
        await stage.recovery.aclose()
        stage.home.workflows.unlink()
        await stage.restart()
        ended = await stage.until(begun)
        assert (ended.state, ended.ending) == (S.ROLLED_BACK, "daemon")
        assert (await stage.engine.get(box.id)).boot_mode == "cold"

    act(scene)


def test_rows_that_cannot_be_read_once_are_read_again(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "_SWEEP_S", 0.05)

    async def scene(stage: Stage) -> None:
        rows, refused = stage.desk._rows, []
        read = rows.open

        def locked() -> list[ChangeRow]:
            if len(refused) < 2:
                refused.append(True)
                raise InsufficientResources("the database is locked by another program")
            return read()

        monkeypatch.setattr(rows, "open", locked)
        box = await stage.sandbox()
        ended = await stage.until(await stage.change(box.id, command="true"))
        assert ended.state is S.KEPT
        async with asyncio.timeout(10):
            while len(refused) < 2:
                await asyncio.sleep(0.02)

    act(scene)


def test_words_for_a_change_whose_workflow_is_lost(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "_SWEEP_S", 600)

    async def scene(stage: Stage) -> None:
        for word in ("confirm", "reject"):
            box = await stage.sandbox()
            begun = await stage.change(box.id, command="true", probation_seconds=600)
            await stage.until(begun, S.PROBATION)
            await asyncio.to_thread(DBOS.delete_workflow, begun.id)
            if word == "confirm":
                with pytest.raises(Conflict, match="lost track of it"):
                    await stage.desk.confirm(begun.id, by="ann")
            else:
                await stage.desk.reject(begun.id)
            assert (await stage.until(begun)).state is S.ROLLED_BACK

    act(scene)


def test_an_end_that_cannot_be_written_down_is_waited_for(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "_AGAIN_S", 0.05)

    async def scene(stage: Stage) -> None:
        rows, refused = stage.desk._rows, []
        save = rows.save

        def full(row: ChangeRow) -> None:
            if not row.info.is_open and len(refused) < 3:
                refused.append(row.info.state)
                raise InsufficientResources("the disk is full")
            save(row)

        monkeypatch.setattr(rows, "save", full)
        box = await stage.sandbox()
        ended = await stage.until(await stage.change(box.id, command="true"))
        assert (ended.state, ended.verdict) == (S.KEPT, "kept"), ended.why
        assert refused == [S.KEPT] * 3, "a good change is not undone because of that"
        assert stage.engine.needs == {}

    act(scene)


def test_a_disk_that_is_full_when_the_next_daemon_begins_is_waited_for(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "_AGAIN_S", 0.05)
    launch, refused = dbos_setup.launch, list[Path]()

    def full(path: Path, version: str) -> None:
        if len(refused) < 3:
            refused.append(path)
            raise InsufficientResources("the disk is full")
        launch(path, version)

    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", probation_seconds=600)
        await stage.until(begun, S.PROBATION)
        monkeypatch.setattr(dbos_setup, "launch", full)
        await stage.restart()
        async with asyncio.timeout(20):
            while not stage.recovery._durable._working:
                await asyncio.sleep(0.02)
        assert len(refused) == 3
        assert (await stage.desk.confirm(begun.id)).state is S.KEPT

    act(scene)


def test_a_damaged_file_of_workflows_is_set_aside(act: Act) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        begun = await stage.change(box.id, command="true", probation_seconds=600)
        await stage.until(begun, S.PROBATION)
        await stage.recovery.aclose()
        stage.home.workflows.write_bytes(b"no database" * 1000)
        await stage.restart()
        assert (await stage.until(begun)).state is S.ROLLED_BACK
        assert stage.home.workflows.with_name("workflows.db.damaged").exists()
        assert stage.home.workflows.stat().st_mode & 0o777 == 0o600

    act(scene)


def test_a_daemon_that_never_began_it_changes_nothing(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()

        async def hang(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(stage.recovery._durable, "start", hang)
        beginning = asyncio.create_task(stage.change(box.id, command="mark never"))
        async with asyncio.timeout(5):
            while not await stage.desk.list():
                await asyncio.sleep(0.01)
        beginning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beginning
        await stage.restart()
        (info,) = await stage.desk.list()
        ended = await stage.until(info)
        assert (ended.state, ended.snapshot_id) == (S.FAILED, None)
        assert "nothing was changed" in ended.why
        assert stage.engine.sandboxes[box.id].guest.marks["never"] == 0

    act(scene)


def test_workflows_that_ended_are_forgotten(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        box = await stage.sandbox()
        ended = await stage.until(await stage.change(box.id, command="true"))
        waiting = await stage.change(box.id, command="true", probation_seconds=60)
        await stage.until(waiting, S.PROBATION)
        durable = stage.recovery._durable
        assert await durable.is_known(ended.id)
        await durable.prune(stage.desk._clock.now() - timedelta(hours=1))
        assert await durable.is_known(ended.id)
        async with asyncio.timeout(10):
            while await durable.is_known(ended.id):  # its last line is written behind ours
                await durable.prune(stage.desk._clock.now() + timedelta(hours=1))
        assert await durable.is_alive(waiting.id)
        assert (await stage.desk.confirm(waiting.id)).state is S.KEPT
        assert (await stage.desk.get(ended.id)).state is S.KEPT

    act(scene)


def test_workflows_that_cannot_be_begun_change_nothing(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torpor.recovery import dbos_setup

    async def scene(stage: Stage) -> None:
        real, tries = dbos_setup._launch, 0

        def launch(path: Path, version: str) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise OperationalError("x", {}, Exception("database or disk is full"))
            real(path, version)

        monkeypatch.setattr(dbos_setup, "_launch", launch)
        box = await stage.sandbox()
        with pytest.raises(InsufficientResources, match="full"):
            await stage.change(box.id, command="mark never")
        (info,) = await stage.desk.list()
        assert (info.state, info.snapshot_id) == (S.FAILED, None)
        ended = await stage.until(await stage.change(box.id, command="true"))
        assert ended.state is S.KEPT
        assert stage.engine.sandboxes[box.id].guest.marks["never"] == 0

    act(scene)
