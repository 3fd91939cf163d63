"""Two that want something of one sandbox or snapshot at the same time, and claims that come in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.base.ids import new_id
from torpor.errors import (
    Conflict,
    DaemonUnreachable,
    InsufficientResources,
    NotFound,
    TorporError,
    VmmFailed,
)
from torpor.layers.merges import Merged
from torpor.model import MemoryChoice, RestoreSpec, SandboxInfo, SandboxState, SnapshotId
from torpor.sandboxes import comeback, room
from torpor.sandboxes.claims import Claim
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.recover import recover

S = SandboxState
CLAIM = Claim("chg_x", frozenset({"rollback", "pause", "hibernate"}), "a change runs", "wait")


class Gate:
    """Holds whoever comes to it until it is opened."""

    def __init__(self) -> None:
        self.there = asyncio.Event()
        self.open = asyncio.Event()

    async def wait(self) -> None:
        self.there.set()
        async with asyncio.timeout(10):
            await self.open.wait()


def test_retention_spares_what_was_protected_while_it_removed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        for _ in range(3):
            await world.engine.hibernate(info.id)
            await world.engine.wake(info.id)
            world.clock.time += timedelta(seconds=1)
        world.clock.time += timedelta(minutes=11)
        sleeps = [s.id for s in await world.engine.snapshots(info.id) if s.reason == "hibernate"]
        remove, removed = world.engine._needs.remove, list[SnapshotId]()
        wanted = list[SnapshotId]()

        async def slow(snapshot_id: SnapshotId) -> None:
            removed.append(snapshot_id)
            if len(removed) == 1:
                wanted.append(next(found for found in sleeps[1:] if found != snapshot_id))
                await world.engine.protect(wanted[0], "chg", "a change may go back to it")
            await remove(snapshot_id)

        monkeypatch.setattr(world.engine._needs, "remove", slow)
        await world.engine.keep_house()
        assert len(removed) == 1
        assert (await world.engine.get_snapshot(wanted[0])).protected

    play(scene)


def test_a_snapshot_id_that_exists_is_that_snapshot(play: Play) -> None:
    async def scene(world: World) -> None:
        info, other = await world.create(), await world.create()
        wanted = SnapshotId(new_id("snap"))
        first = await world.engine.snapshot(info.id, snapshot_id=wanted)
        assert await world.engine.snapshot(info.id, snapshot_id=wanted) == first
        await world.engine.hibernate(info.id)
        assert await world.engine.snapshot(info.id, snapshot_id=wanted) == first
        with pytest.raises(Conflict, match=wanted):
            await world.engine.snapshot(info.id, snapshot_id=wanted, label="another")
        with pytest.raises(Conflict, match=wanted):
            await world.engine.snapshot(other.id, snapshot_id=wanted)
        assert await world.engine.verify_snapshot(wanted) == ()
        assert [s.id for s in await world.engine.snapshots(info.id)].count(wanted) == 1

    play(scene)


def test_a_repeat_that_waits_for_the_first_finds_its_snapshot(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        wanted = SnapshotId(new_id("snap"))
        world.driver.block["ram"] = asyncio.Event()
        world.driver.reached.clear()
        first = asyncio.create_task(world.engine.snapshot(info.id, snapshot_id=wanted))
        await world.driver.until("ram")
        first.cancel()  # its client left
        await asyncio.gather(first, return_exceptions=True)
        with pytest.raises(NotFound):
            await world.engine.get_snapshot(wanted)
        again = asyncio.create_task(world.engine.snapshot(info.id, snapshot_id=wanted))
        await asyncio.sleep(0)  # it is in the queue
        world.driver.block.pop("ram").set()
        assert (await again).id == wanted
        assert await world.engine.verify_snapshot(wanted) == ()
        await world.engine.hibernate(info.id)
        assert (await world.engine.wake(info.id)).state is S.RUNNING

    play(scene)


@pytest.mark.parametrize(
    "lease", [{"idle_seconds": 60}, {"ttl_seconds": 60, "on_timeout": "hibernate"}]
)
def test_a_delete_breaks_off_a_sandbox_that_falls_asleep_by_itself(
    play: Play, lease: dict[str, Any]
) -> None:
    async def scene(world: World) -> None:
        info = await world.create(**lease)
        world.driver.block["ram"] = asyncio.Event()
        world.driver.reached.clear()
        world.clock.time += timedelta(seconds=61)
        world.engine._tasks[info.id]._queue.put_nowait(None)
        await world.driver.until("ram")
        async with asyncio.timeout(5):
            assert (await world.engine.delete(info.id)).state is S.DELETED
        assert world.reports == []

    play(scene)


@pytest.mark.parametrize(
    "lease", [{"idle_seconds": 60}, {"ttl_seconds": 60, "on_timeout": "hibernate"}]
)
def test_a_sandbox_that_is_claimed_does_not_fall_asleep_by_itself(
    play: Play, lease: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create(**lease)
        await world.engine.claim(info.id, CLAIM, CLAIM.holder)
        task, looked = world.engine._tasks[info.id], asyncio.Event()
        deadline = task._deadline

        async def told() -> None:
            await deadline()
            looked.set()

        monkeypatch.setattr(task, "_deadline", told)
        world.clock.time += timedelta(seconds=61)
        task._queue.put_nowait(None)
        async with asyncio.timeout(10):
            await looked.wait()
        assert task.info.state is S.RUNNING
        await world.engine.claim(info.id, None, CLAIM.holder)
        world.clock.time += timedelta(seconds=61)
        task._queue.put_nowait(None)
        await world.until(info.id, S.HIBERNATED)

    play(scene)


def test_a_claim_that_comes_before_the_rollbacks_turn_forbids_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        gate, look = Gate(), world.engine._look_at_host

        async def slow() -> None:
            await gate.wait()
            await look()

        monkeypatch.setattr(world.engine, "_look_at_host", slow)
        putting = asyncio.create_task(world.engine.rollback(info.id, snap.id))
        await gate.there.wait()
        await world.engine.claim(info.id, CLAIM, CLAIM.holder)
        gate.open.set()
        with pytest.raises(Conflict, match="a change runs"):
            await putting
        assert (await world.engine.get(info.id)).generation == info.generation

    play(scene)


@pytest.mark.parametrize("act", ["snapshot", "hibernate"])
@pytest.mark.parametrize("step", ["ram", "switch"])
def test_a_capture_that_failed_leaves_the_guest_the_right_time(
    play: Play, step: str, act: str
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine._tasks[info.id].machine.guest()
        agent = world.connect.agents[-1]
        agent.calls.clear()
        world.driver.fail_once[step] = VmmFailed("no")
        with pytest.raises(TorporError):
            await getattr(world.engine, act)(info.id)
        assert "set_clock" in agent.calls
        assert (await world.engine.get(info.id)).state is S.RUNNING

    play(scene)


def test_a_snapshot_that_a_restore_waits_with_is_not_deleted(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        await world.engine.delete(info.id)
        gate, intend = Gate(), world.engine._moves.intend_new

        async def slow(*args: Any, **more: Any) -> None:
            await gate.wait()
            await intend(*args, **more)

        monkeypatch.setattr(world.engine._moves, "intend_new", slow)
        making = asyncio.create_task(world.engine.restore(snap.id, RestoreSpec()))
        await gate.there.wait()
        with pytest.raises(Conflict, match="a sandbox is being made from it"):
            await world.engine.delete_snapshot(snap.id)
        gate.open.set()
        assert (await making).state is S.RUNNING

    play(scene)


@pytest.mark.parametrize("memory", ["ram", "cold"])
def test_a_snapshot_that_a_rollback_waits_with_is_not_deleted(
    play: Play, memory: MemoryChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        gate, plan = Gate(), comeback.plan_return

        async def slow(*args: Any, **more: Any) -> Any:
            await gate.wait()
            return await plan(*args, **more)

        monkeypatch.setattr(comeback, "plan_return", slow)
        putting = asyncio.create_task(world.engine.rollback(info.id, snap.id, memory=memory))
        await gate.there.wait()
        with pytest.raises(Conflict, match="is needed"):
            await world.engine.delete_snapshot(snap.id)
        gate.open.set()
        assert (await putting).state is S.RUNNING

    play(scene)


def test_room_is_not_made_with_the_image_that_a_rollback_needs(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        image = world.engine._parts.layers.images.path(snap.id)
        process = world.vmm(info.id).process
        with monkeypatch.context() as patch:
            patch.setattr(room, "free_bytes", lambda _: 0 if image.exists() else 1 << 50)
            with pytest.raises(InsufficientResources):
                await world.engine.rollback(info.id, snap.id)
        assert image.exists()
        assert process.alive()
        assert (await world.engine.rollback(info.id, snap.id)).state is S.RUNNING

    play(scene)


def test_a_wake_keeps_the_layers_that_it_chose_when_others_are_merged_meanwhile(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        for _ in range(4):
            await world.engine.snapshot(info.id)
        await world.engine.hibernate(info.id)
        store = world.engine._parts.layers
        asleep = (await world.engine.get(info.id)).parent_snapshot
        assert asleep is not None
        disk, check = store.get(asleep).disk, comeback.check_start

        def merge(count: int) -> str:
            layer = new_id("lyr")
            path = store.disk_path(layer)
            path.write_bytes(b"merged")
            below = tuple(ref.id for ref in disk[:count])
            store.add_merged(Merged(store.ref(layer, path), "disk", below))
            return layer

        chosen = merge(2)

        async def merged_meanwhile(parts: Parts, layers: Sequence[Path]) -> None:
            merge(3)
            await world.engine.collect()
            await check(parts, layers)

        monkeypatch.setattr(comeback, "check_start", merged_meanwhile)
        assert (await world.engine.wake(info.id)).state is S.RUNNING
        row = world.engine._tasks[info.id].machine.row
        assert chosen in row.layers.disk
        assert store.disk_path(chosen).exists()

    play(scene)


async def _killed_in_a_rollback(world: World, info: SandboxInfo, snap: SnapshotId) -> None:
    """Leave what a daemon leaves that is killed in a rollback, and the next one as it begins again."""
    world.driver.block["restore"] = asyncio.Event()
    world.driver.reached.clear()
    putting = asyncio.create_task(world.engine.rollback(info.id, snap))
    await world.driver.until("restore")
    world.driver.block.pop("restore")
    await world.engine.aclose()
    with pytest.raises(DaemonUnreachable):
        await putting
    second = world.new_engine()
    second._parts.layers.load()
    second._parts.host = await world.driver.probe()
    await second._parts.volumes.shelf.load()
    (found,) = await recover(second._parts)
    assert found.task.info.state is S.RESTORING
    await asyncio.to_thread(second._parts.rows.close)  # it is killed here


def test_a_rollback_is_made_again_by_the_daemon_after_the_next(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        await _killed_in_a_rollback(world, info, snap.id)
        world.engine = world.new_engine()
        await world.engine.start()
        back = await world.until(info.id, S.RUNNING)
        assert (back.parent_snapshot, back.error) == (snap.id, None)

    play(scene)


def test_a_rollback_that_cannot_be_made_again_leaves_a_failed_sandbox(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        await _killed_in_a_rollback(world, info, snap.id)
        world.engine = world.new_engine()
        world.engine._parts.layers.devices(snap.id).unlink()
        await world.engine.start()
        failed = await world.until(info.id, S.FAILED)
        assert "devices: it is missing" in (failed.error or "")
        assert (await world.engine.rollback(info.id, snap.id, memory="cold")).state is S.RUNNING

    play(scene)
