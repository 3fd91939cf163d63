"""A file system filled to the last byte, at every step: an act fails in words or is whole, and the source goes on.

The driver is the fake; its files are real. `tests/vm/test_full_disk.py` has the real machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from tests.crash.smalldisk import SmallDisk, small_disk
from tests.fakes.driver import FakeAgent, FakeDriver, FakeVmm
from tests.unit.sandboxes.world import World
from torpor.base.home import Home
from torpor.errors import InsufficientResources
from torpor.layers.ram import RamLayer
from torpor.layers.space import full_disk_told
from torpor.model import RestoreSpec, SandboxId, SandboxInfo, SandboxState, SnapshotInfo
from torpor.sandboxes import admission, capture, comeback, room
from torpor.vmm.base import MachineSpec, SavedMachine

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

S = SandboxState
BLOCK = 4096
LEFT = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20]
"""Blocks that are free: enough for none, some or all of the steps."""


class _Vmm(FakeVmm):
    """Says of a full disk what a driver's port promises."""

    @override
    async def save_devices(self) -> Path:
        with full_disk_told("devices"):
            return await super().save_devices()

    @override
    async def save_ram(self, path: Path, previous: Sequence[Path] = ()) -> RamLayer:
        with full_disk_told("RAM"):
            return await super().save_ram(path, previous)

    @override
    async def switch_disk(self, overlay: Path) -> None:
        with full_disk_told("a note of the fake's"):
            await super().switch_disk(overlay)


