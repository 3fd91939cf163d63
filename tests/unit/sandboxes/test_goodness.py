"""Snapshots that are known to be good: the last one of a sandbox stays."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.errors import Conflict, LastGoodSnapshot, NotFound
from torpor.model import SnapshotId


def test_the_last_good_one_is_kept_and_only_force_removes_it(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        first = await world.engine.snapshot(info.id)
        world.clock.time += timedelta(seconds=1)
        second = await world.engine.snapshot(info.id)
        assert await world.engine.last_good(info.id) is None
        await world.engine.mark_good(first.id, "drl_1", "a drill passed")
        found = await world.engine.last_good(info.id)
        assert found is not None
        assert (found.id, found.good and found.good.found_by) == (first.id, "drl_1")
        with pytest.raises(LastGoodSnapshot, match="a drill passed") as caught:
            await world.engine.delete_snapshot(first.id)
        assert "--force" in str(caught.value.hint)
        assert caught.value.facts["sandbox_id"] == info.id

        await world.engine.mark_good(second.id, "chg_1", "a change was kept")
        await world.engine.delete_snapshot(first.id)  # it is not the last any more
        with pytest.raises(LastGoodSnapshot):
            await world.engine.delete_snapshot(second.id)
        await world.restart()
        with pytest.raises(LastGoodSnapshot):
            await world.engine.delete_snapshot(second.id)
        await world.engine.unmark_good(second.id)
        await world.engine.mark_good(second.id, "chg_1", "again")
        await world.engine.delete_snapshot(second.id, force=True)
        assert await world.engine.last_good(info.id) is None
        await world.restart()
        with pytest.raises(NotFound):
            await world.engine.mark_good(second.id, "x", "y")

    play(scene)


def test_force_takes_nothing_that_somebody_needs(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        taken = await world.engine.snapshot(info.id)
        await world.engine.protect(taken.id, "chg_1", "a change may go back to it")
        with pytest.raises(Conflict, match="may go back"):
            await world.engine.delete_snapshot(taken.id, force=True)

    play(scene)


def test_retention_passes_the_last_good_one_over(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        sleeps = []
        for _ in range(3):
            sleeps.append((await world.engine.hibernate(info.id)).id)
            await world.engine.wake(info.id)
            world.clock.time += timedelta(hours=1)
        await world.engine.mark_good(sleeps[0], "drl_1", "a drill passed")
        await world.engine.keep_house()
        left = {s.id for s in await world.engine.snapshots(info.id)}
        assert left == {sleeps[0], sleeps[2]}, "the good one, and the last sleep"
        await world.engine.mark_good(sleeps[2], "drl_2", "a drill passed")
        await world.engine.keep_house()
        assert {s.id for s in await world.engine.snapshots(info.id)} == {sleeps[2]}

    play(scene)


def test_who_deleted_the_sandbox_may_delete_its_snapshots(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        taken = await world.engine.snapshot(info.id)
        await world.engine.mark_good(taken.id, "drl_1", "a drill passed")
        await world.engine.delete(info.id)
        await world.engine.keep_house()
        assert [s.id for s in await world.engine.snapshots(info.id)] == [taken.id]
        await world.engine.delete_snapshot(taken.id)

    play(scene)


def test_two_sandboxes_have_a_last_good_one_each(play: Play) -> None:
    async def scene(world: World) -> None:
        boxes = [await world.create() for _ in range(2)]
        taken: list[SnapshotId] = []
        for box in boxes:
            taken.append((await world.engine.snapshot(box.id)).id)
            await world.engine.mark_good(taken[-1], "drl", "a drill passed")
        results = await asyncio.gather(
            *(world.engine.delete_snapshot(t) for t in taken), return_exceptions=True
        )
        assert all(isinstance(found, LastGoodSnapshot) for found in results)

    play(scene)


def test_what_a_watch_found_is_shown_and_told(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine.note_health(info.id, "it is damaged", "failing")
        assert (await world.engine.get(info.id)).health_note == "it is damaged"
        await world.engine.note_health(info.id, None, "passing")
        assert (await world.engine.get(info.id)).health_note is None

    play(scene)
