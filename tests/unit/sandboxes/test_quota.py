"""Quotas: refused before anything is captured, with the numbers; sleep is never refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.base.units import GIB
from torpor.errors import InvalidRequest, LimitExceeded
from torpor.model import RestoreSpec, SandboxState
from torpor.sandboxes.quota import COUNT, SIZE, Quota


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        ({}, Quota(1000, None)),
        ({COUNT: "3", SIZE: ""}, Quota(3, None)),
        ({SIZE: "0.5"}, Quota(1000, GIB // 2)),
    ],
)
def test_the_environment_says(environment: Mapping[str, str], want: Quota) -> None:
    assert Quota.of(environment) == want


@pytest.mark.parametrize("name", [COUNT, SIZE])
@pytest.mark.parametrize("value", ["0", "-1", "many", "nan", "1e300"])
def test_what_is_no_quota_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        Quota.of({name: value})
    with pytest.raises(InvalidRequest):
        Quota.of({COUNT: "1.5"})


def test_one_more_than_allowed_is_refused_before_anything_is_done(play: Play) -> None:
    async def scene(world: World) -> None:
        world.engine._parts.quota = Quota(max_snapshots=3)
        info, other = await world.create(), await world.create()
        made = await asyncio.gather(
            *(world.engine.snapshot(info.id) for _ in range(5)), return_exceptions=True
        )
        assert sum(isinstance(m, LimitExceeded) for m in made) == 2, "they take turns"
        calls = list(world.connect.agents[-1].calls)
        before = {p.name for p in world.home.layers.iterdir()}
        with pytest.raises(LimitExceeded, match="has 3 snapshots; 3 are allowed") as caught:
            await world.engine.snapshot(info.id)
        assert "torpor snapshots" in str(caught.value.hint)
        assert COUNT in str(caught.value.hint)
        with pytest.raises(LimitExceeded):
            await world.engine.fork(info.id, RestoreSpec())
        assert world.connect.agents[-1].calls == calls
        assert {p.name for p in world.home.layers.iterdir()} == before
        await world.engine.snapshot(other.id)
        snap = await world.engine.hibernate(info.id)
        assert (await world.engine.get(info.id)).state is SandboxState.HIBERNATED
        with pytest.raises(LimitExceeded):
            await world.engine.snapshot(info.id)
        await world.engine.wake(info.id)
        await world.engine.restore(snap.id, RestoreSpec())
        for found in await world.engine.snapshots(info.id):
            await world.engine.delete_snapshot(found.id)
        await world.engine.snapshot(info.id)

    play(scene)


def test_so_are_more_bytes_than_allowed(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        world.engine._parts.quota = Quota(max_snapshot_bytes=1)
        await world.engine.snapshot(info.id)
        with pytest.raises(LimitExceeded, match=r"take .* KiB; 1 B are allowed") as caught:
            await world.engine.snapshot(info.id)
        assert SIZE in str(caught.value.hint)
        await world.engine.hibernate(info.id)

    play(scene)
