"""What goes wrong late, or between two steps: a source goes on, nothing is half there, nobody waits for ever."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.errors import Conflict, InsufficientResources, TorporError
from torpor.layers.store import LayerStore
from torpor.model import SandboxState
from torpor.sandboxes import task as task_module

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
            rows.save = refuse  # type: ignore[method-assign]
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

        rows.save = refuse  # type: ignore[method-assign]
        await world.vmm(info.id).kill()
        async with asyncio.timeout(10):
            while not world.reports:
                await asyncio.sleep(0.01)
        rows.save = save  # type: ignore[method-assign]
        await world.until(info.id, S.FAILED)

    play(scene)
