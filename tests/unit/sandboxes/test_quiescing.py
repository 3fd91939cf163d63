"""Application snapshots over a driver without machines: what the label says, and what a failure leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.driver import FakeAgent
from tests.unit.sandboxes.world import Play, World
from torpor.errors import (
    GuestFailed,
    InvalidRequest,
    QuiesceFailed,
    TorporError,
    VmmFailed,
    WrongState,
)
from torpor.guest.quiesce import Quiet
from torpor.model import RestoreSpec, SandboxState
from torpor.model_quiesce import HookSpec, QuiesceSpec

S = SandboxState


def bad(**more: Any) -> QuiesceSpec:
    """With a required hook that fails."""
    return QuiesceSpec(hooks=(HookSpec(name="app", hold="false"),), **more)


async def _is_as_it_was(world: World, sandbox_id: Any, agent: FakeAgent) -> None:
    assert (await world.engine.get(sandbox_id)).state is S.RUNNING
    assert await world.vmm(sandbox_id).status() == "running"
    assert not agent.frozen
    assert not agent.is_quiesced


def test_the_order_and_the_label(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        spec = QuiesceSpec(versions={"tool": "tool --version"}, cursor="cat cursor")
        snap = await world.engine.snapshot(info.id, consistency="application", quiesce=spec)
        assert agent.calls[-6:] == [
            *("quiesce", "freeze", "thaw", "confirm", "release taken", "set_clock")
        ]
        assert snap.consistency == "application"
        report = snap.quiesce
        assert report is not None
        assert (report.held, report.reason, report.confirmed) == (True, "", "after")
        assert [(hook.name, hook.state) for hook in report.hooks] == [("sqlite", "held")]
        assert (report.versions, report.cursor) == ({"tool": "1.0"}, "42")
        await world.restart()
        assert await world.engine.get_snapshot(snap.id) == snap, "it is in the manifest"
        plain = await world.engine.snapshot(info.id)
        assert (plain.consistency, plain.quiesce) == ("filesystem", None)

    play(scene)


def test_a_required_hook_that_fails(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        before = await world.engine.snapshots()
        with pytest.raises(QuiesceFailed, match="hook app: hold ended") as caught:
            await world.engine.snapshot(info.id, consistency="application", quiesce=bad())
        assert caught.value.facts["hook"] == "app"
        assert caught.value.facts["output"] == "hold ended with status 1"
        assert "freeze" not in agent.calls
        assert await world.engine.snapshots() == before
        await _is_as_it_was(world, info.id, agent)
        lesser = await world.engine.snapshot(
            info.id, consistency="application", quiesce=bad(on_failure="downgrade")
        )
        assert lesser.consistency == "filesystem"
        assert lesser.quiesce is not None
        assert not lesser.quiesce.held
        assert lesser.quiesce.reason == "hook app: hold ended with status 1"
        await _is_as_it_was(world, info.id, agent)

    play(scene)


def test_what_did_not_hold_is_not_called_so(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        before = await world.engine.snapshots()
        agent.loses_hold = True
        with pytest.raises(QuiesceFailed, match="it is gone"):
            await world.engine.snapshot(info.id, consistency="application")
        assert agent.quiesce_outcomes == ["failed"]
        assert await world.engine.snapshots() == before
        await _is_as_it_was(world, info.id, agent)
        agent.loses_hold = True
        snap = await world.engine.snapshot(
            info.id, consistency="application", quiesce=QuiesceSpec(on_failure="downgrade")
        )
        assert snap.consistency == "filesystem"
        assert snap.quiesce is not None
        assert snap.quiesce.confirmed == "no"
        assert await world.engine.verify_snapshot(snap.id) == ()

    play(scene)


@pytest.mark.parametrize("act", ["snapshot", "hibernate"])
@pytest.mark.parametrize(
    "step", ["pause", "devices", "switch", "ram", "resume", "thaw", "freeze", "publish"]
)
def test_a_capture_that_fails_releases(
    play: Play, step: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if act == "hibernate" and step in ("resume", "thaw"):
        pytest.skip("a hibernated machine is neither resumed nor thawed")

    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        if step == "thaw":
            agent.holds = False
        elif step == "freeze":

            async def refuse(**_: Any) -> None:
                raise GuestFailed("cannot freeze")

            monkeypatch.setattr(agent, "freeze", refuse)
        elif step == "publish":

            def full(*_: Any) -> None:
                raise VmmFailed("no room")

            monkeypatch.setattr(world.engine._parts.layers, "publish", full)
        else:
            world.driver.fail_once[step] = VmmFailed("no such luck")
        with pytest.raises(TorporError):
            await getattr(world.engine, act)(info.id, consistency="application")
        last = world.connect.agents[-1]
        assert agent.quiesce_outcomes == (
            ["taken"] if (act, step) == ("snapshot", "publish") else ["failed"]
        )
        await _is_as_it_was(world, info.id, last)

    play(scene)


def test_one_that_sleeps_holds_by_its_lease(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        snap = await world.engine.hibernate(info.id, consistency="application")
        assert (snap.consistency, snap.reason) == ("application", "hibernate")
        assert snap.quiesce is not None
        assert snap.quiesce.confirmed == "lease"
        assert agent.calls[-3:] == ["quiesce", "freeze", "confirm"]
        assert agent.is_quiesced, "and so it sleeps"
        again = await world.engine.snapshot(info.id, consistency="application")
        assert again.consistency == "application"
        assert again.quiesce == snap.quiesce
        await world.engine.wake(info.id)
        await world.engine.hibernate(info.id)
        with pytest.raises(QuiesceFailed, match="slept"):
            await world.engine.snapshot(info.id, consistency="application")
        lesser = await world.engine.snapshot(
            info.id, consistency="application", quiesce=QuiesceSpec(on_failure="downgrade")
        )
        assert lesser.consistency == "filesystem"
        assert lesser.quiesce is not None
        assert "slept" in lesser.quiesce.reason

    play(scene)


def test_a_lease_that_is_too_short(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        short = HookSpec(name="app", hold="true", hold_max_seconds=0.9)
        with pytest.raises(QuiesceFailed, match="may have gone on"):
            await world.engine.hibernate(
                info.id, consistency="application", quiesce=QuiesceSpec(hooks=(short,))
            )
        await _is_as_it_was(world, info.id, agent)
        spec = QuiesceSpec(hooks=(short,), on_failure="downgrade")
        snap = await world.engine.hibernate(info.id, consistency="application", quiesce=spec)
        assert snap.consistency == "filesystem"

    play(scene)


def test_a_paused_machine_cannot_be_asked(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        await world.engine.pause(info.id)
        with pytest.raises(QuiesceFailed, match="was paused"):
            await world.engine.snapshot(info.id, consistency="application")
        snap = await world.engine.snapshot(
            info.id, consistency="application", quiesce=QuiesceSpec(on_failure="downgrade")
        )
        assert snap.consistency == "crash"
        assert snap.quiesce is not None
        assert "paused" in snap.quiesce.reason
        assert (await world.engine.get(info.id)).state is S.PAUSED

    play(scene)


def test_a_guest_that_refuses_or_is_gone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]

        async def refuse(spec: QuiesceSpec) -> Quiet:
            raise InvalidRequest("a header makes no sense", hint="mend it")

        monkeypatch.setattr(agent, "quiesce", refuse)
        with pytest.raises(QuiesceFailed, match="makes no sense") as caught:
            await world.engine.snapshot(info.id, consistency="application")
        assert caught.value.hint == "mend it"
        spec = QuiesceSpec(on_failure="downgrade")
        snap = await world.engine.snapshot(info.id, consistency="application", quiesce=spec)
        assert (snap.consistency, snap.quiesce and snap.quiesce.reason) == (
            "filesystem",
            "a header makes no sense",
        )
        await _is_as_it_was(world, info.id, agent)

    play(scene)


def test_cancelled_by_a_delete(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        gate = world.driver.block["pause"] = asyncio.Event()
        taking = asyncio.get_running_loop().create_task(
            world.engine.snapshot(info.id, consistency="application")
        )
        async with asyncio.timeout(5):
            while not agent.frozen:
                await asyncio.sleep(0.001)
        deleting = asyncio.get_running_loop().create_task(world.engine.delete(info.id))
        await asyncio.sleep(0.01)
        gate.set()
        await deleting
        with pytest.raises(TorporError):
            await taking
        assert agent.quiesce_outcomes == ["failed"]

    play(scene)


def test_rehearsing(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        before = await world.engine.snapshots()
        report = await world.engine.test_quiesce(info.id)
        assert report.held
        assert agent.calls[-3:] == ["quiesce", "confirm", "release test"]
        failed = await world.engine.test_quiesce(info.id, bad())
        assert (failed.held, failed.reason) == (False, "hook app: hold ended with status 1")
        agent.loses_hold = True
        assert (await world.engine.test_quiesce(info.id)).reason == "hook sqlite: it is gone"
        assert await world.engine.snapshots() == before
        await _is_as_it_was(world, info.id, agent)
        await world.engine.pause(info.id)
        with pytest.raises(WrongState):
            await world.engine.test_quiesce(info.id)

    play(scene)


def test_a_restored_machine_is_renewed_and_so_released(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id, consistency="application")
        made = await world.engine.restore(snap.id, RestoreSpec())
        assert world.connect.agents[-1].renewals[-1].reason == "restore"
        assert made.state is S.RUNNING

    play(scene)
