"""Snapshots over a driver without machines: what is kept, what a failure leaves, what the next daemon makes of it."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fakes.driver import FakeAgent
from tests.unit.sandboxes.world import Play, World
from torpor.base.fsio import remove_tree
from torpor.errors import (
    Conflict,
    DataDamaged,
    GenerationChanged,
    GuestFailed,
    GuestUnreachable,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    SnapshotUnusable,
    TorporError,
    VmmFailed,
    WrongState,
)
from torpor.layers.store import LayerStore
from torpor.model import (
    ExecId,
    ExecInfo,
    RestoreSpec,
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxState,
    SnapshotId,
)
from torpor.model_contexts import CONTEXTS_FOLDER
from torpor.sandboxes import admission, room

S = SandboxState


def _layers(world: World) -> set[str]:
    return {p.name.partition(".")[0] for p in world.home.layers.iterdir()}


def test_a_snapshot_holds_the_machine_and_the_machine_goes_on(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id, label="before", metadata={"k": "v"})
        assert (snap.label, snap.sandbox_id, snap.consistency, snap.reason) == (
            "before",
            info.id,
            "filesystem",
            "snapshot",
        )
        assert snap.parent == info.parent_snapshot
        assert snap.size_bytes > 0
        assert (await world.engine.get(info.id)).state is S.RUNNING
        assert await world.vmm(info.id).status() == "running"
        agent = world.connect.agents[-1]
        assert agent.calls[-3:] == ["freeze", "thaw", "set_clock"]
        assert not agent.frozen
        assert await world.engine.get_snapshot(snap.id) == snap
        assert [s.id for s in await world.engine.snapshots(info.id)] == [snap.id]
        second = await world.engine.snapshot(info.id, consistency="crash")
        assert second.parent == snap.id
        assert agent.calls[-2:] == ["sync", "set_clock"]
        manifest = world.engine._parts.layers.get(second.id)
        assert len(manifest.ram) == 3, "template, first, second"
        assert len(manifest.disk) == 3
        assert await world.engine.verify_snapshot(second.id) == ()

    play(scene)


@pytest.mark.parametrize("fails", [None, "devices", "switch", "ram", "resume"])
def test_a_snapshot_that_cuts_the_channel_goes_on_over_a_new_one(
    play: Play, fails: str | None
) -> None:
    async def scene(world: World) -> None:
        world.driver.snapshots_cut = True
        info = await world.create()
        world.connect.keeps = True
        before = world.connect.agents[-1]
        if fails is not None:
            world.driver.fail_once[fails] = VmmFailed("no")
            with pytest.raises(VmmFailed, match="no"):
                await world.engine.snapshot(info.id)
        else:
            await world.engine.snapshot(info.id)
        agent = world.connect.agents[-1]
        assert before.closed, "nobody waits for answers on a channel that is dead"
        assert agent is not before
        assert agent.calls == ["thaw", "set_clock"]
        assert world.connect.epochs == sorted(set(world.connect.epochs))
        assert (await world.engine.get(info.id)).state is S.RUNNING
        async with world.engine.guest(info.id) as guest:
            assert guest is agent
        await world.engine.pause(info.id)
        await world.engine.snapshot(info.id)
        await world.engine.resume(info.id)
        async with world.engine.guest(info.id) as guest:
            assert guest is not agent, "also a machine that was paused by hand"
        await world.engine.hibernate(info.id)
        await world.engine.wake(info.id)

    play(scene)


@pytest.mark.parametrize("label", ["", " x", "a\nb", "x" * 200])
def test_labels_that_are_refused(play: Play, label: str) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        with pytest.raises(InvalidRequest):
            await world.engine.snapshot(info.id, label=label)

    play(scene)


def test_a_label_is_taken_once_in_a_sandbox(play: Play) -> None:
    async def scene(world: World) -> None:
        one, two = await world.create(), await world.create()
        await world.engine.snapshot(one.id, label="x")
        await world.engine.snapshot(two.id, label="x")
        with pytest.raises(Conflict, match="label 'x' already"):
            await world.engine.snapshot(one.id, label="x")
        with pytest.raises(InvalidRequest, match="consistency"):
            await world.engine.snapshot(one.id, consistency="perfect")  # type: ignore[arg-type]

    play(scene)


@pytest.mark.parametrize(
    "step", ["overlay", "pause", "devices", "switch", "switched", "ram", "resume", "thaw", "freeze"]
)
@pytest.mark.parametrize("act", ["snapshot", "hibernate"])
def test_a_capture_that_fails_leaves_the_source_as_it_was(play: Play, step: str, act: str) -> None:
    if act == "hibernate" and step in ("resume", "thaw"):
        pytest.skip("a hibernated machine is neither resumed nor thawed")

    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        before = await world.engine.snapshots()
        if step == "thaw":
            agent.holds = False
        elif step == "freeze":

            async def refuse(**_: Any) -> None:
                raise GuestFailed("cannot freeze")

            agent.freeze = refuse  # type: ignore[method-assign]
        else:
            world.driver.fail_once[step] = VmmFailed("no such luck")
        with pytest.raises(TorporError):
            await getattr(world.engine, act)(info.id)
        assert (await world.engine.get(info.id)).state is S.RUNNING
        assert await world.vmm(info.id).status() == "running"
        assert not agent.frozen
        assert await world.engine.snapshots() == before
        agent.holds = True
        agent.__dict__.pop("freeze", None)
        snap = await world.engine.snapshot(info.id)  # and the next one is whole
        assert await world.engine.verify_snapshot(snap.id) == ()
        forked = await world.engine.restore(snap.id, RestoreSpec())
        assert forked.state is S.RUNNING
        await world.engine.collect()
        assert await world.engine.verify_snapshot(snap.id) == ()

    play(scene)


@pytest.mark.parametrize("step", ["devices", "ram", "publish"])
@pytest.mark.parametrize("act", ["snapshot", "hibernate"])
def test_the_source_of_a_failed_capture_goes_on_though_its_vmm_does_not_say_what_it_does(
    play: Play, monkeypatch: pytest.MonkeyPatch, step: str, act: str
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        wrong = VmmFailed("did not answer 'PUT /snapshot/create'")

        def not_now(*_: object) -> None:
            raise wrong

        with monkeypatch.context() as patch:
            patch.setitem(world.driver.fail, "status", VmmFailed("did not answer 'GET /'"))
            if step == "publish":
                patch.setattr(LayerStore, "publish", not_now)
            else:
                patch.setitem(world.driver.fail_once, step, wrong)
            with pytest.raises(VmmFailed) as caught:
                await getattr(world.engine, act)(info.id)
        assert caught.value is wrong
        assert (await world.engine.get(info.id)).state is S.RUNNING
        assert await world.vmm(info.id).status() == "running"
        assert not agent.frozen

    play(scene)


@pytest.mark.parametrize("act", ["snapshot", "hibernate"])
def test_the_source_of_a_failed_capture_goes_on_when_its_vmm_answers_again(
    play: Play, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        wrong = VmmFailed("did not answer 'PUT /snapshot/create'")
        with monkeypatch.context() as patch:
            patch.setitem(world.driver.fail, "resume", VmmFailed("did not answer 'PATCH /vm'"))
            patch.setitem(world.driver.fail_once, "devices", wrong)
            with pytest.raises(VmmFailed) as caught:
                await getattr(world.engine, act)(info.id)
        assert caught.value is wrong, "and not what became of the attempt to let it go on"
        assert (await world.engine.get(info.id)).state is S.RUNNING
        await world.engine._tasks[info.id].go_on()  # as upkeep does
        assert await world.vmm(info.id).status() == "running"

    play(scene)


def test_restore_is_a_new_sandbox_and_rollback_the_same(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=100)
        snap = await world.engine.snapshot(info.id)
        made = await world.engine.restore(snap.id, RestoreSpec(metadata={"a": "b"}))
        assert made.id != info.id
        assert (made.boot_mode, made.parent_snapshot, made.metadata, made.ttl_seconds) == (
            "restore",
            snap.id,
            {"a": "b"},
            None,
        )
        assert world.connect.agents[-1].renewals[0].hostname == made.id.replace("_", "-")
        old = world.vmm(info.id).process
        back = await world.engine.rollback(info.id, snap.id)
        assert (back.id, back.state, back.generation) == (info.id, S.RUNNING, info.generation + 1)
        assert not old.alive()
        (renewal,) = world.connect.agents[-1].renewals
        assert (renewal.reason, renewal.hostname, renewal.generation) == ("rollback", None, 2)

    play(scene)


def test_a_fork_rolled_back_to_its_parents_snapshot_keeps_its_own_identity(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        made = await world.engine.restore(snap.id, RestoreSpec())
        await world.engine.rollback(made.id, snap.id)
        assert world.connect.agents[-1].renewals[-1].hostname == made.id.replace("_", "-")

    play(scene)


def test_those_who_use_a_machine_that_is_rolled_back_are_told(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)

        async def use() -> None:
            async with world.engine.guest(info.id):
                await world.engine.rollback(info.id, snap.id)
                raise GuestUnreachable("the guest channel was closed")

        with pytest.raises(GenerationChanged, match="put back or slept"):
            await use()

    play(scene)


def test_forks_are_each_a_sandbox_or_an_error(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        monkeypatch.setattr(
            admission, "_memory_mib", lambda _: (3000, 2900)
        )  # three of 512 MiB and no more
        info = await world.create()
        made = await world.engine.fork(info.id, RestoreSpec(), count=4)
        assert sum(isinstance(m, SandboxInfo) for m in made) == 2
        assert sum(isinstance(m, InsufficientResources) for m in made) == 2
        assert (await world.engine.get(info.id)).state is S.RUNNING
        snapshots = {m.parent_snapshot for m in made if isinstance(m, SandboxInfo)}
        assert len(snapshots) == 1
        for count, hint in ((0, "leave it out"), (101, "in several calls")):
            with pytest.raises(InvalidRequest, match="count is") as caught:
                await world.engine.fork(info.id, RestoreSpec(), count=count)
            assert hint in str(caught.value.hint)

    play(scene)


def test_names_of_the_environment_are_inherited(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(env={"B": "1", "A": "2"})
        snap = await world.engine.snapshot(info.id)
        assert snap.env_names == ("A", "B")
        await world.restart()  # read from its manifest
        plain = await world.engine.restore(snap.id, RestoreSpec())
        assert plain.env_names == ("A", "B")
        forks = await world.engine.fork(info.id, RestoreSpec(), count=2)
        assert [f.env_names for f in forks if isinstance(f, SandboxInfo)] == [("A", "B")] * 2
        slept = await world.engine.hibernate(plain.id)
        again = await world.engine.snapshot(plain.id)
        assert slept.env_names == again.env_names == ("A", "B")
        other = await world.create(env={"C": "3"})
        back = await world.engine.rollback(other.id, snap.id)
        assert back.env_names == ("A", "B"), "its environment is the snapshot's now"

    play(scene)


def test_what_is_left_of_a_lease_is_said_while_it_does_not_run_down(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=100)
        assert (info.ttl_left_seconds, info.expires_at is None) == (None, False)
        world.clock.time += timedelta(seconds=30)
        assert (await world.engine.pause(info.id)).ttl_left_seconds == 70
        assert (await world.engine.resume(info.id)).ttl_left_seconds is None
        await world.engine.hibernate(info.id)
        world.clock.time += timedelta(days=1)
        await world.restart()
        assert (await world.engine.get(info.id)).ttl_left_seconds == 70
        assert (await world.engine.wake(info.id)).ttl_left_seconds is None
        assert (await world.create()).ttl_left_seconds is None

    play(scene)


def test_what_cannot_fit_on_the_disk_is_refused_before_anything_is_touched(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine.pause((await world.create()).id)
        rows = world.engine._parts.rows
        seen: list[S] = []
        save = rows.save
        monkeypatch.setattr(rows, "save", lambda row: (seen.append(row.info.state), save(row))[1])
        monkeypatch.setattr(room, "free_bytes", lambda _: 1 << 20)
        for found in (await world.engine.list(SandboxFilter())).items:
            before = (found.state, list(world.driver.reached), world.connect.agents[-1].calls[:])
            for act in (world.engine.snapshot, world.engine.hibernate):
                with pytest.raises(InsufficientResources, match="are free") as caught:
                    await act(found.id)
                assert caught.value.facts["free_bytes"] == 1 << 20
            now = await world.engine.get(found.id)
            assert (
                now.state,
                list(world.driver.reached),
                world.connect.agents[-1].calls,
            ) == before
        assert seen == [], "no state in between was written, so none was seen"
        monkeypatch.setattr(room, "free_bytes", lambda _: 1 << 50)
        await world.engine.hibernate(info.id)

    play(scene)


def test_hibernate_frees_the_machine_and_wake_goes_on(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=100)
        process = world.vmm(info.id).process
        world.clock.time += timedelta(seconds=30)
        snap = await world.engine.hibernate(info.id)
        assert snap.reason == "hibernate"
        asleep = await world.engine.get(info.id)
        assert (asleep.state, asleep.expires_at, asleep.parent_snapshot) == (
            S.HIBERNATED,
            None,
            snap.id,
        )
        assert not process.alive()
        assert not list((world.folder(info.id) / "vm").glob("*.sock"))
        assert await world.engine.hibernate(info.id) == snap
        with pytest.raises(Conflict, match="sleeps at it"):
            await world.engine.delete_snapshot(snap.id)
        world.clock.time += timedelta(days=30)
        woken = await asyncio.gather(*(world.engine.wake(info.id) for _ in range(5)))
        assert {w.state for w in woken} == {S.RUNNING}
        awake = woken[0]
        assert (awake.boot_mode, awake.generation) == ("resume", 2)
        assert awake.expires_at == world.clock.time + timedelta(seconds=70)
        (renewal,) = world.connect.agents[-1].renewals
        assert (renewal.reason, renewal.hostname) == ("wake", None)

    play(scene)


def test_a_request_wakes_it_once(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine.hibernate(info.id)
        starts = world.driver.starts

        async def use() -> None:
            async with world.engine.guest(info.id):
                pass

        await asyncio.gather(*(use() for _ in range(10)))
        assert world.driver.starts == starts + 1

    play(scene)


def test_a_wake_that_fails_sleeps_on(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine.hibernate(info.id)
        world.driver.fail_once["restore"] = VmmFailed("no such luck")
        with pytest.raises(VmmFailed):
            await world.engine.wake(info.id)
        assert (await world.engine.get(info.id)).state is S.HIBERNATED
        await world.engine.collect()
        assert (await world.engine.wake(info.id)).state is S.RUNNING

    play(scene)


def test_a_sandbox_without_work_falls_asleep_by_itself(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(idle_seconds=60)
        world.clock.time += timedelta(seconds=59)
        async with world.engine.guest(info.id):
            world.clock.time += timedelta(seconds=120)
            await world.engine.set_ttl(info.id, None)
            assert (await world.engine.get(info.id)).state is S.RUNNING, "it is in use"
        world.clock.time += timedelta(seconds=61)
        await world.engine.set_ttl(info.id, None)  # lets the task look at the time
        await world.until(info.id, S.HIBERNATED)

    play(scene)


def test_an_interpreter_that_waits_for_code_keeps_no_sandbox_awake(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"{CONTEXTS_FOLDER}-0123456789abcdef/serve.py"
    waiting = ExecInfo(
        exec_id=ExecId("ctx_default_python"),
        command=("python3", "-I", program, f"{CONTEXTS_FOLDER}/ctx_default_python", "python"),
        state="running",
        pid=7,
        user="root",
        cwd="/",
        background=True,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    running = [waiting, replace(waiting, exec_id=ExecId("exec_1"), command="make")]

    async def listed(_: FakeAgent) -> list[ExecInfo]:
        return list(running)

    monkeypatch.setattr(FakeAgent, "exec_list", listed)

    async def scene(world: World) -> None:
        info = await world.create(idle_seconds=60)
        world.clock.time += timedelta(seconds=61)
        await world.engine.set_ttl(info.id, None)
        await world.engine.set_ttl(info.id, None)  # behind the look at the time
        assert (await world.engine.get(info.id)).state is S.RUNNING, "a command runs"
        running.pop()
        world.clock.time += timedelta(seconds=61)
        await world.engine.set_ttl(info.id, None)
        await world.until(info.id, S.HIBERNATED)

    play(scene)


def test_a_terminal_in_which_nothing_runs_keeps_no_sandbox_awake(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = ExecInfo(
        exec_id=ExecId("exec_1"),
        command=("/bin/bash", "-l"),
        state="running",
        pid=7,
        user="root",
        cwd="/",
        background=True,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        terminal=True,
    )
    running = [shell]

    async def listed(_: FakeAgent) -> list[ExecInfo]:
        return list(running)

    monkeypatch.setattr(FakeAgent, "exec_list", listed)

    async def scene(world: World) -> None:
        info = await world.create(idle_seconds=60)
        world.clock.time += timedelta(seconds=61)
        await world.engine.set_ttl(info.id, None)
        await world.engine.set_ttl(info.id, None)  # behind the look at the time
        assert (await world.engine.get(info.id)).state is S.RUNNING, "something runs in it"
        running[0] = replace(shell, is_idle=True)
        world.clock.time += timedelta(seconds=61)
        await world.engine.set_ttl(info.id, None)
        await world.until(info.id, S.HIBERNATED)

    play(scene)


def test_on_timeout_hibernate(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=10, on_timeout="hibernate")
        world.clock.time += timedelta(seconds=11)
        await world.engine.set_idle(info.id, None)
        await world.until(info.id, S.HIBERNATED)
        assert (await world.engine.wake(info.id)).expires_at is None

    play(scene)


def test_snapshots_of_what_is_paused_and_what_sleeps(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine.pause(info.id)
        snap = await world.engine.snapshot(info.id)
        assert snap.consistency == "crash", "nothing could be frozen, and that is said"
        assert (await world.engine.get(info.id)).state is S.PAUSED
        await world.engine.resume(info.id)
        slept = await world.engine.hibernate(info.id)
        named = await world.engine.snapshot(info.id, label="asleep")
        assert (named.parent, named.label) == (slept.id, "asleep")
        assert (await world.engine.get(info.id)).state is S.HIBERNATED
        assert (await world.engine.restore(named.id, RestoreSpec())).state is S.RUNNING

    play(scene)


def test_layers_are_kept_while_needed_and_no_longer(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        first = await world.engine.snapshot(info.id)
        second = await world.engine.snapshot(info.id)
        await world.engine.delete_snapshot(first.id)
        with pytest.raises(NotFound):
            await world.engine.get_snapshot(first.id)
        assert await world.engine.verify_snapshot(second.id) == ()
        uses = {use.id: use for use in await world.engine.layers()}
        assert {u.id for u in uses.values() if u.kind != "image"} == _layers(world)
        await world.engine.delete(info.id)
        await world.engine.collect()
        assert await world.engine.verify_snapshot(second.id) == ()
        made = await world.engine.restore(second.id, RestoreSpec())
        await world.engine.delete_snapshot(second.id)
        await world.engine.snapshot(made.id)  # its layers are still there
        await world.engine.delete(made.id)
        for snap in await world.engine.snapshots():
            await world.engine.delete_snapshot(snap.id)
        await world.engine.collect()
        assert _layers(world) == set()
        assert [p.name for p in world.home.images.iterdir()] == ["boot_id"]

    play(scene)


@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_snapshot_is_of_the_version_that_runs_not_of_the_one_that_lies_there(
    play: Play, is_adopted: bool
) -> None:
    async def scene(world: World) -> None:
        old = await world.create()
        world.driver.version = "2"
        if is_adopted:
            await world.engine.aclose()
            world.engine = world.new_engine()
            await world.engine.start()
        new = await world.create()
        assert (await world.engine.snapshot(old.id)).driver_version == "1"
        assert (await world.engine.snapshot(new.id)).driver_version == "2"
        await world.engine.hibernate(old.id)
        with pytest.raises(SnapshotUnusable, match="driver version was 1; this host has 2"):
            await world.engine.wake(old.id)
        await world.engine.hibernate(new.id)
        assert (await world.engine.wake(new.id)).state is S.RUNNING

    play(scene)


def test_what_is_woken_by_use_has_to_fit_to_what_lies_there_now(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine.hibernate(info.id)
        restored = len(world.driver.restored)
        world.driver.version = "2"
        with pytest.raises(SnapshotUnusable, match="driver version was 1; this host has 2"):
            async with world.engine.guest(info.id):
                pass
        assert len(world.driver.restored) == restored
        assert (await world.engine.get(info.id)).state is S.HIBERNATED

    play(scene)


def test_ram_of_another_host_is_refused_or_started_cold_and_said(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        await world.engine.hibernate(info.id)
        host = await world.driver.probe()

        async def newer() -> Any:
            return replace(host, version="2")

        async def moved() -> Any:
            return replace(host, cpu="another CPU")

        world.driver.probe = newer  # type: ignore[method-assign]
        with pytest.raises(SnapshotUnusable, match="driver version was 1; this host has 2"):
            await world.engine.restore(snap.id, RestoreSpec())
        world.driver.probe = moved  # type: ignore[method-assign]
        with pytest.raises(SnapshotUnusable, match=r"CPU was .*; this host has another CPU"):
            await world.engine.restore(snap.id, RestoreSpec())
        with pytest.raises(SnapshotUnusable):
            await world.engine.wake(info.id)
        assert (await world.engine.get(info.id)).state is S.HIBERNATED
        with pytest.raises(SnapshotUnusable):
            await world.engine.rollback(info.id, snap.id)
        cold = await world.engine.restore(snap.id, RestoreSpec(allow_cold=True))
        assert cold.boot_mode == "cold"

    play(scene)


def test_a_damaged_or_missing_layer_is_reported_with_what_needs_it(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        ref = world.engine._parts.layers.get(snap.id).ram[-1]
        path = world.home.layers / f"{ref.id}.ram"
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[5000] ^= 1
        path.write_bytes(bytes(data))
        (damage,) = await world.engine.verify_snapshot(snap.id)
        assert (damage.layer, damage.dependents) == (ref.id, (snap.id,))
        assert "content" in damage.problem
        path.unlink()
        (damage,) = await world.engine.verify_snapshot(snap.id)
        assert "missing" in damage.problem
        with pytest.raises(DataDamaged, match="is missing"):
            await world.engine.restore(snap.id, RestoreSpec())
        cold = await world.engine.restore(snap.id, RestoreSpec(allow_cold=True))
        assert cold.boot_mode == "cold", "and it is said"
        assert (await world.engine.get(info.id)).state is S.RUNNING

    play(scene)


def test_what_is_not_there(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        unknown = SnapshotId("snap_" + "0" * 20)
        for call in (
            lambda: world.engine.restore(unknown, RestoreSpec()),
            lambda: world.engine.fork(unknown, RestoreSpec()),
            lambda: world.engine.rollback(info.id, unknown),
            lambda: world.engine.get_snapshot(unknown),
            lambda: world.engine.delete_snapshot(unknown),
            lambda: world.engine.verify_snapshot(unknown),
        ):
            with pytest.raises(NotFound):
                await call()
        with pytest.raises(InvalidRequest):
            await world.engine.get_snapshot(SnapshotId("../x"))
        os.kill(world.vmm(info.id).process.pid, signal.SIGKILL)
        await world.until(info.id, S.FAILED)
        for act in (world.engine.snapshot, world.engine.hibernate, world.engine.wake):
            with pytest.raises(WrongState):
                await act(info.id)
        with pytest.raises(WrongState):
            await world.engine.fork(info.id, RestoreSpec())

    play(scene)


def test_a_failed_sandbox_can_be_rolled_back(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        os.kill(world.vmm(info.id).process.pid, signal.SIGKILL)
        await world.until(info.id, S.FAILED)
        with pytest.raises(WrongState) as caught:
            await world.engine.snapshot(info.id)
        assert f"roll it back to a snapshot (torpor snapshots {info.id})" in str(caught.value.hint)
        back = await world.engine.rollback(info.id, snap.id)
        assert (back.state, back.error) == (S.RUNNING, None)

    play(scene)


def test_a_rollback_that_fails_can_be_made_again(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        world.driver.fail_once["restore"] = VmmFailed("no such luck")
        with pytest.raises(VmmFailed):
            await world.engine.rollback(info.id, snap.id)
        failed = await world.engine.get(info.id)
        assert failed.state is S.FAILED
        assert "rollback to" in str(failed.error)
        assert (await world.engine.rollback(info.id, snap.id)).state is S.RUNNING

    play(scene)


def test_the_next_daemon_knows_the_snapshots_and_the_sleepers(play: Play) -> None:
    async def scene(world: World) -> None:
        info, other = await world.create(), await world.create()
        snap = await world.engine.snapshot(other.id)
        slept = await world.engine.hibernate(info.id)
        await world.restart()
        assert {s.id for s in await world.engine.snapshots()} >= {snap.id, slept.id}
        assert (await world.engine.get(info.id)).state is S.HIBERNATED
        assert (await world.engine.wake(info.id)).state is S.RUNNING
        again = await world.engine.snapshot(other.id)
        assert await world.engine.verify_snapshot(again.id) == ()
        assert SandboxId(other.id) in {s.sandbox_id for s in await world.engine.snapshots()}

    play(scene)


def test_a_machine_that_stopped_on_a_full_disk_goes_on_when_there_is_room(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        task = world.engine._tasks[info.id]
        await world.vmm(info.id).pause()  # as QEMU does when it cannot write
        monkeypatch.setattr(room, "free_bytes", lambda _: 0)
        with pytest.raises(InsufficientResources):
            await task.go_on()
        assert await world.vmm(info.id).status() == "paused"
        monkeypatch.setattr(room, "free_bytes", lambda _: 1 << 50)
        await task.go_on()
        assert await world.vmm(info.id).status() == "running"
        await world.engine.pause(info.id)
        await task.go_on()
        assert await world.vmm(info.id).status() == "paused", "by hand: it stays so"

    play(scene)


def test_the_snapshot_of_a_template_that_is_gone_goes_too(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        (own,) = await world.engine.snapshots()
        assert own.reason == "template"
        await world.restart()
        assert await world.engine.snapshots() == (own,)
        world.templates.gone.add(own.template_digest)
        await world.restart()
        assert await world.engine.snapshots() == ()
        assert _layers(world) == set()

    play(scene)


def test_a_template_of_a_damaged_snapshot_is_kept(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        with pytest.raises(Conflict, match=rf"needed by {info.id}, {snap.id}"):
            await world.engine.delete_template("base")
        await world.engine.delete(info.id)
        path = world.home.snapshots / snap.id / "manifest.json"
        path.chmod(0o600)
        path.write_bytes(path.read_bytes().replace(b'"vcpus"', b'"vcpuz"'))
        collected = len(world.templates.collected)
        await world.restart()
        assert [s for s in await world.engine.snapshots() if s.id == snap.id] == []
        assert len(world.templates.collected) == collected, "nothing is collected: who knows"
        with pytest.raises(Conflict, match=f"needed by {snap.id}"):
            await world.engine.delete_template("base")
        remove_tree(path.parent)
        await world.restart()
        assert len(world.templates.collected) == collected + 1
        await world.engine.delete_template("base")

    play(scene)


def test_what_nobody_asked_for_goes_by_itself(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        (fork,) = await world.engine.fork(info.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        first = await world.engine.hibernate(info.id)
        await world.engine.wake(info.id)
        kept = await world.engine.snapshot(info.id, label="mine")
        world.clock.time += timedelta(seconds=1)
        second = await world.engine.hibernate(info.id)
        everything = {s.id for s in await world.engine.snapshots()}
        await world.engine.keep_house()
        assert {s.id for s in await world.engine.snapshots()} == everything, "they are young"
        world.clock.time += timedelta(minutes=11)
        await world.engine.keep_house()
        left = {s.id for s in await world.engine.snapshots()}
        assert everything - left == {first.id}, (
            "the fork lives, and the sandbox sleeps at the second"
        )
        await world.engine.delete(fork.id)
        await world.engine.wake(info.id)
        await world.engine.keep_house()
        left = {s.id for s in await world.engine.snapshots()}
        assert left >= {kept.id, second.id}
        assert not any(
            s.reason == "fork" for s in await world.engine.snapshots() if s.parent != first.id
        )
        assert (await world.engine.get(info.id)).state is S.RUNNING

    play(scene)


def test_a_wake_needs_memory_as_a_create_does(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        sleepers = [await world.create() for _ in range(2)]
        for info in sleepers:
            await world.engine.hibernate(info.id)
        monkeypatch.setattr(admission, "_memory_mib", lambda _: (1400, 1300))  # room for one
        woken = await asyncio.gather(
            *(world.engine.wake(info.id) for info in sleepers), return_exceptions=True
        )
        assert sum(isinstance(w, SandboxInfo) for w in woken) == 1
        assert sum(isinstance(w, InsufficientResources) for w in woken) == 1
        states = sorted([(await world.engine.get(info.id)).state for info in sleepers])
        assert states == [S.HIBERNATED, S.RUNNING]

    play(scene)


def test_templates_that_boot_are_promised_their_memory(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        monkeypatch.setattr(admission, "_memory_mib", lambda _: (1400, 1300))  # room for one
        memory_for_boot = world.engine._parts.memory_for_boot
        async with memory_for_boot(512):
            with pytest.raises(InsufficientResources, match="672 MiB are promised"):
                await world.create()
            with pytest.raises(InsufficientResources):
                async with memory_for_boot(512):
                    pass
        info = await world.create()  # its template's boot has ended, so there is room for it
        with pytest.raises(InsufficientResources):
            async with memory_for_boot(512):
                pass
        await world.engine.delete(info.id)
        async with memory_for_boot(512):
            pass

    play(scene)


def test_what_the_driver_copies_is_counted_before_anything_is_done(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        calls = list(world.connect.agents[-1].calls)
        world.driver.copies_bytes = 1 << 60
        with pytest.raises(InsufficientResources, match="a snapshot may write"):
            await world.engine.snapshot(info.id)
        with pytest.raises(InsufficientResources, match="a snapshot may write"):
            await world.engine.check_room(info.id)
        assert world.connect.agents[-1].calls == calls, "the guest was not even frozen"
        world.driver.copies_bytes = 0
        await world.engine.hibernate(info.id)
        await world.engine.check_room(info.id)
        world.driver.copies_bytes = 1 << 60
        with pytest.raises(InsufficientResources, match="of disk to start"):
            await world.engine.check_room(info.id)

    play(scene)
