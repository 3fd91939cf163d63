"""Chains are kept short in the background; what is merged serves machines that start later."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.base.units import GIB
from torpor.errors import InsufficientResources, VmmFailed
from torpor.layers import plan
from torpor.model import RestoreSpec, SandboxState, SnapshotInfo
from torpor.model_volumes import VolumeMount
from torpor.sandboxes import merging, volume_engine
from torpor.sandboxes.merging import Merger

S = SandboxState


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few layers are many."""
    for name, value in {"DISK_MOST": 4, "DISK_RUN": 3, "RAM_MOST": 4, "RAM_RUN": 3}.items():
        monkeypatch.setattr(plan, name, value)


async def _taken(world: World, count: int) -> list[SnapshotInfo]:
    info = await world.create()
    return [await world.engine.snapshot(info.id) for _ in range(count)]


async def _merge_all(world: World) -> int:
    merger, count = Merger(world.engine._parts), 0
    while await merger.merge_one():
        count += 1
    return count


async def _is_whole(world: World) -> None:
    while world.engine._parts.pins.now:  # the engine's own merger is at work
        await asyncio.sleep(0.01)
    await world.engine.collect()
    for snap in await world.engine.snapshots():
        assert await world.engine.verify_snapshot(snap.id) == ()
    for use in await world.engine.layers():
        assert use.snapshots or use.sandboxes, f"nobody needs {use}"


def test_long_chains_become_short_and_machines_begin_with_them(play: Play) -> None:
    async def scene(world: World) -> None:
        snaps = await _taken(world, 9)
        store = world.engine._parts.layers
        assert len(store.get(snaps[-1].id).disk) == 10
        before = store.get(snaps[-1].id)
        assert await _merge_all(world) > 0
        assert store.get(snaps[-1].id) == before, "manifests never change"
        for snap in snaps:
            short = store.shortened(store.get(snap.id))
            assert len(short.disk) <= plan.DISK_MOST
            assert len(short.ram) <= plan.RAM_MOST
        await _is_whole(world)
        made = await world.engine.restore(snaps[-1].id, RestoreSpec())
        spec, _ = world.driver.restored[-1]
        assert len(spec.disk.layers) <= 1 + plan.DISK_MOST
        assert await _merge_all(world) == 0, "all is short"
        for snap in snaps:
            await world.engine.delete_snapshot(snap.id)
        await _is_whole(world)
        again = await world.engine.snapshot(made.id)
        assert len(store.get(again.id).disk) <= plan.DISK_MOST + 1
        await world.engine.hibernate(made.id)
        await _merge_all(world)
        await _is_whole(world)
        assert (await world.engine.wake(made.id)).state is S.RUNNING
        await _is_whole(world)
        await world.restart()
        assert (await world.engine.rollback(made.id, again.id)).state is S.RUNNING
        await _is_whole(world)

    play(scene)


def test_volumes_have_short_chains_too(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_engine, "free_bytes", lambda _: 1 << 50)

    async def scene(world: World) -> None:
        volumes, shelf = world.engine.volumes, world.engine._parts.volumes.shelf
        await volumes.create("data", 1)
        one = await world.create(volumes=(VolumeMount(volume="data", path="/data"),))
        snaps = [await world.engine.snapshot(one.id) for _ in range(9)]
        store = world.engine._parts.layers
        assert len(shelf.get("data").layers.disk) == 10
        await _merge_all(world)
        for snap in snaps:
            (point,) = store.shortened(store.get(snap.id)).volumes
            assert len(point.disk) <= plan.DISK_MOST
        for snap in snaps:
            await world.engine.delete_snapshot(snap.id)
        await volumes.detach(one.id, "/data")
        await _merge_all(world)
        await world.engine.collect()
        assert await _merge_all(world) == 0, "what was merged is needed"
        await volumes.attach(one.id, VolumeMount(volume="data", path="/data"))
        assert len(shelf.get("data").layers.disk) <= plan.DISK_MOST
        await world.engine.collect()
        for layer in shelf.get("data").layers.ids:
            assert store.disk_path(layer).exists()
        await _is_whole(world)
        for number in range(9):
            await volumes.snapshot("data", label=str(number))
        await _merge_all(world)
        for snapshot in shelf.snapshots():
            assert len(store.merges.shortened(snapshot.disk)) <= plan.DISK_MOST
        await _is_whole(world)
        await volumes.clone("data", "copy", snapshot="8")
        assert len(shelf.get("copy").layers.disk) <= plan.DISK_MOST

    play(scene)


