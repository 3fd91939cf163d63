"""What goes wrong late, or between two steps: a source goes on, nothing is half there, nobody waits for ever."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.base.aio import finish as real_finish
from torpor.errors import Conflict, DataDamaged, InsufficientResources, NotFound, TorporError
from torpor.layers.store import LayerStore
from torpor.model import RestoreSpec, SandboxState
from torpor.sandboxes import acts, capture
from torpor.sandboxes import task as task_module
from torpor.sandboxes.housekeeping import upkeep
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.room import make_room
from torpor.vmm.base import HostSupport

S = SandboxState


def _full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["publish", "ref", "row"])
@pytest.mark.parametrize("act", ["snapshot", "hibernate"])
def test_a_full_disk_after_the_capture_leaves_the_source_as_it_was(
    play: Play, monkeypatch: pytest.MonkeyPatch, step: str, act: str
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        before = await world.engine.snapshots()
        rows = world.engine._parts.rows
        save = rows.save

        def full_at_the_end(row: Any) -> None:
            if row.layers.taking is None and row.info.parent_snapshot != info.parent_snapshot:
                raise InsufficientResources("the disk of the database is full")
            save(row)

        with monkeypatch.context() as patch:
            if step == "row":
                patch.setattr(rows, "save", full_at_the_end)
            else:
                patch.setattr(LayerStore, step, _full)
            with pytest.raises(InsufficientResources):
                await getattr(world.engine, act)(info.id)
        assert (await world.engine.get(info.id)).state is S.RUNNING
        assert await world.vmm(info.id).status() == "running"
        assert not agent.frozen
        assert await world.engine.snapshots() == before
        await world.restart()
        assert (await world.engine.get(info.id)).state is S.RUNNING
        snap = await world.engine.snapshot(info.id)
        assert await world.engine.verify_snapshot(snap.id) == ()

    play(scene)


@pytest.mark.parametrize("end", ["delete", "restart"])
def test_a_snapshot_that_is_broken_off_while_it_is_published_is_whole_or_absent(
    play: Play, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        begun, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        publish: Callable[..., None] = LayerStore.publish

        def slow(self: LayerStore, *args: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(10)
            publish(self, *args)

        monkeypatch.setattr(LayerStore, "publish", slow)
        task = asyncio.create_task(world.engine.snapshot(info.id))
        await begun.wait()
        loop.call_later(0.2, go.set)
        if end == "delete":
            await world.engine.delete(info.id)
        else:
            await world.restart()
        await asyncio.gather(task, return_exceptions=True)
        await world.engine.collect()
        for snap in await world.engine.snapshots():
            assert await world.engine.verify_snapshot(snap.id) == (), snap.reason
        if end == "restart":
            snap = await world.engine.snapshot(info.id)
            assert await world.engine.verify_snapshot(snap.id) == ()

    play(scene)


def test_who_connects_does_not_write_an_old_row_over_a_new_one(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        machine = world.engine._tasks[info.id].machine
        world.connect.agents[-1].closed = True  # the channel was cut
        rows = world.engine._parts.rows
        save = rows.save
        first, go = threading.Event(), threading.Event()

        def slow(row: Any) -> None:
            if not first.is_set():
                first.set()
                assert go.wait(10)
            save(row)

        monkeypatch.setattr(rows, "save", slow)
        connecting = asyncio.create_task(machine.guest())
        await asyncio.to_thread(first.wait, 10)
        changing = asyncio.create_task(world.engine.set_idle(info.id, 500))
        await asyncio.sleep(0.05)
        go.set()
        await asyncio.gather(connecting, changing)
        await world.engine.set_ttl(info.id, 100)
        assert (await world.engine.get(info.id)).idle_seconds == 500
        stored = rows.get(info.id)
        assert stored is not None
        assert (stored.info.idle_seconds, stored.epoch) == (500, machine.row.epoch)
        assert machine.row.epoch == world.connect.epochs[-1]

    play(scene)


def test_a_sandbox_is_still_served_after_its_own_acts_failed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create(idle_seconds=10)
        with monkeypatch.context() as patch:
            patch.setattr(LayerStore, "publish", _full)
            world.clock.time += timedelta(seconds=11)
            async with asyncio.timeout(10):
                async with world.engine.guest(info.id):
                    pass  # lets it look at its deadlines
                world.clock.time += timedelta(seconds=11)
                await world.engine.set_idle(info.id, 5)
                while not world.reports:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            assert (await world.engine.pause(info.id)).state is S.PAUSED
            await world.engine.resume(info.id)
            world.clock.time += timedelta(minutes=1)
            await world.engine.set_idle(info.id, 5)  # it is tried again
        await world.until(info.id, S.HIBERNATED)

    play(scene)


@pytest.mark.parametrize("full", [True, False])
def test_a_lease_that_cannot_be_ended_is_ended_later(play: Play, full: bool) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=10)
        rows = world.engine._parts.rows
        save = rows.save

        def refuse(_: Any) -> None:
            raise InsufficientResources("the disk of the database is full")

        if full:
            rows.save = refuse  # type: ignore[method-assign, assignment]
        else:
            world.driver.fail["sweep"] = TorporError("the process does not end")
        world.clock.time += timedelta(seconds=11)
        task = world.engine._tasks[info.id]
        task._queue.put_nowait(None)  # it looks at its deadlines
        async with asyncio.timeout(10):
            while not world.reports:
                await asyncio.sleep(0.01)
        rows.save = save  # type: ignore[method-assign]
        world.driver.fail.clear()
        if full:
            async with world.engine.guest(info.id):
                pass
        world.clock.time += timedelta(minutes=1)
        task._queue.put_nowait(None)
        await world.until(info.id, S.DELETED)

    play(scene)


def test_a_label_is_taken_once_also_by_two_at_once(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        outcomes = await asyncio.gather(
            *(world.engine.snapshot(info.id, label="x") for _ in range(3)), return_exceptions=True
        )
        assert sum(isinstance(found, Conflict) for found in outcomes) == 2

    play(scene)


def test_an_end_that_cannot_be_written_down_is_written_down_later(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        monkeypatch.setattr(task_module, "_RETRY", timedelta(seconds=0.2))
        info = await world.create()
        rows = world.engine._parts.rows
        save = rows.save

        def refuse(_: Any) -> None:
            raise InsufficientResources("the disk of the database is full")

        rows.save = refuse  # type: ignore[method-assign, assignment]
        await world.vmm(info.id).kill()
        async with asyncio.timeout(10):
            while not world.reports:
                await asyncio.sleep(0.01)
        rows.save = save  # type: ignore[method-assign]
        await world.until(info.id, S.FAILED)

    play(scene)


@pytest.mark.parametrize("who", ["snapshot", "restore", "template"])
def test_collection_that_waited_does_not_remove_what_began_meanwhile(
    play: Play, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    async def scene(world: World) -> None:
        store = world.engine._parts.layers
        acts: dict[str, Callable[[], Any]] = {"template": world.create}
        if who != "template":
            info = await world.create()
            snap = await world.engine.snapshot(info.id)
            acts["snapshot"] = lambda: world.engine.snapshot(info.id)
            acts["restore"] = lambda: world.engine.restore(snap.id, RestoreSpec())
        reached = asyncio.Event()
        go = asyncio.Event()
        overlay = world.driver.create_overlay

        async def slow(path: Any, size_bytes: int) -> None:
            await overlay(path, size_bytes)
            reached.set()
            await go.wait()

        monkeypatch.setattr(world.driver, "create_overlay", slow)
        with store._lock:  # a RAM image is being made, say
            collecting = asyncio.create_task(world.engine.collect())
            await asyncio.sleep(0.05)
            doing = asyncio.create_task(acts[who]())
            await reached.wait()
        await collecting
        reached.clear()
        go.set()
        await doing
        for found in await world.engine.snapshots():
            assert await world.engine.verify_snapshot(found.id) == ()
        for task in world.engine._tasks.values():
            active = task.machine.row.layers.active
            assert active is not None
            assert store.disk_path(active).exists()

    play(scene)


def test_a_snapshot_that_something_begins_from_is_not_deleted(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        world.driver.block["restore"] = asyncio.Event()
        world.driver.reached.clear()
        restoring = asyncio.create_task(world.engine.restore(snap.id, RestoreSpec()))
        await world.driver.until("restore")
        with pytest.raises(Conflict, match="is made from it"):
            await world.engine.delete_snapshot(snap.id)
        world.driver.block.pop("restore").set()
        assert (await restoring).state is S.RUNNING
        # a rollback that waits for its turn finds it gone, and the machine runs on
        world.driver.block["pause"] = asyncio.Event()
        pausing = asyncio.create_task(world.engine.pause(info.id))
        await asyncio.sleep(0.02)
        putting_back = asyncio.create_task(world.engine.rollback(info.id, snap.id))
        await asyncio.sleep(0.02)
        await world.engine.delete_snapshot(snap.id)
        world.driver.block.pop("pause").set()
        await pausing
        with pytest.raises(NotFound):
            await putting_back
        assert (await world.engine.resume(info.id)).state is S.RUNNING

    play(scene)


def test_the_snapshot_that_a_sandbox_falls_asleep_at_is_not_deleted(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        machine = world.engine._tasks[info.id].machine
        move = machine.move
        refused: list[TorporError] = []

        async def watched(state: SandboxState, **changes: Any) -> None:
            if state is S.HIBERNATED:
                (snap,) = await world.engine.snapshots(info.id)
                with pytest.raises(Conflict) as found:
                    await world.engine.delete_snapshot(snap.id)
                refused.append(found.value)
            await move(state, **changes)

        monkeypatch.setattr(machine, "move", watched)
        await world.engine.hibernate(info.id)
        assert refused
        assert (await world.engine.wake(info.id)).state is S.RUNNING

    play(scene)


def test_what_was_started_cold_from_a_snapshot_has_no_ram_of_it(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)

        async def other() -> HostSupport:
            return HostSupport("fake", True, "2", "tcg", "fake-cpu", "it is a fake")

        world.driver.probe = other  # type: ignore[method-assign]
        cold = await world.engine.restore(snap.id, RestoreSpec(allow_cold=True))
        assert cold.boot_mode == "cold"
        again = await world.engine.snapshot(cold.id)
        manifest = world.engine._parts.layers.get(again.id)
        assert len(manifest.ram) == 1
        assert len(manifest.disk) == 3

    play(scene)


@pytest.mark.parametrize("was", [S.PAUSING, S.RESUMING, S.HIBERNATING, S.CREATING])
def test_a_lease_survives_the_daemons_death_between_two_states(
    play: Play, was: SandboxState
) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=100)
        if was is S.RESUMING:
            await world.engine.pause(info.id)
        if was is S.CREATING:
            row = world.engine._tasks[info.id].machine.row
            world.engine._parts.rows.save(
                replace(row, ttl_left=timedelta(seconds=100)).with_info(state=was, expires_at=None)
            )
        else:
            await world.engine._tasks[info.id].machine.move(was)
            if was is S.PAUSING:
                await world.vmm(info.id).pause()
        await world.restart()
        found = await world.engine.get(info.id)
        if was is S.PAUSING:
            assert (found.state, found.expires_at) == (S.PAUSED, None)
        else:
            assert found.state is (S.FAILED if was is S.CREATING else S.RUNNING)
            assert found.expires_at == world.clock.time + timedelta(seconds=100)
        if was is S.RESUMING:
            assert "set_clock" in world.connect.agents[-1].calls

    play(scene)


def test_a_machine_that_answers_nonsense_stops_no_other_from_being_recovered(play: Play) -> None:
    async def scene(world: World) -> None:
        bad, good = await world.create(), await world.create()
        process = world.vmm(bad.id).process
        adopt = world.driver.adopt

        async def nonsense(folder: Any) -> Any:
            if folder.name == bad.id:
                raise AttributeError("'int' object has no attribute 'get'")
            return await adopt(folder)

        world.driver.adopt = nonsense  # type: ignore[method-assign]
        await world.restart()
        assert (await world.engine.get(bad.id)).state is S.FAILED
        assert not process.alive(), "what is failed does not run on"
        assert (await world.engine.get(good.id)).state is S.RUNNING

    play(scene)


def test_what_goes_by_itself_is_not_taken_from_under_a_restore(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        first = await world.engine.hibernate(info.id)
        await world.engine.wake(info.id)
        world.clock.time += timedelta(seconds=1)
        await world.engine.hibernate(info.id)
        world.clock.time += timedelta(minutes=11)
        world.driver.block["restore"] = asyncio.Event()
        world.driver.reached.clear()
        restoring = asyncio.create_task(world.engine.restore(first.id, RestoreSpec()))
        await world.driver.until("restore")
        await world.engine.keep_house()
        world.driver.block.pop("restore").set()
        assert (await restoring).state is S.RUNNING
        await world.engine.keep_house()
        assert first.id not in {s.id for s in await world.engine.snapshots()}

    play(scene)


def test_making_room_that_waited_does_not_take_an_image_from_under_a_create(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        images = world.engine._parts.layers.images
        (snapshot_id,) = images.made()
        with images._lock:  # another image is being made, say
            making = asyncio.create_task(make_room(world.engine._parts, 1 << 60))
            await asyncio.sleep(0.05)
            world.driver.block["overlay"] = asyncio.Event()
            world.driver.reached.clear()
            creating = asyncio.create_task(world.create())
            await world.driver.until("overlay")
        await making
        assert images.made() == [snapshot_id], "a machine is about to map it"
        world.driver.block.pop("overlay").set()
        assert (await creating).state is S.RUNNING

    play(scene)


def test_damage_in_one_place_does_not_keep_the_daemon_from_its_work(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()

        def damaged(_: Any) -> None:
            raise DataDamaged("the pointer of template x is no JSON")

        monkeypatch.setattr(world.templates, "collect", damaged)
        await world.restart()
        assert any("no JSON" in report for report in world.reports)
        assert (await world.engine.get(info.id)).state is S.RUNNING
        turns: list[None] = []

        async def odd() -> None:
            turns.append(None)
            raise KeyError("what nobody thought of")

        keeping = asyncio.create_task(upkeep(world.engine._parts, odd, every_s=0.01))
        async with asyncio.timeout(10):
            while len(turns) < 3:
                await asyncio.sleep(0.01)
        keeping.cancel()

    play(scene)


def test_housekeeping_that_comes_upon_a_delete_does_not_break_off_its_answer(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        removed, delete = asyncio.Event(), acts.delete

        async def slow(m: SandboxMachine) -> None:
            await delete(m)
            removed.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(acts, "delete", slow)
        deleting = asyncio.create_task(world.engine.delete(info.id))
        await removed.wait()
        monkeypatch.undo()
        await world.engine.keep_house()
        assert (await deleting).state is S.DELETED

    play(scene)


def test_a_vmm_that_fills_the_disk_is_ended(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        info, other = await world.create(), await world.create()
        for number in range(1001):
            (world.folder(info.id) / "vm" / str(number)).touch()
        await world.engine.keep_house()
        failed = await world.until(info.id, S.FAILED)
        assert failed.error is not None
        assert (await world.engine.get(other.id)).state is S.RUNNING

    play(scene)


def test_the_disk_decides_how_long_a_snapshot_is_published(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a thread began cannot be broken off, so nobody stops to wait for it: its layers would go from under it."""

    async def scene(world: World) -> None:
        info = await world.create()
        limits: list[float | None] = []
        released = threading.Event()
        publish = LayerStore.publish

        def stalled(store: LayerStore, *args: Any) -> None:
            assert released.wait(10)
            publish(store, *args)

        async def finish(work: Any, *, within_s: float | None) -> None:
            limits.append(within_s)
            await real_finish(work, within_s=within_s)

        monkeypatch.setattr(LayerStore, "publish", stalled)
        monkeypatch.setattr(capture, "finish", finish)
        taking = asyncio.create_task(world.engine.snapshot(info.id))
        while not limits:
            await asyncio.sleep(0.005)
        assert limits == [None]
        deleting = asyncio.create_task(world.engine.delete(info.id))
        await asyncio.sleep(0.05)
        assert not deleting.done(), "it waits as well"
        await world.engine.collect()
        released.set()
        await asyncio.gather(taking, deleting, return_exceptions=True)
        for snap in await world.engine.snapshots():
            assert await world.engine.verify_snapshot(snap.id) == ()

    play(scene)
