"""A rollback that puts the disk back and boots, and what keeps a snapshot for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.errors import (
    Conflict,
    GuestUnreachable,
    HostNotReady,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    SnapshotUnusable,
    VmmFailed,
)
from torpor.model import MemoryChoice, RestoreSpec, SandboxFilter, SandboxState, SnapshotId
from torpor.sandboxes.claims import Claim
from torpor.vmm.base import HostSupport

S = SandboxState
CLAIM = Claim("chg_x", frozenset({"rollback", "pause", "hibernate"}), "a change runs", "wait")


def test_cold_boots_the_disk_and_keeps_identity_and_lease(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=100, metadata={"name": "a"})
        snap = await world.engine.snapshot(info.id)
        old, starts = world.vmm(info.id).process, world.driver.starts
        back = await world.engine.rollback(info.id, snap.id, memory="cold")
        assert (back.id, back.state, back.boot_mode) == (info.id, S.RUNNING, "cold")
        assert (back.generation, back.parent_snapshot) == (info.generation + 1, snap.id)
        assert (back.expires_at, back.metadata) == (info.expires_at, info.metadata)
        assert not old.alive()
        assert world.driver.starts == starts + 1
        assert world.driver.restored[-1][1].ram_image != snap.id, "no RAM was loaded for it"
        (renewal,) = world.connect.agents[-1].renewals
        assert (renewal.reason, renewal.hostname) == ("rollback", None)
        layers = world.engine._tasks[info.id].machine.row.layers
        assert (layers.image, layers.ram) == (None, ())
        again = await world.engine.snapshot(info.id)  # its memory is whole again
        assert await world.engine.verify_snapshot(again.id) == ()
        await world.engine.rollback(info.id, again.id)
        with pytest.raises(InvalidRequest, match="'ram' or 'cold'"):
            await world.engine.rollback(info.id, snap.id, memory="warm")  # type: ignore[arg-type]

    play(scene)


def test_cold_needs_no_ram_of_the_snapshot(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        await world.engine.pause(info.id)
        for path in (*world.home.images.iterdir(), *world.home.layers.glob("*.ram")):
            path.unlink()
        assert (await world.engine.rollback(info.id, snap.id, memory="cold")).state is S.RUNNING

    play(scene)


def test_a_cold_rollback_that_fails_can_be_made_again(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        world.driver.fail_once["start"] = VmmFailed("no such luck")
        with pytest.raises(VmmFailed):
            await world.engine.rollback(info.id, snap.id, memory="cold")
        assert (await world.engine.get(info.id)).state is S.FAILED
        world.connect.fail = GuestUnreachable("it does not boot")
        with pytest.raises(GuestUnreachable):
            await world.engine.rollback(info.id, snap.id, memory="cold")
        world.connect.fail = None
        back = await world.engine.rollback(info.id, snap.id, memory="cold")
        assert (back.state, back.boot_mode, back.error) == (S.RUNNING, "cold", None)

    play(scene)


def test_what_this_hosts_driver_cannot_have_is_refused_before_the_machine_ends(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        host = replace(await world.driver.probe(), driver="other", networks=frozenset({"none"}))

        async def probe() -> HostSupport:
            return host

        monkeypatch.setattr(world.driver, "probe", probe)
        with pytest.raises(HostNotReady, match="cannot have network='user'") as caught:
            await world.engine.rollback(info.id, snap.id, memory="cold")
        assert "network=none" in str(caught.value.hint)
        with pytest.raises(SnapshotUnusable) as unusable:
            await world.engine.rollback(info.id, snap.id)
        assert f"torpor rollback {info.id} {snap.id} --cold" in str(unusable.value.hint)
        assert (await world.engine.get(info.id)).state is S.RUNNING
        assert world.vmm(info.id).process.alive()

    play(scene)


def test_more_cpus_than_the_driver_gives_are_refused_before_anything_is_made(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create(vcpus=2)
        snap = await world.engine.snapshot(info.id)
        host = replace(await world.driver.probe(), driver="other", vcpus_most=1)

        async def probe() -> HostSupport:
            return host

        monkeypatch.setattr(world.driver, "probe", probe)
        words, starts = (
            "vcpus is 2; machines of the driver other have at most 1",
            world.driver.starts,
        )
        with pytest.raises(InvalidRequest, match=words) as caught:
            await world.create(vcpus=2)
        assert caught.value.hint
        with pytest.raises(InvalidRequest, match=words):
            await world.engine.restore(snap.id, RestoreSpec(allow_cold=True))
        with pytest.raises(InvalidRequest, match=words):
            await world.engine.rollback(info.id, snap.id, memory="cold")
        assert world.driver.starts == starts
        assert [found.id for found in (await world.engine.list(SandboxFilter())).items] == [info.id]
        assert (await world.engine.get(info.id)).state is S.RUNNING
        assert world.vmm(info.id).process.alive()

    play(scene)


@pytest.mark.parametrize("memory", ["ram", "cold"])
def test_a_disk_that_has_no_room_to_be_copied_is_told_before_the_machine_ends(
    play: Play, memory: MemoryChoice
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        world.driver.copies_bytes = 1 << 60
        with pytest.raises(InsufficientResources):
            await world.engine.rollback(info.id, snap.id, memory=memory)
        assert (await world.engine.get(info.id)).state is S.RUNNING
        assert world.vmm(info.id).process.alive()
        world.driver.copies_bytes = 0
        await world.engine.hibernate(info.id)
        world.driver.copies_bytes = 1 << 60
        with pytest.raises(InsufficientResources):
            await world.engine.wake(info.id)
        assert (await world.engine.get(info.id)).state is S.HIBERNATED

    play(scene)


@pytest.mark.parametrize("memory", ["ram", "cold"])
def test_the_next_daemon_makes_it_again_as_it_was_meant(play: Play, memory: str) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        step = "restore" if memory == "ram" else "start"
        world.driver.block[step] = asyncio.Event()
        world.driver.reached.clear()
        putting = asyncio.create_task(
            world.engine.rollback(info.id, snap.id, memory=memory)  # type: ignore[arg-type]
        )
        await world.driver.until(step)
        old = world.engine
        world.driver.block.pop(step)
        world.engine = world.new_engine()  # the old one is simply gone
        for task in list(old._tasks.values()):
            await task._tasks.aclose()
        await world.engine.start()
        back = await world.until(info.id, S.RUNNING)
        assert back.boot_mode == ("restore" if memory == "ram" else "cold")
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)
        await old.aclose()

    play(scene)


def test_a_repeat_of_the_same_rollback_finds_it_done(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        first = await world.engine.rollback(info.id, snap.id, since_generation=info.generation)
        again = await world.engine.rollback(info.id, snap.id, since_generation=info.generation)
        assert first.generation == again.generation == info.generation + 1
        later = await world.engine.rollback(info.id, snap.id, since_generation=first.generation)
        assert later.generation == first.generation + 1

    play(scene)


def test_a_protected_snapshot_stays_for_everyone_and_across_daemons(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        await world.engine.protect(snap.id, "chg_a", "change chg_a may go back to it")
        await world.engine.protect(snap.id, "watch", "it is the last one that was verified")
        await world.engine.protect(snap.id, "watch", "it is verified")
        found = await world.engine.get_snapshot(snap.id)
        assert found.protected == ("change chg_a may go back to it", "it is verified")
        await world.restart()
        with pytest.raises(Conflict, match="change chg_a may go back to it; it is verified"):
            await world.engine.delete_snapshot(snap.id)
        await world.engine.unprotect(None, "chg_a")
        with pytest.raises(Conflict, match="it is verified"):
            await world.engine.delete_snapshot(snap.id)
        await world.engine.unprotect(snap.id, "nobody")
        await world.engine.unprotect(snap.id, "watch")
        assert (await world.engine.get_snapshot(snap.id)).protected == ()
        await world.restart()
        await world.engine.delete_snapshot(snap.id)
        with pytest.raises(NotFound):
            await world.engine.protect(SnapshotId("snap_00000000000000000000"), "x", "y")

    play(scene)


def test_retention_spares_what_is_protected(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        sleeps = []
        for _ in range(3):
            sleeps.append(await world.engine.hibernate(info.id))
            await world.engine.wake(info.id)
            world.clock.time += timedelta(seconds=1)
        await world.engine.protect(sleeps[0].id, "chg_a", "needed")
        world.clock.time += timedelta(hours=1)
        await world.engine.keep_house()
        left = {s.id for s in await world.engine.snapshots(info.id)}
        assert left == {sleeps[0].id, sleeps[2].id}
        await world.engine.unprotect(None, "chg_a")
        await world.engine.keep_house()
        assert {s.id for s in await world.engine.snapshots(info.id)} == {sleeps[2].id}

    play(scene)


def test_a_claim_forbids_acts_to_others_and_names_itself(play: Play) -> None:
    async def scene(world: World) -> None:
        info, other = await world.create(), await world.create()
        snap = await world.engine.snapshot(info.id)
        await world.engine.claim(info.id, CLAIM, "chg_x")
        acts = [
            world.engine.pause,
            world.engine.hibernate,
            lambda i: world.engine.rollback(i, snap.id),
        ]
        for act in acts:
            with pytest.raises(Conflict, match="a change runs"):
                await act(info.id)
        with pytest.raises(Conflict, match="is taken"):
            await world.engine.claim(info.id, Claim("chg_y", frozenset(), "b", "c"), "chg_y")
        await world.engine.pause(other.id)
        assert (await world.engine.rollback(info.id, snap.id, holder="chg_x")).state is S.RUNNING
        await world.engine.claim(info.id, None, "chg_y")  # not its own
        with pytest.raises(Conflict):
            await world.engine.pause(info.id)
        await world.engine.claim(info.id, None, "chg_x")
        await world.engine.pause(info.id)

    play(scene)