def test_a_sleeper_needs_its_snapshot_and_nothing_else(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        for _ in range(6):
            old = await world.engine.snapshot(info.id)
            await world.engine.delete_snapshot(old.id)
        slept = await world.engine.hibernate(info.id)
        await _merge_all(world)
        await _is_whole(world)
        store = world.engine._parts.layers
        manifest = store.get(slept.id)
        left = {p.stem for p in world.home.layers.glob("*.qcow2")}
        first = {ref.id for ref in manifest.disk}
        assert len(left & first) < len(first), "what was merged is gone"
        assert (await world.engine.wake(info.id)).state is S.RUNNING

    play(scene)


def test_a_merge_that_fails_is_reported_once_and_changes_nothing(play: Play) -> None:
    async def scene(world: World) -> None:
        snaps = await _taken(world, 5)
        store = world.engine._parts.layers
        world.driver.fail["merged"] = VmmFailed("not the same disk")
        merger = Merger(world.engine._parts)
        while await merger.merge_one():
            pass
        assert [r for r in world.reports if "merging disk layers" in r]
        assert len(world.reports) == 1
        assert store.shortened(store.get(snaps[-1].id)).disk == store.get(snaps[-1].id).disk
        await _is_whole(world)
        world.driver.fail.clear()
        assert not await merger.merge_one(), "not again by this daemon"
        assert await _merge_all(world) > 0, "but by the next"

    play(scene)


def test_no_disk_is_used_up_for_it(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        await _taken(world, 6)
        merger = Merger(world.engine._parts)
        monkeypatch.setattr(merging, "free_bytes", lambda _: GIB)
        assert not await merger.merge_one()
        monkeypatch.setattr(merging, "free_bytes", lambda _: 1 << 50)
        world.driver.fail_once["merge"] = InsufficientResources("the disk is full")
        assert await merger.merge_one() in (True, False)
        assert await _merge_all(world) > 0
        assert world.reports == []

    play(scene)


def test_the_end_of_the_daemon_ends_a_merge_and_leaves_nothing(play: Play) -> None:
    async def scene(world: World) -> None:
        snaps = await _taken(world, 6)
        world.driver.block["merged"] = asyncio.Event()
        await world.restart()  # the next daemon begins at once
        await world.driver.until("merged")
        before = {p.name for p in world.home.layers.glob("*.merged")}
        await world.restart()
        world.driver.block.pop("merged").set()
        assert {p.name for p in world.home.layers.glob("*.merged")} >= before
        await _merge_all(world)
        await _is_whole(world)
        assert await world.engine.verify_snapshot(snaps[-1].id) == ()

    play(scene)


def test_layers_stay_while_they_are_merged(play: Play) -> None:
    async def scene(world: World) -> None:
        snaps = await _taken(world, 6)
        (info,) = (t.info for t in world.engine._tasks.values())
        world.driver.block["merge"] = asyncio.Event()
        await world.restart()
        await world.driver.until("merge")
        await world.engine.delete(info.id)
        for snap in snaps:
            await world.engine.delete_snapshot(snap.id)
        await world.engine.collect()
        world.driver.block.pop("merge").set()
        await world.driver.until("merged")
        while world.engine._parts.pins.now:
            await asyncio.sleep(0.01)
        await _is_whole(world)

    play(scene)


@pytest.mark.parametrize("point", ["merge.made", "merge.durable", "merge.noted"])
def test_a_daemon_that_dies_at_a_step(
    play: Play, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        """Nothing cleans up after it."""

    def dies(reached: str) -> None:
        if reached == point:
            raise Died

    async def scene(world: World) -> None:
        snaps = await _taken(world, 6)
        before = {p.name for p in world.home.layers.iterdir()}
        monkeypatch.setattr(merging, "reach", dies)
        with pytest.raises(Died):
            await Merger(world.engine._parts).merge_one()
        assert {p.name for p in world.home.layers.iterdir()} > before
        monkeypatch.undo()
        await world.restart()
        await _is_whole(world)
        for snap in snaps:
            made = await world.engine.restore(snap.id, RestoreSpec())
            await world.engine.delete(made.id)

    play(scene)


def test_a_machine_that_is_never_restarted_has_short_chains_too(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        store = world.engine._parts.layers
        for _ in range(25):
            snap = await world.engine.snapshot(info.id)
            await _merge_all(world)
            assert len(store.get(snap.id).ram) <= plan.RAM_MOST + 1
            assert len(store.get(snap.id).disk) <= plan.DISK_MOST + 2
        row = world.engine._tasks[info.id].machine.row.layers
        assert len(row.session) <= plan.RAM_MOST + 1
        await _is_whole(world)
        await world.engine.hibernate(info.id)
        await world.engine.wake(info.id)
        spec, _ = world.driver.restored[-1]
        assert len(spec.disk.layers) <= plan.DISK_MOST + 2

    play(scene)
