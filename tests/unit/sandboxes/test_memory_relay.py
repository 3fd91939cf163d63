"""The memory socket inside machines: whose it is, what may be asked, how much, and in which life of the machine."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sandboxes.test_memory_moves import install, installed
from tests.unit.sandboxes.world import Play, World
from torpor.errors import (
    GenerationChanged,
    InvalidRequest,
    LimitExceeded,
    NotAllowed,
    NotFound,
    TorporError,
    WrongState,
)
from torpor.memory.verbs import VERBS
from torpor.model import RestoreSpec, SandboxInfo
from torpor.sandboxes import memory_relay
from torpor.sandboxes.memories import Where
from torpor.sandboxes.memory_relay import MemoryRelay, quota_of

HERMES = {"agent": "hermes-1"}


async def inside(world: World, sandbox: SandboxInfo, verb: str, **params: Any) -> Any:
    """Ask as a program in the machine does."""
    guest: Any = await world.engine._tasks[sandbox.id].machine.guest()
    async with asyncio.timeout(10):
        await guest.served.wait()
    return await guest.answer(verb, params)


async def facts(world: World, sandbox: SandboxInfo) -> list[str]:
    return sorted(f["value"] for f in (await inside(world, sandbox, "facts"))["items"])


def test_a_machine_has_its_own_memory_and_no_other(play: Play) -> None:
    async def scene(world: World) -> None:
        one = await world.create(metadata=HERMES)
        two = await world.create()
        await inside(world, one, "record", content="the password is 4711")
        found = await inside(world, one, "recall", query="password")
        assert len(found["items"]) == 1
        assert (await inside(world, two, "recall", query="password"))["items"] == []
        with pytest.raises(NotFound):
            await inside(world, two, "episode", episode_id=found["items"][0]["id"])
        for extra in ({"agent": "hermes-1"}, {"sandbox_id": one.id}, {"branch": "x"}, {"epoch": 1}):
            with pytest.raises(InvalidRequest):
                await inside(world, two, "facts", **extra)
        assert {s.agent for s in await world.engine.memories.spaces()} == {"hermes-1", two.id}
        whole = await world.engine.memories.service.run(
            lambda memory: memory.space("hermes-1").episodes()[0]
        )
        assert whole.content == "the password is 4711"

    play(scene)


def test_what_is_not_for_the_inside(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await inside(world, info, "record", content="x")
        refused = {name for name, verb in VERBS.items() if not verb.from_inside}
        assert refused >= {"erase", "fork", "on_restore", "switch", "merge", "revert", "watermark"}
        for name, params in (
            ("erase", {"subject": "x"}),
            ("verify_erasure", {"receipt_id": "x"}),
            ("revert", {"tx": 1}),
            ("fork", {"new_agent": "spy"}),
            ("switch", {"to_branch": "x"}),
            ("on_restore", {"snapshot_id": "x"}),
            ("record", {"content": "x", "source_kind": "human_note"}),
            ("record", {"content": "x", "source_kind": "system"}),
            ("record_many", {"episodes": [{"content": "x", "source_kind": "human_note"}]}),
            (
                "remember",
                {"subject": "a", "attribute": "b", "value": 1, "authority": "human_edited"},
            ),
            (
                "remember_many",
                {
                    "facts": [
                        {"subject": "a", "attribute": "b", "value": 1, "authority": "human_edited"}
                    ]
                },
            ),
        ):
            with pytest.raises(NotAllowed):
                await inside(world, info, name, **params)
        with pytest.raises(NotFound):
            await inside(world, info, "format_disk")
        with pytest.raises(InvalidRequest):
            await inside(world, info, "record", content=["x"])
        await inside(world, info, "unread", extractor="mine@1")

    play(scene)


def test_it_goes_with_the_machine(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        package = {"subject": "machine", "attribute": "package", "scope": "machine"}
        many = {**package, "cardinality": "many"}
        await inside(world, info, "remember", value="curl", **many)
        snap = await world.engine.snapshot(info.id)
        await inside(world, info, "remember", value="ripgrep", **many)
        (fork,) = await world.engine.fork(info.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        await world.engine.rollback(info.id, snap.id)
        assert await facts(world, info) == ["curl"]
        assert await facts(world, fork) == ["curl", "ripgrep"]
        await inside(world, fork, "remember", value="fd", **many)
        assert await facts(world, info) == ["curl"]
        await world.engine.hibernate(info.id)
        await world.engine.wake(info.id)
        await inside(world, info, "remember", value="jq", **many)
        assert await installed(world, "hermes-1") == ["curl", "jq"]

    play(scene)


def test_a_request_of_an_earlier_life_writes_nothing(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await inside(world, info, "record", content="x")
        snap = await world.engine.snapshot(info.id)
        old: Any = await world.engine._tasks[info.id].machine.guest()
        # a write that waits for its turn while the machine is rolled back
        gate = threading.Event()
        service = world.engine.memories.service
        held = [asyncio.ensure_future(service.run(lambda _: gate.wait(10))) for _ in range(4)]
        await asyncio.sleep(0)
        late = asyncio.ensure_future(old.answer("record", {"content": "from before"}))
        back = asyncio.ensure_future(world.engine.rollback(info.id, snap.id))
        async with asyncio.timeout(10):
            while world.engine._tasks[info.id].info.generation == info.generation:
                await asyncio.sleep(0.005)
        gate.set()
        await asyncio.gather(*held)
        with pytest.raises(GenerationChanged):
            await late
        await back
        with pytest.raises(GenerationChanged):
            await old.answer("record", {"content": "from before"})
        episodes = (await inside(world, info, "episodes"))["items"]
        assert [e["content"] for e in episodes if e["source_kind"] != "system"] == ["x"]

    play(scene)


def test_a_machine_whose_place_was_taken_writes_no_more(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await inside(world, info, "record", content="x")
        snap = await world.engine.snapshot(info.id)
        new = await world.engine.restore(snap.id, RestoreSpec(metadata=HERMES))
        await inside(world, new, "record", content="y")
        with pytest.raises(WrongState, match="restored in its place"):
            await inside(world, info, "record", content="z")
        await world.engine.rollback(info.id, snap.id)
        await inside(world, info, "record", content="z")

    play(scene)


def test_there_is_a_limit_to_what_it_writes(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        monkeypatch.setattr(memory_relay, "_NOTED_BYTES", 100)
        relay = MemoryRelay(
            world.engine.memories,
            clock=world.engine._parts.clock,
            report=lambda name, exc: None,
            quota_bytes=7000,
        )
        info = await world.create(metadata=HERMES)
        machine = world.engine._tasks[info.id].machine
        await relay.call(machine, info.generation, "record", {"content": "x" * 1000})
        await relay.call(machine, info.generation, "record", {"content": "x" * 1000})
        with pytest.raises(LimitExceeded, match="are allowed"):
            await relay.call(machine, info.generation, "record", {"content": "x" * 1000})
        await relay.call(machine, info.generation, "recall", {"query": "x"})
        again = MemoryRelay(
            world.engine.memories,
            clock=world.engine._parts.clock,
            report=lambda name, exc: None,
            quota_bytes=7000,
        )
        with pytest.raises(LimitExceeded):  # it is remembered over a restart of the daemon
            await again.call(machine, info.generation, "record", {"content": "x" * 1000})

    play(scene)


def test_many_small_things_count_as_what_they_take(play: Play) -> None:
    async def scene(world: World) -> None:
        relay = MemoryRelay(
            world.engine.memories,
            clock=world.engine._parts.clock,
            report=lambda name, exc: None,
            quota_bytes=100_000,
        )
        info = await world.create(metadata=HERMES)
        machine = world.engine._tasks[info.id].machine
        tiny = [{"content": "x"}] * 100
        with pytest.raises(LimitExceeded, match="are allowed"):
            await relay.call(machine, info.generation, "record_many", {"episodes": tiny})
        await relay.call(machine, info.generation, "record_many", {"episodes": tiny[:40]})

    play(scene)


def test_a_machine_cannot_make_the_host_read_without_end(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        monkeypatch.setattr(memory_relay, "_READ_BYTES", 50_000)
        info = await world.create(metadata=HERMES)
        for n in range(8):
            await inside(world, info, "record", content=f"{n} " + "word " * 2000)
        with pytest.raises(LimitExceeded, match="would have to be read"):
            await inside(world, info, "episodes")
        assert (await inside(world, info, "facts"))["items"] == []
        memory = world.engine.memories.service
        assert await memory.run(lambda m: len(m.space("hermes-1").episodes())) == 8

    play(scene)


def test_who_asks_too_often_waits() -> None:
    class Clock:
        def __init__(self) -> None:
            self.now_s = 0.0

        def monotonic_s(self) -> float:
            return self.now_s

    async def work() -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        clock = Clock()
        patch = pytest.MonkeyPatch()
        patch.setattr(memory_relay.asyncio, "sleep", sleep)
        try:
            bucket = memory_relay._Bucket(clock)  # type: ignore[arg-type]
            for _ in range(int(memory_relay.BURST)):
                await bucket.take()
            assert slept == []
            await bucket.take()
            assert slept == [1 / memory_relay.PER_SECOND]
            clock.now_s = 1000.0
            await bucket.take()
            assert len(slept) == 1
        finally:
            patch.undo()

    asyncio.run(work())


def test_an_adopted_machine_is_served_again(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await inside(world, info, "record", content="x")
        await world.restart()
        async with asyncio.timeout(10):
            while world.engine._tasks[info.id].machine._guest is None:
                await asyncio.sleep(0.005)
        assert len((await inside(world, info, "episodes"))["items"]) == 1

    play(scene)


def test_a_channel_that_was_cut_is_connected_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        monkeypatch.setattr(memory_relay, "_AGAIN_S", (0.0,))
        info = await world.create()
        machine = world.engine._tasks[info.id].machine
        first = await machine.guest()
        await first.aclose()
        async with asyncio.timeout(10):
            while machine._guest is first or machine._guest is None:
                await asyncio.sleep(0.005)
        await inside(world, info, "record", content="x")

    play(scene)


def test_an_older_agent_in_an_image_is_left_alone(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        agent = world.connect.agents[-1]
        machine = world.engine._tasks[info.id].machine
        agent.info = replace(agent.info, capabilities=frozenset())
        attend = world.engine._parts.attend
        assert attend is not None
        await attend(machine, agent)  # type: ignore[arg-type]

    play(scene)


def test_pending_memory_is_waited_for_and_then_refused(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        monkeypatch.setattr(memory_relay, "_FOLLOW_S", 0.0)
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        intended = world.engine._moves.rollback_intended(info, snap.watermark, None)
        await intended.__aenter__()
        with pytest.raises(TorporError, match="has still to follow"):
            await inside(world, info, "facts")
        await world.engine._moves.withdraw(info.id)
        assert await facts(world, info) == ["curl"]
        assert (await world.engine.memories.space(Where(sandbox_id=info.id))).agent == "hermes-1"

    play(scene)


def test_the_quota_is_a_whole_number_of_mib() -> None:
    assert quota_of(None) == 1 << 30
    assert quota_of("5") == 5 << 20
    for wrong in ("0", "-1", "x", "1.5"):
        with pytest.raises(InvalidRequest):
            quota_of(wrong)
