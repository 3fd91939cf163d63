"""Volumes when two things cross, or when an earlier thing was never written down: nobody loses what was written."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from tests.unit.sandboxes.test_volumes import holders, made, mount, row, slots
from tests.unit.sandboxes.world import Play, World
from torpor.base.units import GIB
from torpor.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    TorporError,
    VmmFailed,
    VolumeHeld,
    WrongState,
)
from torpor.model import RestoreSpec, SandboxInfo, SandboxState
from torpor.sandboxes import acts, volume_attach, volume_engine
from torpor.volumes.desk import Point
from torpor.volumes.lease import in_state

S = SandboxState


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_engine, "free_bytes", lambda _: 1 << 50)


async def switched_unnoted(world: World, info: SandboxInfo) -> str:
    """Let the machine write to an overlay that the row only knows as the next one; return that."""
    desk = world.engine._parts.volumes
    path = await desk.new_overlay("lyr_0000000000000000000n", GIB)
    await desk.shelf.change(
        row(world).id, lambda r: replace(r, layers=replace(r.layers, next_active=path.stem))
    )
    await world.vmm(info.id).switch_volume(1, path)
    return path.stem


# ---- two at once ----


def test_who_takes_a_volume_during_a_rollback_to_it_keeps_what_it_writes(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        snapshot = await world.engine.snapshot(one.id)
        await world.engine.volumes.detach(one.id, "/data")
        two = await world.create()
        gate = world.driver.block["overlay"] = asyncio.Event()
        world.driver.reached.clear()
        going = asyncio.ensure_future(world.engine.rollback(one.id, snapshot.id))
        await world.driver.until("overlay")  # it has looked, and has no lease yet
        await world.engine.volumes.attach(two.id, mount())
        before = row(world)
        gate.set()
        with pytest.raises(VolumeHeld, match=two.id):
            await going
        assert row(world) == before, "its overlay is its own"
        assert await slots(world, two) == {1: before.layers.active}
        path = world.engine._parts.layers.disk_path(before.layers.active)
        assert path.stat().st_mode & 0o200, "it is still written to"
        assert await world.engine.volumes.snapshots("data") == ()

    play(scene)


@pytest.mark.parametrize("attached", [True, False])
def test_two_who_grow_it_at_once_do_not_make_it_smaller(play: Play, attached: bool) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        if attached:
            await made(world, mount())
        results = await asyncio.gather(
            world.engine.volumes.grow("data", 3),
            world.engine.volumes.grow("data", 2),
            return_exceptions=True,
        )
        assert isinstance(results[1], InvalidRequest)
        assert row(world).size_bytes == 3 * GIB

    play(scene)


def test_a_clone_that_is_kept_or_taken_while_its_sandbox_goes_stays(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one, two = await made(world, mount()), await world.create()
        forks = await world.engine.fork(one.id, RestoreSpec(), count=2)
        ids = [f.id for f in forks if isinstance(f, SandboxInfo)]
        names = [(await world.engine.volumes.of_sandbox(i))[0].name for i in ids]
        parts, shelf = world.engine._parts, world.engine._parts.volumes.shelf
        bound_to = shelf.bound_to

        def late(sandbox_id: str) -> list[object]:
            """Return what was so a moment ago."""
            found = bound_to(sandbox_id)
            for volume in found:
                if volume.name == names[0]:
                    shelf._put(replace(volume, bound_to=None))
                else:
                    taken = replace(row(world).holders[0], sandbox_id=two.id)
                    shelf._put(replace(volume, holders=(taken,)))
            return found  # type: ignore[return-value]

        shelf.bound_to = late  # type: ignore[method-assign,assignment]
        for sandbox_id in ids:
            await volume_attach.release_all(parts, sandbox_id)
        shelf.bound_to = bound_to  # type: ignore[method-assign]
        assert [v.name for v in await world.engine.volumes.list()] == sorted(["data", *names])
        assert row(world, names[1]).bound_to is None

    play(scene)


def test_no_snapshot_is_left_of_a_volume_that_is_gone(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        desk = world.engine._parts.volumes
        volume_id = row(world).id
        point: Point = await desk.point(volume_id)
        await world.engine.volumes.snapshot("data")
        await world.engine.volumes.delete("data", snapshots=True)
        with pytest.raises(NotFound):
            await desk.snapshot(volume_id, point, label=None)
        assert desk.shelf.snapshots() == []
        await world.restart()
        assert world.engine._parts.volumes.shelf.snapshots() == []

    play(scene)


def test_a_delete_that_is_refused_deletes_no_snapshot(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        kept = await world.engine.volumes.snapshot("data")
        for way in (False, True):
            with pytest.raises(VolumeHeld):
                await world.engine.volumes.delete("data", snapshots=way)
        await world.engine.volumes.detach(one.id, "/data")
        with pytest.raises(Conflict, match="snapshots of its own"):
            await world.engine.volumes.delete("data")
        assert [s.id for s in await world.engine.volumes.snapshots("data")] == [kept.id]

    play(scene)


def test_who_died_in_a_snapshot_does_not_speak_for_who_has_the_volume_now(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one, two = await made(world, mount()), await world.create()
        gate = world.driver.block["switch_volume"] = asyncio.Event()
        world.driver.fail_once["switched_volume"] = VmmFailed("the machine ended")
        taking = asyncio.ensure_future(world.engine.volumes.snapshot("data"))
        await world.driver.until("switch_volume")
        os.kill(world.vmm(one.id).process.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            while await world.vmm(one.id).status() != "ended":
                await asyncio.sleep(0.005)
        await world.engine.volumes.attach(two.id, mount())
        desk = world.engine._parts.volumes
        path = await desk.new_overlay("lyr_0000000000000000000n", GIB)
        before = await desk.shelf.change(  # it is about to switch
            row(world).id, lambda r: replace(r, layers=replace(r.layers, next_active=path.stem))
        )
        gate.set()
        with pytest.raises(TorporError):
            await taking
        assert row(world) == before

    play(scene)


# ---- what was not written down ----


def test_a_second_switch_does_not_forget_one_that_was_not_noted(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        old = row(world).layers
        await world.engine.pause(one.id)
        written = await switched_unnoted(world, one)
        await world.restart()
        await world.engine.volumes.snapshot("data")
        now = row(world).layers
        assert now.disk == (*old.disk, old.active, written)
        assert await slots(world, one) == {1: now.active}
        await world.engine.resume(one.id)

    play(scene)


@pytest.mark.parametrize("daemon_dies", [False, True])
def test_what_is_put_back_after_a_snapshot_has_all_that_was_written(
    play: Play, daemon_dies: bool
) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        old = row(world).layers
        written = await switched_unnoted(world, one)
        if daemon_dies:
            shelf = world.engine._parts.volumes.shelf
            await shelf.change(
                row(world).id,
                lambda r: replace(r, holders=(replace(r.holders[0], state="parted"),)),
            )
            await world.vmm(one.id).detach_volume(1)
            await world.restart()
        else:
            await world.engine.snapshot(one.id, volumes="keep-current")
        now = row(world).layers
        assert (now.disk, now.active) == ((*old.disk, old.active), written)
        assert await slots(world, one) == {1: written}
        assert holders(world) == [(one.id, "attached")]

    play(scene)


def test_a_volume_that_grows_has_no_overlay_that_is_too_small(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        desk, old = world.engine._parts.volumes, row(world).layers
        path = await desk.new_overlay("lyr_0000000000000000000n", GIB)
        await desk.shelf.change(
            row(world).id, lambda r: replace(r, layers=replace(r.layers, next_active=path.stem))
        )
        await world.engine.volumes.grow("data", 2)
        os.kill(world.vmm(one.id).process.pid, signal.SIGKILL)
        await world.until(one.id, S.FAILED)
        await world.engine.volumes.detach(one.id, "/data")
        assert row(world).layers.active == old.active, "the one that was made larger"

    play(scene)


def test_what_could_not_be_put_back_is_before_the_next_snapshot(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        world.driver.fail_once["plug"] = VmmFailed("it does not work now")
        with pytest.raises(VmmFailed):
            await world.engine.snapshot(one.id, volumes="keep-current")
        assert holders(world) == [(one.id, "parted")]
        assert await slots(world, one) == {}
        await world.engine.pause(one.id)
        with pytest.raises(WrongState, match="volume data is parted"):
            await world.engine.snapshot(one.id)
        await world.engine.resume(one.id)
        snapshot = await world.engine.snapshot(one.id)
        assert holders(world) == [(one.id, "attached")]
        assert await slots(world, one) == {1: row(world).layers.active}
        assert dict(snapshot.volumes) == {"/data": "data"}

    play(scene)


@pytest.mark.parametrize("state", ["attaching", "detaching"])
@pytest.mark.parametrize("plugged", [True, False])
def test_what_failed_half_way_is_ended_before_the_machine_sleeps(
    play: Play, state: str, plugged: bool
) -> None:
    """As a full disk leaves it, behind which the lease could not be given back."""

    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        await world.engine._parts.volumes.shelf.change(
            row(world).id,
            lambda r: in_state(r, one.id, state),  # type: ignore[arg-type]
        )
        if not plugged:
            await world.vmm(one.id).detach_volume(1)
        await world.engine.hibernate(one.id)
        assert holders(world) == []
        assert dict((await world.engine.snapshots(one.id))[0].volumes) == {}
        await world.engine.wake(one.id)
        assert await slots(world, one) == {}

    play(scene)


def test_a_machine_that_no_row_knows_and_that_lives_keeps_its_volume(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        process = world.vmm(one.id).process
        await world.engine.aclose()
        rows = world.engine._parts.rows
        rows.mark_deleted(replace(rows.living()[0]).with_info(state=S.DELETED), world.clock.now())
        world.engine = world.new_engine()
        world.driver.fail["sweep"] = VmmFailed("it does not end")
        await world.engine.start()
        world.driver.fail.clear()
        assert holders(world) == [(one.id, "attached")]
        two = await world.create()
        with pytest.raises(VolumeHeld, match=one.id):
            await world.engine.volumes.attach(two.id, mount())
        await process.kill()
        await world.engine.volumes.attach(two.id, mount())
        await world.restart()  # sweeps the folder
        assert holders(world) == [(two.id, "attached")]

    play(scene)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_machine_that_booted_anew_has_its_volumes_before_anything_runs_in_it(
    play: Play, restarted: bool
) -> None:
    """One that was not begun from a snapshot reboots without its VMM's end."""

    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        agent = world.connect.agents[-1]
        async with world.engine.guest(one.id):
            assert agent.calls.count("mount /data") == 1, "it is mounted already"
        if restarted:
            await world.restart()
        else:
            agent.closed = True  # as at a reboot
        world.connect.instance = "another boot"
        for _ in range(2):
            async with world.engine.guest(one.id) as guest:
                assert guest.calls.count("mount /data") == 1  # type: ignore[attr-defined]
                assert guest.mounted == {"/data": False}  # type: ignore[attr-defined]
        assert holders(world) == [(one.id, "attached")]

    play(scene)