class _Driver(FakeDriver):
    @override
    async def create_overlay(self, path: Path, size_bytes: int) -> None:
        try:
            with full_disk_told("an overlay"):
                await super().create_overlay(path, size_bytes)
        except InsufficientResources:
            path.unlink(missing_ok=True)
            raise

    @override
    async def restore(self, folder: Path, spec: MachineSpec, saved: SavedMachine) -> FakeVmm:
        with full_disk_told("a machine's files"):
            return await super().restore(folder, spec, saved)

    @override
    def _started(self, folder: Path, spec: MachineSpec) -> FakeVmm:
        found = super()._started(folder, spec)
        return _Vmm(found.process, folder, self)

    @override
    def note(self, folder: Path, **changes: object) -> None:
        # a note that is cut off would be damage of the fake's own
        fresh = folder / "vmm.tmp"
        try:
            fresh.write_text(json.dumps(self.noted(folder) | changes))
            fresh.rename(folder / "vmm.json")
        finally:
            fresh.unlink(missing_ok=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(request.param, 24, tmp_path) as found:
        yield found


Act = Callable[[World, SandboxInfo, SnapshotInfo], Awaitable[object]]

ACTS: dict[str, Act] = {
    "snapshot": lambda w, i, s: w.engine.snapshot(i.id),
    "hibernate": lambda w, i, s: w.engine.hibernate(i.id),
    "fork": lambda w, i, s: w.engine.fork(i.id, RestoreSpec()),
    "restore": lambda w, i, s: w.engine.restore(s.id, RestoreSpec()),
    "rollback": lambda w, i, s: w.engine.rollback(i.id, s.id),
}


def _play(
    disk: SmallDisk,
    monkeypatch: pytest.MonkeyPatch,
    scene: Callable[[World], Awaitable[None]],
) -> None:
    monkeypatch.setattr(admission, "free_bytes", lambda _: 1 << 50)

    async def main() -> None:
        world = World(Home(disk.root / "home"), driver=_Driver())
        await world.engine.start()
        try:
            await scene(world)
        finally:
            for task in list(world.engine._tasks.values()):
                await world.engine.delete(task.info.id)
            disk.free()
            await world.engine.aclose()
        assert list(world.home.sandboxes.iterdir()) == []

    asyncio.run(main())


async def _check_house(world: World) -> None:
    """Look that everything is whole, and that nothing is there that nobody needs."""
    assert [p.name for p in world.home.tmp.iterdir()] == []
    await world.engine.collect()
    for found in await world.engine.snapshots():
        assert await world.engine.verify_snapshot(found.id) == ()
    for use in await world.engine.layers():
        assert use.snapshots or use.sandboxes, f"nobody needs {use.id}"


async def _check_goes_on(world: World, sandbox_id: SandboxId) -> None:
    assert (await world.engine.get(sandbox_id)).state is S.RUNNING
    vmm = world.vmm(sandbox_id)
    assert await vmm.status() == "running"
    agent = await world.engine._tasks[sandbox_id].machine.guest()
    assert isinstance(agent, FakeAgent)
    assert not agent.frozen
    written = await vmm.active_disk()
    layers = world.engine._tasks[sandbox_id].machine.row.layers
    assert written in (layers.active, layers.next_active), "its disk is known"
    assert written in layers.ids


@pytest.mark.parametrize("act", ACTS)
def test_at_every_step(disk: SmallDisk, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_check(*_: object) -> None:
        """Let it run into the full disk."""

    monkeypatch.setattr(capture, "check_capture", no_check)
    monkeypatch.setattr(comeback, "check_capture", no_check)
    monkeypatch.setattr(comeback, "check_start", no_check)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    sizes = [n * BLOCK for n in LEFT]
    sizes += [random.Random(seed).randrange(20 * BLOCK) for _ in range(6)]

    async def scene(world: World) -> None:
        info = await world.create()
        refused = [await _one_round(world, disk, act, info, left) for left in sizes]
        assert sum(refused) >= 2, "the disk was full indeed"

    _play(disk, monkeypatch, scene)


async def _one_round(
    world: World, disk: SmallDisk, act: str, info: SandboxInfo, left_bytes: int
) -> bool:
    """Do `act` on a disk with little left; return whether it was refused. The house is whole afterwards."""
    first = await world.engine.snapshot(info.id)
    before = {s.id for s in await world.engine.snapshots()}
    _evict_all(world)
    disk.fill(left_bytes)
    failed: object = None
    try:
        made = await ACTS[act](world, info, first)
        failed = made[0] if isinstance(made, tuple) else None
    except InsufficientResources as exc:
        failed = exc
    refused = isinstance(failed, InsufficientResources)
    if isinstance(failed, InsufficientResources):
        assert re.search("disk|space", failed.message)
    if refused and act in ("snapshot", "hibernate"):
        assert {s.id for s in await world.engine.snapshots()} == before
    await _mend(world, disk, act, info, first)
    await _check_goes_on(world, info.id)
    disk.free()
    await _check_house(world)
    snap = await world.engine.snapshot(info.id)  # the next one is whole
    assert await world.engine.verify_snapshot(snap.id) == ()
    for task in list(world.engine._tasks.values()):
        if task.info.id != info.id:
            await world.engine.delete(task.info.id)
    for found in await world.engine.snapshots(info.id):
        await world.engine.delete_snapshot(found.id)
    return refused


async def _mend(
    world: World, disk: SmallDisk, act: str, info: SandboxInfo, first: SnapshotInfo
) -> None:
    """Bring the sandbox back from where a rollback that failed, or a hibernate that did not, left it."""
    state = (await world.engine.get(info.id)).state
    if act == "rollback" and state is S.FAILED:
        disk.free()
        await world.engine.rollback(info.id, first.id)
    elif act == "hibernate" and state is S.HIBERNATED:
        disk.free()
        await world.engine.wake(info.id)


def _forget_image(world: World, sandbox_id: SandboxId) -> None:
    parent = world.engine._tasks[sandbox_id].info.parent_snapshot
    (world.home.images / f"{parent}.img").unlink(missing_ok=True)


def _evict_all(world: World) -> None:
    world.engine._parts.layers.images.evict(1 << 40, lambda: (world.engine._needs.mapped(), ()))


@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_a_wake_on_a_full_disk_sleeps_on(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_check(*_: object) -> None:
        """Let it run into the full disk."""

    monkeypatch.setattr(comeback, "check_start", no_check)

    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine.hibernate(info.id)
        for left in LEFT[:6]:
            _forget_image(world, info.id)
            disk.fill(left * BLOCK)
            try:
                await world.engine.wake(info.id)
            except InsufficientResources:
                assert (await world.engine.get(info.id)).state is S.HIBERNATED
            disk.free()
            assert (await world.engine.wake(info.id)).state is S.RUNNING
            await world.engine.hibernate(info.id)
        await _check_house(world)

    _play(disk, monkeypatch, scene)


@pytest.mark.parametrize("act", ["snapshot", "hibernate"])
@pytest.mark.parametrize("disk", ["tmpfs"], indirect=True)
def test_what_cannot_fit_is_refused_before_anything_is_done(
    disk: SmallDisk, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        first = await world.engine.snapshot(info.id)
        calls = list(world.connect.agents[-1].calls)
        disk.fill(room.CAPTURE_MARGIN_BYTES // 2)
        with pytest.raises(InsufficientResources, match=r"may write .* are free") as caught:
            await ACTS[act](world, info, first)
        assert caught.value.facts["needed_bytes"] == room.CAPTURE_MARGIN_BYTES + 4 * BLOCK
        assert world.connect.agents[-1].calls == calls, "the guest was not even frozen"
        await _check_goes_on(world, info.id)
        disk.free()
        disk.fill(room.CAPTURE_MARGIN_BYTES + 64 * BLOCK)
        await ACTS[act](world, info, first)

    _play(disk, monkeypatch, scene)


@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_a_rollback_that_cannot_fit_does_not_end_the_machine(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        for left in (0, room.START_MARGIN_BYTES // 2):
            disk.fill(left)
            with pytest.raises(InsufficientResources):
                await world.engine.rollback(info.id, snap.id)
            await _check_goes_on(world, info.id)
            disk.free()
        await world.engine.hibernate(info.id)
        disk.fill()
        with pytest.raises(InsufficientResources, match="to start"):
            await world.engine.wake(info.id)
        assert (await world.engine.get(info.id)).state is S.HIBERNATED
        disk.free()
        await world.engine.wake(info.id)

    _play(disk, monkeypatch, scene)


@pytest.mark.parametrize("disk", ["tmpfs"], indirect=True)
def test_images_make_room_first(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        fork = await world.engine.restore(snap.id, RestoreSpec())
        unused = world.home.images / f"{snap.id}.img"
        mapped = [p for p in world.home.images.glob("*.img") if p != unused]
        await world.engine.delete(fork.id)
        with unused.open("r+b") as file:  # as large as a real one
            file.write(b"x" * (4 << 20))
        disk.fill(room.CAPTURE_MARGIN_BYTES - (2 << 20))
        await world.engine.snapshot(info.id)
        assert not unused.exists()
        assert mapped
        assert all(path.exists() for path in mapped)

    _play(disk, monkeypatch, scene)


@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_everything_can_be_deleted_on_a_full_disk(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        made = [await world.create() for _ in range(3)]
        await world.engine.snapshot(made[0].id)
        await world.engine.hibernate(made[1].id)
        disk.fill()
        await world.engine.pause(made[2].id)
        for info in made:
            assert (await world.engine.delete(info.id)).state is S.DELETED
        for found in await world.engine.snapshots():
            await world.engine.delete_snapshot(found.id)
        assert await world.engine.snapshots() == ()
        await world.restart()

    _play(disk, monkeypatch, scene)
