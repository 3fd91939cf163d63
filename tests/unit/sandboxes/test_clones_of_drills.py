"""Machines that are only looked at: held still before all else, booted when asked, and kept from memory."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.model import DRILL_MARK, RestoreSpec, SandboxInfo, SnapshotId, Stillness
from torpor.sandboxes.birth import _masking

STILL = Stillness(
    units=("cron.service",), processes=("agent",), masks=("timers.target", "cron.service")
)


async def clone(world: World, snapshot_id: SnapshotId, **spec: object) -> SandboxInfo:
    wanted = RestoreSpec(network="none", metadata={DRILL_MARK: "drl_1"}, still=STILL, **spec)  # type: ignore[arg-type]
    return await world.engine.restore(snapshot_id, wanted)


def test_a_clone_is_held_still_with_its_memory_and_after_a_boot(play: Play) -> None:
    async def scene(world: World) -> None:
        source = await world.create(metadata={"agent": "ann"})
        taken = await world.engine.snapshot(source.id)
        boots = len(world.driver.booted)
        ram = await clone(world, taken.id)
        assert (ram.boot_mode, ram.network) == ("restore", "none")
        assert world.connect.agents[-1].renewals[-1].still == STILL
        assert len(world.driver.booted) == boots
        cold = await clone(world, taken.id, memory="cold")
        assert cold.boot_mode == "cold"
        assert world.connect.agents[-1].renewals[-1].still == STILL
        words = world.driver.booted[-1].cmdline.split()
        assert {"systemd.mask=timers.target", "systemd.mask=cron.service"} <= set(words)
        assert world.driver.booted[-1].network == "none"
        usual = await world.engine.restore(taken.id, RestoreSpec(memory="cold"))
        assert usual.boot_mode == "cold"
        assert world.connect.agents[-1].renewals[-1].still is None
        assert "mask" not in world.driver.booted[-1].cmdline

    play(scene)


def test_a_clone_does_not_reach_its_agent_s_memory(play: Play) -> None:
    async def scene(world: World) -> None:
        source = await world.create(metadata={"agent": "ann"})
        await asyncio.wait_for(world.connect.agents[-1].served.wait(), 10)
        taken = await world.engine.snapshot(source.id)
        made = await clone(world, taken.id)
        theirs = world.connect.agents[-1]
        other = await world.engine.restore(taken.id, RestoreSpec())
        await asyncio.wait_for(world.connect.agents[-1].served.wait(), 10)
        assert not theirs.served.is_set()
        assert made.agent == made.id
        moves = world.engine._moves
        assert not moves.waits(made.id), "no memory is made for it"
        assert other.id != made.id

    play(scene)


@pytest.mark.parametrize("unit", ["a b", "x;y", "", "é", "a\nb"])
def test_a_name_that_is_no_unit_is_no_word_of_the_kernel(unit: str) -> None:
    assert _masking("quiet", [unit]) == "quiet"


def test_the_kernel_takes_so_many_words_and_no_more() -> None:
    found = _masking("quiet", [f"unit-{n}.timer" for n in range(500)])
    assert len(found) <= 2000
    assert found.startswith("quiet systemd.mask=unit-0.timer ")
