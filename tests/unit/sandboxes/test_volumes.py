"""Volumes with the fake driver: leases, attach and detach, snapshots, and what comes back from them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.driver import FakeAgent
from tests.unit.sandboxes.world import Play, World
from torpor.base.units import GIB
from torpor.errors import (
    Busy,
    Conflict,
    GuestFailed,
    InsufficientResources,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    VmmFailed,
    VolumeHeld,
    WrongState,
)
from torpor.model import (
    DRILL_MARK,
    RestoreSpec,
    SandboxId,
    SandboxInfo,
    SandboxState,
    SnapshotId,
    Stillness,
)
from torpor.model_volumes import VolumeMount
from torpor.sandboxes import standstill, volume_engine
from torpor.volumes.lease import in_state
from torpor.volumes.quota import VolumeQuota

S = SandboxState
Scene = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_engine, "free_bytes", lambda _: 1 << 50)


def mount(name: str = "data", path: str = "/data", *, read_only: bool = False) -> VolumeMount:
    return VolumeMount(volume=name, path=path, read_only=read_only)


async def made(world: World, *mounts: VolumeMount) -> SandboxInfo:
    return await world.create(volumes=mounts)


def row(world: World, name: str = "data") -> Any:
    return world.engine._parts.volumes.shelf.get(name)


def holders(world: World, name: str = "data") -> list[tuple[str, str]]:
    return [(h.sandbox_id, h.state) for h in row(world, name).holders]


async def slots(world: World, info: SandboxInfo) -> dict[int, str]:
    return await world.vmm(info.id).volumes()


# ---- making ----


def test_a_volume_is_made_listed_and_deleted(play: Play) -> None:
    async def scene(world: World) -> None:
        volumes = world.engine.volumes
        info = await volumes.create("data", 1)
        assert (info.name, info.size_bytes, info.holders) == ("data", GIB, ())
        assert [v.name for v in await volumes.list()] == ["data"]
        assert (await volumes.get(info.id)).name == "data"
        await world.engine.collect()
        assert len(list(world.home.layers.glob("*.qcow2"))) >= 2, "collection leaves it alone"
        await volumes.delete("data")
        with pytest.raises(NotFound, match="there is no volume data"):
            await volumes.get("data")
        assert await volumes.list() == ()

    play(scene)


@pytest.mark.parametrize(
    ("name", "size", "error"),
    [
        ("data", 1, Conflict),
        ("Upper", 1, InvalidRequest),
        ("vol_00000000000000000000", 1, InvalidRequest),
        ("tiny", 0.01, InvalidRequest),
        ("none", 0, InvalidRequest),
        ("nan", float("nan"), InvalidRequest),
        ("huge", 1 << 19, LimitExceeded),
    ],
)
def test_what_cannot_be_a_volume_is_refused(
    play: Play, name: str, size: float, error: type[Exception]
) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        with pytest.raises(error):
            await world.engine.volumes.create(name, size)
        assert [v.name for v in await world.engine.volumes.list()] == ["data"]

    play(scene)


def test_the_quota_and_the_hosts_room_are_kept(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        volumes, desk = world.engine.volumes, world.engine._parts.volumes
        await volumes.create("data", 1)
        desk.quota = VolumeQuota(max_volumes=1)
        with pytest.raises(LimitExceeded, match="1 are allowed"):
            await volumes.create("more", 1)
        desk.quota = VolumeQuota(max_all_bytes=2 * GIB)
        with pytest.raises(LimitExceeded, match="together"):
            await volumes.grow("data", 3)
        desk.quota = VolumeQuota()
        monkeypatch.setattr(volume_engine, "free_bytes", lambda _: 2 * GIB)
        with pytest.raises(InsufficientResources, match=r"2\.0 GiB are free"):
            await volumes.create("more", 4)
        with pytest.raises(InsufficientResources):
            await volumes.grow("data", 9)
        assert row(world).size_bytes == GIB

    play(scene)


def test_what_a_restore_or_fork_brings_along_counts_in_the_quota(play: Play) -> None:
    async def scene(world: World) -> None:
        engine, desk = world.engine, world.engine._parts.volumes
        await engine.volumes.create("data", 1)
        one = await made(world, mount())
        point = await engine.snapshot(one.id)
        snapshots = {s.id for s in await engine.snapshots()}
        before, layers = row(world), sorted(world.home.layers.iterdir())
        for quota in (VolumeQuota(max_volumes=2), VolumeQuota(max_all_bytes=2 * GIB)):
            desk.quota = quota
            for source in (one.id, point.id):
                with pytest.raises(LimitExceeded, match="allowed") as caught:
                    await engine.fork(source, RestoreSpec(), count=2)
                assert "volumes=detach" in str(caught.value.hint)
        desk.quota = VolumeQuota(max_volumes=1)
        with pytest.raises(LimitExceeded, match="there are 1 volumes; 1 are allowed"):
            await engine.restore(point.id, RestoreSpec())
        with pytest.raises(LimitExceeded):
            await engine.restore(point.id, RestoreSpec(memory="cold"))
        assert [p.name for p in world.home.sandboxes.iterdir()] == [one.id], "nothing was made"
        assert {s.id for s in await engine.snapshots()} == snapshots
        assert (row(world), sorted(world.home.layers.iterdir())) == (before, layers)
        assert world.vmm(one.id).process.pid
        assert (await engine.get(one.id)).state is S.RUNNING

        (fork,) = await engine.fork(point.id, RestoreSpec(volumes="detach"))
        assert isinstance(fork, SandboxInfo), "one that brings nothing along is made"
        desk.quota = VolumeQuota(max_volumes=2)
        (fork,) = await engine.fork(one.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        with pytest.raises(LimitExceeded):
            await engine.restore(point.id, RestoreSpec())
        await engine.delete(fork.id)
        await engine.restore(point.id, RestoreSpec())
        drill = RestoreSpec(network="none", metadata={DRILL_MARK: "drl_1"}, still=Stillness())
        for memory in ("ram", "cold"):
            await engine.restore(point.id, replace(drill, memory=memory))
        assert len(desk.shelf.all()) == 4, "what is thrown away is not refused"

    play(scene)


def test_a_rollback_that_needs_a_clone_is_refused_before_its_machine_ends(play: Play) -> None:
    async def scene(world: World) -> None:
        engine = world.engine
        await engine.volumes.create("data", 1)
        one, two = await made(world, mount(read_only=True)), await world.create()
        point = await engine.snapshot(one.id)
        await engine.volumes.detach(one.id, "/data")
        await engine.volumes.attach(two.id, mount())
        engine._parts.volumes.quota = VolumeQuota(max_volumes=1)
        machine = world.vmm(one.id).process
        with pytest.raises(LimitExceeded):
            await engine.rollback(one.id, point.id)
        info = await engine.get(one.id)
        assert (info.state, info.generation) == (S.RUNNING, one.generation)
        assert world.vmm(one.id).process == machine
        engine._parts.volumes.quota = VolumeQuota()
        await engine.rollback(one.id, point.id)

    play(scene)


def test_two_restores_at_once_do_not_both_get_the_last_place(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        point = await world.engine.snapshot(one.id)
        world.engine._parts.volumes.quota = VolumeQuota(max_volumes=2)
        results = await asyncio.gather(
            *(world.engine.restore(point.id, RestoreSpec()) for _ in range(3)),
            return_exceptions=True,
        )
        assert sum(isinstance(r, LimitExceeded) for r in results) == 2, results
        assert len(world.engine._parts.volumes.shelf.all()) == 2

    play(scene)


# ---- the lease ----


def test_one_writes_or_many_read(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        with pytest.raises(VolumeHeld, match=one.id) as caught:
            await made(world, mount())
        assert caught.value.facts["holders"] == [one.id]
        two = await world.create()
        for read_only in (False, True):
            with pytest.raises(VolumeHeld, match=f"{one.id} writes it at /data"):
                await world.engine.volumes.attach(two.id, mount(read_only=read_only))
        await world.engine.volumes.detach(one.id, "/data")
        readers = [one.id, two.id]
        for reader in readers:
            await world.engine.volumes.attach(reader, mount(read_only=True))
        assert [h for h, _ in holders(world)] == readers
        assert world.connect.agents[-1].mounted == {"/data": True}
        three = await world.create()
        with pytest.raises(VolumeHeld, match="reads it"):
            await world.engine.volumes.attach(three.id, mount())
        assert holders(world) == [(r, "attached") for r in readers]

    play(scene)


def test_two_who_ask_at_once_do_not_both_get_it(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        ids = [(await world.create()).id for _ in range(4)]
        results = await asyncio.gather(
            *(world.engine.volumes.attach(i, mount()) for i in ids), return_exceptions=True
        )
        assert sum(not isinstance(r, Exception) for r in results) == 1
        assert sum(isinstance(r, VolumeHeld) for r in results) == 3
        assert len(row(world).holders) == 1

    play(scene)


def test_what_readers_have_can_be_written_by_none(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        written = row(world).layers.active
        await world.engine.volumes.detach(one.id, "/data")
        await world.engine.volumes.attach(one.id, mount(read_only=True))
        layers = row(world).layers
        assert written in layers.disk, "what was written is immutable now"
        path = world.engine._parts.layers.disk_path(written)
        assert path.stat().st_mode & 0o222 == 0
        assert await slots(world, one) == {1: written}, "the overlay is not even given to it"

    play(scene)


def test_a_volume_with_a_journal_to_replay_is_not_read_by_many(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        os.kill(world.vmm(one.id).process.pid, signal.SIGKILL)
        await world.until(one.id, S.FAILED)
        two = await world.create()
        with pytest.raises(Conflict, match="without unmounting"):
            await world.engine.volumes.attach(two.id, mount(read_only=True))
        folders = list(world.home.sandboxes.iterdir())
        with pytest.raises(Conflict, match="without unmounting"):
            await made(world, mount(read_only=True))
        assert list(world.home.sandboxes.iterdir()) == folders, "nothing is made for it"
        await world.engine.volumes.attach(two.id, mount())
        await world.engine.volumes.detach(two.id, "/data")
        await world.engine.volumes.attach(two.id, mount(read_only=True))

    play(scene)


@pytest.mark.parametrize("asleep", [False, True])
def test_what_a_deleted_machine_wrote_can_be_read_by_many(play: Play, asleep: bool) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        if asleep:
            await world.engine.hibernate(one.id)
        agent = world.connect.agents[-1]
        await world.engine.delete(one.id)
        assert agent.calls.count("freeze") == 1, "its file systems are as if unmounted"
        two, three = [await made(world, mount(read_only=True)) for _ in range(2)]
        assert holders(world) == [(two.id, "attached"), (three.id, "attached")]

    play(scene)


def test_what_wakes_writes_again(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        await world.engine.hibernate(one.id)
        assert row(world).layers.clean
        await world.engine.wake(one.id)
        assert not row(world).layers.clean

    play(scene)


@pytest.mark.parametrize(
    "how", ["paused", "will not freeze", "booted by itself", "was not mounted"]
)
def test_a_machine_that_could_not_be_frozen_leaves_a_journal(play: Play, how: str) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        agent = world.connect.agents[-1]
        match how:
            case "paused":
                await world.engine.pause(one.id)
            case "will not freeze":
                agent.no_freeze = GuestFailed("/data cannot be frozen")
            case "booted by itself":
                object.__setattr__(agent.info, "instance", "another boot")
            case _:
                shelf = world.engine._parts.volumes.shelf
                await shelf.change(row(world).id, lambda r: in_state(r, one.id, "attaching"))
        await world.engine.delete(one.id)
        assert ("sync" in agent.calls) is (how == "will not freeze")
        assert not row(world).layers.clean

    play(scene)


def test_a_dead_holder_lets_go_only_when_its_machine_is_gone(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        two = await world.create()
        os.kill(world.vmm(one.id).process.pid, signal.SIGKILL)
        await world.until(one.id, S.FAILED)
        assert holders(world) == [(one.id, "attached")]
        await world.engine.volumes.attach(two.id, mount())
        assert holders(world) == [(two.id, "attached")]

    play(scene)


def test_a_failed_holder_whose_process_lives_keeps_the_volume(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        two = await world.create()
        task = world.engine._tasks[one.id]
        task.machine.row = task.machine.row.with_info(state=S.FAILED)  # as the row says, wrongly
        with pytest.raises(VolumeHeld, match=one.id):
            await world.engine.volumes.attach(two.id, mount())
        assert holders(world) == [(one.id, "attached")]

    play(scene)


def test_a_sleeping_holder_holds_on(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        await world.engine.hibernate(one.id)
        with pytest.raises(VolumeHeld, match=one.id):
            await made(world, mount())
        with pytest.raises(VolumeHeld, match="cannot be deleted"):
            await world.engine.volumes.delete("data")
        await world.engine.wake(one.id)
        assert await slots(world, one) == {1: row(world).layers.active}

    play(scene)


def test_deleting_a_sandbox_releases_its_volumes(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        await world.engine.delete(one.id)
        assert row(world).holders == ()
        two = await made(world, mount())
        assert holders(world) == [(two.id, "attached")]

    play(scene)


# ---- attach and detach ----


def test_bad_wishes_are_refused_before_anything_is_made(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        await world.engine.volumes.create("more", 1)
        for mounts, error in (
            ((mount("nothing"),), NotFound),
            ((mount(path="data"),), InvalidRequest),
            ((mount(path="/"),), InvalidRequest),
            ((mount(path="/proc/x"),), InvalidRequest),
            ((mount(path="/usr"),), InvalidRequest),
            ((mount(path="/run/torpor/x"),), InvalidRequest),
            ((mount(path="/" + "x" * 4096),), InvalidRequest),
            ((mount(path="/a\nb"),), InvalidRequest),
            ((mount(path="/a/../b"),), InvalidRequest),
            ((mount(), mount("more", "/data/inner")), Conflict),
            ((mount(), mount("more", "/data")), Conflict),
            ((mount(), mount(path="/other")), InvalidRequest),
        ):
            with pytest.raises(error):
                await made(world, *mounts)
        assert list(world.home.sandboxes.iterdir()) == []
        one = await made(world, mount())
        for path in ("/data", "/data/x", "/etc/torpor"):
            with pytest.raises((Conflict, InvalidRequest)):
                await world.engine.volumes.attach(one.id, mount("more", path))
        with pytest.raises(Conflict, match="already"):
            await world.engine.volumes.attach(one.id, mount(path="/again"))

    play(scene)


def test_a_busy_volume_stays_and_names_who_uses_it(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        agent = world.connect.agents[-1]
        agent.busy.add("/data")
        with pytest.raises(Busy, match="17 sh") as caught:
            await world.engine.volumes.detach(one.id, "/data")
        assert caught.value.facts["holders"] == "17 sh"
        assert holders(world) == [(one.id, "attached")]
        assert 1 in await slots(world, one)
        agent.busy.clear()
        await world.engine.volumes.detach(one.id, "data")
        assert await slots(world, one) == {}
        assert (await world.engine.volumes.get("data")).used_bytes == 200
        with pytest.raises(NotFound):
            await world.engine.volumes.detach(one.id, "/data")

    play(scene)


def test_an_attach_that_fails_leaves_nothing(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await world.create()
        agent = world.connect.agents[-1]
        agent.no_mount = GuestFailed("no file system", hint="--repair")
        with pytest.raises(GuestFailed):
            await world.engine.volumes.attach(one.id, mount())
        assert (await slots(world, one), row(world).holders) == ({}, ())
        agent.no_mount = None
        world.driver.fail["plug"] = VmmFailed("the file is locked")
        with pytest.raises(VmmFailed):
            await world.engine.volumes.attach(one.id, mount())
        assert row(world).holders == ()
        world.driver.fail.clear()
        await world.engine.volumes.attach(one.id, mount())

    play(scene)


def test_a_machine_that_does_not_give_it_back_keeps_the_lease(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one, two = await world.create(), await world.create()
        agent = world.connect.agents[-2]
        agent.no_mount = GuestFailed("no file system")
        world.driver.fail["unplug"] = VmmFailed("QEMU did not let go")
        with pytest.raises(GuestFailed):
            await world.engine.volumes.attach(one.id, mount())
        world.driver.fail.clear()
        assert [h for h, _ in holders(world)] == [one.id]
        with pytest.raises(VolumeHeld, match=one.id):
            await world.engine.volumes.attach(two.id, mount())

    play(scene)


def test_a_create_whose_volume_cannot_be_mounted_fails_and_releases(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        await world.warm()
        world.driver.fail["plug"] = VmmFailed("the file is locked")
        with pytest.raises(VmmFailed):
            await made(world, mount())
        assert row(world).holders == ()
        world.driver.fail.clear()

    play(scene)


def test_attach_wants_a_running_sandbox(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await world.create()
        await world.engine.pause(one.id)
        with pytest.raises(WrongState, match="paused"):
            await world.engine.volumes.attach(one.id, mount())
        await world.engine.hibernate(one.id)
        await world.engine.volumes.attach(one.id, mount())  # wakes it
        assert (await world.engine.get(one.id)).state is S.RUNNING
        os.kill(world.vmm(one.id).process.pid, signal.SIGKILL)
        await world.until(one.id, S.FAILED)
        with pytest.raises(WrongState, match="failed"):
            await world.engine.volumes.attach(one.id, mount("data", "/other"))
        await world.engine.volumes.detach(one.id, "/data")
        assert row(world).holders == ()

    play(scene)


def test_an_old_template_is_told_to_be_built_anew(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await world.create()
        agent = world.connect.agents[-1]
        object.__setattr__(agent.info, "capabilities", frozenset())
        with pytest.raises(InvalidRequest, match="before there were volumes"):
            await world.engine.volumes.attach(one.id, mount())
        assert row(world).holders == ()

    play(scene)


# ---- snapshots of machines ----


def test_a_snapshot_has_the_volumes_point(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        written = row(world).layers.active
        snapshot = await world.engine.snapshot(one.id)
        assert (dict(snapshot.volumes), snapshot.volumes_mode) == ({"/data": "data"}, "include")
        (point,) = world.engine._parts.layers.get(snapshot.id).volumes
        assert [ref.id for ref in point.disk][-1] == written
        now = row(world).layers
        assert now.disk[-1] == written
        assert now.next_active is None
        assert await slots(world, one) == {1: now.active}
        assert await world.engine.verify_snapshot(snapshot.id) == ()
        await world.engine.volumes.detach(one.id, "/data")
        with pytest.raises(Conflict, match="needed by snapshot snap_"):
            await world.engine.volumes.delete("data")
        await world.engine.delete_snapshot(snapshot.id)
        await world.engine.volumes.delete("data")

    play(scene)


def test_a_fork_gets_a_clone_that_goes_with_it(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        (fork,) = await world.engine.fork(one.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        (clone,) = await world.engine.volumes.of_sandbox(fork.id)
        assert clone.name != "data"
        assert (clone.parent, clone.bound_to) == (row(world).id, fork.id)
        assert row(world, clone.name).layers.active != row(world).layers.active
        assert [h for h, _ in holders(world)] == [one.id]
        assert world.driver.restored[-1][0].volumes[0].serial == row(world).holders[0].serial
        await world.engine.delete(fork.id)
        assert [v.name for v in await world.engine.volumes.list()] == ["data"]

    play(scene)


def test_a_kept_or_detached_clone_stays(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        forks = await world.engine.fork(one.id, RestoreSpec(), count=2)
        ids = [f.id for f in forks if isinstance(f, SandboxInfo)]
        names = [(await world.engine.volumes.of_sandbox(i))[0].name for i in ids]
        await world.engine.volumes.keep(names[0])
        await world.engine.volumes.detach(ids[1], "/data")
        for sandbox_id in ids:
            await world.engine.delete(sandbox_id)
        assert [v.name for v in await world.engine.volumes.list()] == sorted(["data", *names])

    play(scene)


def test_a_forks_reader_reads_the_volume_itself(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount(read_only=True))
        (fork,) = await world.engine.fork(one.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        assert [h for h, _ in holders(world)] == [one.id, fork.id]
        assert len(await world.engine.volumes.list()) == 1

    play(scene)


def test_a_rollback_puts_the_volume_back_and_keeps_what_was_in_it(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        snapshot = await world.engine.snapshot(one.id)
        then, later = row(world).layers.disk, row(world).layers.active
        await world.engine.volumes.grow("data", 2)
        await world.engine.rollback(one.id, snapshot.id)
        now = row(world)
        assert (now.layers.disk, now.size_bytes) == (then, GIB)
        assert now.layers.active != later
        (kept,) = await world.engine.volumes.snapshots("data")
        assert (kept.reason, kept.size_bytes) == ("rollback", 2 * GIB)
        assert later in {ref.id for ref in world.engine._parts.volumes.shelf.snapshots()[0].disk}
        assert holders(world) == [(one.id, "attached")]

    play(scene)


def test_a_rollback_is_refused_while_another_has_the_volume(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        snapshot = await world.engine.snapshot(one.id)
        await world.engine.volumes.detach(one.id, "/data")
        two = await made(world, mount())
        generation = (await world.engine.get(one.id)).generation
        for mode in (None, "include", "keep-current"):
            with pytest.raises(VolumeHeld, match=two.id):
                await world.engine.rollback(one.id, snapshot.id, volumes=mode)  # type: ignore[arg-type]
        assert (await world.engine.get(one.id)).generation == generation, "nothing was changed"
        await world.engine.rollback(one.id, snapshot.id, volumes="detach")
        assert holders(world) == [(two.id, "attached")]
        assert await slots(world, one) == {}

    play(scene)


def test_keep_current_comes_back_with_what_is_in_it_now(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        agent = world.connect.agents[-1]
        agent.calls.clear()
        snapshot = await world.engine.snapshot(one.id, volumes="keep-current")
        mounts = [c for c in agent.calls if "mount" in c]
        assert mounts == ["unmount /data", "mount /data"]
        active = row(world).layers.active
        await world.engine.rollback(one.id, snapshot.id)
        assert row(world).layers.active == active, "the volume is as it was"
        assert await world.engine.volumes.snapshots("data") == ()
        assert holders(world) == [(one.id, "attached")]
        assert await slots(world, one) == {1: active}
        with pytest.raises(InvalidRequest, match="no point of volume data"):
            await world.engine.rollback(one.id, snapshot.id, volumes="include")
        there = await world.engine.restore(snapshot.id, RestoreSpec())
        assert await world.engine.volumes.of_sandbox(there.id) == (), "one has it"
        folders = set(world.home.sandboxes.iterdir())
        with pytest.raises(VolumeHeld, match=one.id):  # who asks for it is told
            await world.engine.restore(snapshot.id, RestoreSpec(volumes="keep-current"))
        assert set(world.home.sandboxes.iterdir()) == folders, "nothing is made for it"

    play(scene)


def test_detach_forgets_the_volume(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        snapshot = await world.engine.snapshot(one.id, volumes="detach")
        assert holders(world) == [(one.id, "attached")]
        assert 1 in await slots(world, one)
        await world.engine.rollback(one.id, snapshot.id)
        assert row(world).holders == ()
        await world.engine.volumes.delete("data")

    play(scene)


def test_a_capture_whose_volume_is_in_use_takes_nothing(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        await world.engine.volumes.create("more", 1)
        one = await made(world, mount(), mount("more", "/more"))
        agent = world.connect.agents[-1]
        agent.busy.add("/more")
        with pytest.raises(Busy, match="17 sh"):
            await world.engine.snapshot(one.id, volumes="keep-current")
        assert await world.engine.snapshots(one.id) == ()
        assert set(agent.mounted) == {"/data", "/more"}
        assert [holders(world, n) for n in ("data", "more")] == [[(one.id, "attached")]] * 2
        await world.engine.pause(one.id)
        with pytest.raises(WrongState, match="paused"):
            await world.engine.snapshot(one.id, volumes="detach")
        await world.engine.snapshot(one.id)

    play(scene)


@pytest.mark.parametrize("step", ["switch_volume", "switched_volume", "ram", "overlay"])
def test_a_capture_that_fails_leaves_the_volume_whole(play: Play, step: str) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        world.driver.fail_once[step] = VmmFailed("it did not work")
        with pytest.raises(VmmFailed):
            await world.engine.snapshot(one.id)
        layers = row(world).layers
        assert layers.next_active is None
        assert await slots(world, one) == {1: layers.active}
        await world.engine.collect()
        for layer in (*layers.disk, layers.active):
            assert world.engine._parts.layers.disk_path(layer).exists()
        await world.engine.snapshot(one.id)

    play(scene)


def test_volumes_cannot_be_treated_in_another_way(play: Play) -> None:
    async def scene(world: World) -> None:
        one = await world.create()
        with pytest.raises(InvalidRequest, match="include, detach, keep-current"):
            await world.engine.snapshot(one.id, volumes="drop")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await world.engine.restore(
                SnapshotId("snap_00000000000000000000"),
                RestoreSpec(volumes="drop"),  # type: ignore[arg-type]
            )

    play(scene)


# ---- snapshots, clones and growth of volumes ----


def test_a_volumes_own_snapshots_and_clones(play: Play) -> None:
    async def scene(world: World) -> None:
        volumes = world.engine.volumes
        await volumes.create("data", 1)
        one = await made(world, mount())
        first = await volumes.snapshot("data", label="first")
        assert first.clean, "it was frozen"
        assert await slots(world, one) == {1: row(world).layers.active}
        with pytest.raises(Conflict, match="'first' already"):
            await volumes.snapshot("data", label="first")
        clone = await volumes.clone("data", "copy")
        assert clone.parent == row(world).id
        await volumes.clone("data", "old", snapshot="first")
        old = row(world, "old").layers.disk
        assert old == tuple(r.id for r in world.engine._parts.volumes.shelf.snapshots()[-1].disk)
        with pytest.raises(NotFound):
            await volumes.clone("data", "none", snapshot="second")
        await world.engine.hibernate(one.id)
        await volumes.snapshot("data", label="asleep")
        await world.engine.delete(one.id)
        for snapshot in await world.engine.snapshots(one.id):
            with pytest.raises(Conflict, match=snapshot.id):
                await volumes.delete("data", snapshots=True)
            await world.engine.delete_snapshot(snapshot.id)
        with pytest.raises(Conflict, match="snapshots of its own"):
            await volumes.delete("data")
        await volumes.delete("data", snapshots=True)
        await world.engine.collect()
        for name in ("copy", "old"):
            for layer in row(world, name).layers.ids:
                assert world.engine._parts.layers.disk_path(layer).exists(), "clones keep theirs"
        for name in ("copy", "old"):
            await volumes.delete(name)

    play(scene)


def test_growing(play: Play) -> None:
    async def scene(world: World) -> None:
        volumes = world.engine.volumes
        await volumes.create("data", 1)
        assert (await volumes.grow("data", 2)).size_bytes == 2 * GIB
        with pytest.raises(InvalidRequest, match=r"has 2\.0 GiB; it cannot become smaller"):
            await volumes.grow("data", 1)
        one = await made(world, mount())
        await volumes.grow("data", 3)
        assert "grow /data" in world.connect.agents[-1].calls
        world.driver.fail["resize"] = VmmFailed("no")
        with pytest.raises(VmmFailed):
            await volumes.grow("data", 4)
        world.driver.fail.clear()
        await volumes.grow("data", 4)
        await world.engine.hibernate(one.id)
        with pytest.raises(WrongState, match="hibernated"):
            await volumes.grow("data", 5)
        await world.engine.delete(one.id)
        two = await world.create()
        await volumes.attach(two.id, mount())
        await volumes.detach(two.id, "/data")
        await volumes.attach(two.id, mount(read_only=True))
        with pytest.raises(VolumeHeld, match="made larger"):
            await volumes.grow("data", 5)

    play(scene)


def test_growing_lets_a_machine_go_on_that_a_full_disk_had_stopped(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    grow_volume = FakeAgent.grow_volume

    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        vmm = world.vmm(one.id)

        async def stopped(self: FakeAgent, *args: Any, **kwargs: Any) -> Any:
            await vmm.pause()  # as QEMU does by itself
            while await vmm.status() == "paused":
                await asyncio.sleep(0.01)
            return await grow_volume(self, *args, **kwargs)

        async def room(_: object) -> None:
            looks.append(True)
            if len(looks) < 3:
                raise InsufficientResources("full")

        monkeypatch.setattr(FakeAgent, "grow_volume", stopped)
        monkeypatch.setattr(standstill, "_LOOK_S", 0.01)
        monkeypatch.setattr(standstill, "check_start", room)
        async with asyncio.timeout(30):
            assert (await world.engine.volumes.grow("data", 2)).size_bytes == 2 * GIB
        assert len(looks) == 3, "not before there was room"
        await vmm.pause()
        await asyncio.sleep(0.1)
        assert await vmm.status() == "paused", "what comes later is nobody's standstill"
        await vmm.resume()

    play(scene)


# ---- another daemon ----


def test_a_restart_finds_all_as_it_was(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        await world.engine.volumes.snapshot("data", label="x")
        before = row(world)
        await world.restart()
        assert row(world) == before
        assert [s.label for s in await world.engine.volumes.snapshots("data")] == ["x"]
        with pytest.raises(VolumeHeld):
            await made(world, mount())
        await world.engine.volumes.detach(one.id, "/data")

    play(scene)


@pytest.mark.parametrize(
    ("state", "wants"),
    [("attaching", None), ("detaching", None), ("parted", "attached"), ("attached", "attached")],
)
def test_a_restart_finishes_or_undoes_what_was_under_way(
    play: Play, state: str, wants: str | None
) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        shelf = world.engine._parts.volumes.shelf
        await shelf.change(row(world).id, lambda r: in_state(r, one.id, state))  # type: ignore[arg-type]
        if state == "parted":
            await world.vmm(one.id).detach_volume(1)
        await world.restart()
        assert holders(world) == ([] if wants is None else [(one.id, wants)])
        assert (1 in await slots(world, one)) == (wants is not None)

    play(scene)


def test_a_switch_that_was_not_written_down_is_found(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        desk = world.engine._parts.volumes
        old = row(world).layers
        for is_switched in (False, True):
            path = await desk.new_overlay("lyr_0000000000000000000" + str(int(is_switched)), GIB)
            name = path.stem
            await desk.shelf.change(
                row(world).id, lambda r, n=name: replace(r, layers=replace(r.layers, next_active=n))
            )
            if is_switched:
                await world.vmm(one.id).switch_volume(1, path)
            await world.restart()
            desk = world.engine._parts.volumes
            now = row(world).layers
            assert now.next_active is None
            assert now.active == (name if is_switched else old.active)
        assert now.disk == (*old.disk, old.active)
        os.kill(world.vmm(one.id).process.pid, signal.SIGKILL)
        await world.until(one.id, S.FAILED)

    play(scene)


def test_a_dead_machines_switch_counts_both_overlays(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        two = await world.create()
        desk = world.engine._parts.volumes
        old = row(world).layers
        path = await desk.new_overlay("lyr_00000000000000000000", GIB)
        await desk.shelf.change(
            row(world).id, lambda r: replace(r, layers=replace(r.layers, next_active=path.stem))
        )
        os.kill(world.vmm(one.id).process.pid, signal.SIGKILL)
        await world.until(one.id, S.FAILED)
        await world.engine.volumes.attach(two.id, mount())
        now = row(world).layers
        assert (now.disk, now.active) == ((*old.disk, old.active), path.stem)

    play(scene)


def test_holders_that_are_no_more_are_let_go_at_the_start(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        ghost = SandboxId("sbx_00000000000000000000")
        await world.engine._parts.volumes.shelf.change(
            row(world).id,
            lambda r: replace(r, holders=(replace(r.holders[0], sandbox_id=ghost),)),
        )
        await world.restart()
        assert row(world).holders == ()
        await world.engine.delete(one.id)

    play(scene)


def test_a_wake_that_fails_leaves_the_volume_at_its_point(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        await world.engine.hibernate(one.id)
        then = row(world).layers.disk
        world.driver.fail["restore"] = VmmFailed("no")
        with pytest.raises(VmmFailed):
            await world.engine.wake(one.id)
        world.driver.fail.clear()
        assert holders(world) == [(one.id, "attached")]
        await world.engine.wake(one.id)
        assert row(world).layers.disk == then
        assert await world.engine.volumes.snapshots("data") == ()
        assert await slots(world, one) == {1: row(world).layers.active}

    play(scene)


def test_places_for_volumes_are_those_of_the_driver(play: Play) -> None:
    async def scene(world: World) -> None:
        for name in "abc":
            await world.engine.volumes.create(name, 1)
        world.driver.volume_slots, world.driver.read_only_slots = range(1, 3), range(3, 4)
        info = await made(world, mount("a", "/a"), mount("b", "/b", read_only=True))
        assert await slots(world, info) == {
            1: row(world, "a").layers.active,
            3: row(world, "b").layers.disk[-1],
        }
        with pytest.raises(LimitExceeded, match="has 1 places for volumes to read"):
            await world.engine.volumes.attach(info.id, mount("c", "/c", read_only=True))
        assert holders(world, "c") == []
        snapshot = await world.engine.snapshot(info.id)
        # another driver's machines have other places; memory begins anew, so that they can be those
        world.driver.volume_slots, world.driver.read_only_slots = range(5, 7), range(7, 9)
        await world.engine.rollback(info.id, snapshot.id, memory="cold")
        assert [disk.slot for disk in world.driver.booted[-1].volumes] == [5, 7]
        assert row(world, "a").held_by(info.id).slot == 5
        await world.engine.volumes.attach(info.id, mount("c", "/c"))
        assert row(world, "c").held_by(info.id).slot == 6
        snapshot = await world.engine.snapshot(info.id)
        world.driver.volume_slots = range(9, 10)
        with pytest.raises(LimitExceeded):
            await world.engine.rollback(info.id, snapshot.id, memory="cold")
        assert (await world.engine.get(info.id)).state is S.RUNNING, "its machine was not ended"

    play(scene)