@pytest.mark.parametrize("read_only", [False, True])
def test_what_a_deleted_machine_had_not_written_is_written(play: Play, read_only: bool) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount(read_only=read_only))
        agent = world.connect.agents[-1]
        await world.engine.delete(one.id)
        assert ("freeze" in agent.calls) is not read_only
        two = await made(world, mount())
        await world.engine.pause(two.id)
        await world.engine.delete(two.id)
        assert "freeze" not in world.connect.agents[-1].calls, "it cannot"

    play(scene)


def test_a_machine_that_does_not_answer_is_deleted_all_the_same(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        monkeypatch.setattr(acts, "_LAST_WORDS_S", 0.05)
        world.connect.agents[-1].freeze = lambda **_: asyncio.Event().wait()  # type: ignore[method-assign,assignment]
        await world.engine.delete(one.id)
        assert (holders(world), row(world).layers.clean) == ([], False)

    play(scene)


def test_a_sleeper_cannot_take_its_volumes_off_for_a_snapshot(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        await world.engine.hibernate(one.id)
        for mode in ("detach", "keep-current"):
            with pytest.raises(WrongState, match="cannot unmount"):
                await world.engine.snapshot(one.id, volumes=mode)  # type: ignore[arg-type]
        assert (await world.engine.snapshot(one.id)).volumes_mode == "include"

    play(scene)


# ---- what is read ----


def test_a_reader_that_goes_back_sleeps_and_wakes_with_what_it_reads(play: Play) -> None:
    """Its memory has the file system as it was then; the volume has moved on."""

    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one, two = await made(world, mount(read_only=True)), await world.create()
        snapshot = await world.engine.snapshot(one.id)
        (then,) = world.engine._parts.layers.get(snapshot.id).volumes
        await world.engine.volumes.detach(one.id, "/data")
        await world.engine.volumes.attach(two.id, mount())
        await world.engine.rollback(one.id, snapshot.id)  # who writes to it now is not in the way
        assert [h for h, _ in holders(world)] == [two.id]
        read = world.driver.restored[-1][0].volumes[0].layers
        assert [path.stem for path in read] == [ref.id for ref in then.disk]
        later = await world.engine.snapshot(one.id)
        (now,) = world.engine._parts.layers.get(later.id).volumes
        assert now.disk == then.disk, "what its memory knows"
        await world.engine.hibernate(one.id)
        await world.engine.wake(one.id)
        assert world.driver.restored[-1][0].volumes[0].layers == read

    play(scene)


def test_what_a_reader_read_from_goes_when_it_goes_back_again(play: Play) -> None:
    """Else each of its rollbacks leaves a clone, until a quota of volumes is full."""

    async def scene(world: World) -> None:
        engine, shelf = world.engine, world.engine._parts.volumes.shelf
        await engine.volumes.create("data", 1)
        one, two = await made(world, mount(read_only=True)), await world.create()
        snapshot = await engine.snapshot(one.id)
        await engine.volumes.detach(one.id, "/data")
        await engine.volumes.attach(two.id, mount())
        await engine.rollback(one.id, snapshot.id)
        (first,) = shelf.bound_to(one.id)
        await engine.rollback(one.id, snapshot.id)
        (second,) = shelf.bound_to(one.id)
        assert second.id != first.id
        later = await engine.snapshot(one.id)  # needs the second
        await engine.rollback(one.id, snapshot.id)
        assert {row.id for row in shelf.bound_to(one.id)} > {second.id}
        await engine.rollback(one.id, later.id)
        assert second.id in {row.id for row in shelf.all()}
        (third,) = (row for row, _ in shelf.held_by(one.id))
        await engine.volumes.snapshot(third.id, label="by hand")
        await engine.rollback(one.id, snapshot.id)
        assert third.id in {row.id for row in shelf.all()}, "a user has something of it"

    play(scene)


def test_what_a_fork_wrote_stays_when_it_goes_back(play: Play) -> None:
    async def scene(world: World) -> None:
        engine, shelf = world.engine, world.engine._parts.volumes.shelf
        await engine.volumes.create("data", 1)
        one = await made(world, mount())
        snapshot = await engine.snapshot(one.id)
        (fork,) = await engine.fork(snapshot.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        (written,) = shelf.bound_to(fork.id)
        await engine.rollback(fork.id, snapshot.id)
        assert written.id in {row.id for row in shelf.bound_to(fork.id)}

    play(scene)


def test_two_snapshots_at_once_do_not_both_get_the_label(play: Play) -> None:
    async def scene(world: World) -> None:
        volumes = world.engine.volumes
        await volumes.create("data", 1)
        results = await asyncio.gather(
            *(volumes.snapshot("data", label="x") for _ in range(4)), return_exceptions=True
        )
        assert sum(isinstance(r, Conflict) for r in results) == 3, results
        assert [s.label for s in await volumes.snapshots("data")] == ["x"]

    play(scene)


def test_a_reader_that_goes_back_reads_the_volume_itself_if_it_is_as_it_was(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount(read_only=True))
        snapshot = await world.engine.snapshot(one.id)
        for _ in range(2):
            await world.engine.rollback(one.id, snapshot.id)
            assert holders(world) == [(one.id, "attached")]
            await world.engine.volumes.detach(one.id, "/data")
        assert [v.name for v in await world.engine.volumes.list()] == ["data"]

    play(scene)


def test_a_snapshot_whose_volume_went_with_a_fork_says_what_to_do(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        (fork,) = await world.engine.fork(one.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        snapshot = await world.engine.snapshot(fork.id, volumes="keep-current")
        await world.engine.delete(fork.id)
        with pytest.raises(TorporError) as caught:
            await world.engine.restore(snapshot.id, RestoreSpec(volumes="keep-current"))
        assert "volumes=detach" in (caught.value.hint or "")
        there = await world.engine.restore(snapshot.id, RestoreSpec(volumes="detach"))
        assert await world.engine.volumes.of_sandbox(there.id) == ()

    play(scene)


@pytest.mark.parametrize("memory", ["ram", "cold"])
def test_what_is_kept_current_is_left_out_of_a_restore_while_another_has_it(
    play: Play, memory: str
) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        snapshot = await world.engine.snapshot(one.id, volumes="keep-current")
        spec = RestoreSpec(memory=memory)  # type: ignore[arg-type]
        there = await world.engine.restore(snapshot.id, spec)
        assert await world.engine.volumes.of_sandbox(there.id) == ()
        with pytest.raises(VolumeHeld, match=one.id):
            await world.engine.restore(snapshot.id, replace(spec, volumes="keep-current"))
        await world.engine.volumes.detach(one.id, "/data")
        again = await world.engine.restore(snapshot.id, spec)
        assert holders(world) == [(again.id, "attached")]

    play(scene)


@pytest.mark.parametrize("memory", ["ram", "cold"])
def test_a_clone_is_in_the_workspace_of_its_sandbox(play: Play, memory: str) -> None:
    async def scene(world: World) -> None:
        await world.engine.volumes.create("data", 1)
        one = await made(world, mount())
        snapshot = await world.engine.snapshot(one.id)
        spec = RestoreSpec(memory=memory, workspace="elsewhere")  # type: ignore[arg-type]
        there = await world.engine.restore(snapshot.id, spec)
        (clone,) = await world.engine.volumes.of_sandbox(there.id)
        assert (clone.workspace, clone.bound_to) == ("elsewhere", there.id)

    play(scene)
