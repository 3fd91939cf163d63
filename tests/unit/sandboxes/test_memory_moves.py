"""The memory of a sandbox's agent and its machine: marked, put back, forked; a memory that fails holds up nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.unit.sandboxes.world import Play, World
from torpor.errors import (
    Conflict,
    DataDamaged,
    InsufficientResources,
    NotFound,
    TorporError,
    VmmFailed,
    WrongState,
)
from torpor.memory import service as service_module
from torpor.memory.verbs import parse
from torpor.model import RestoreSpec, SandboxId, SandboxInfo, SandboxState
from torpor.model_memory import Policy
from torpor.sandboxes.memories import Where

S = SandboxState
HERMES = {"agent": "hermes-1"}


async def call(world: World, sandbox: SandboxInfo | str, verb: str, **params: Any) -> Any:
    where = Where(agent=sandbox) if isinstance(sandbox, str) else Where(sandbox_id=sandbox.id)
    return await world.engine.memories.call(where, parse(verb, params))


async def install(world: World, sandbox: SandboxInfo | str, name: str) -> None:
    await call(
        world,
        sandbox,
        "remember",
        subject="machine",
        attribute="package",
        value=name,
        scope="machine",
        cardinality="many",
    )


async def installed(world: World, sandbox: SandboxInfo | str) -> list[str]:
    found = await call(world, sandbox, "facts", subject="machine")
    return sorted(fact["value"] for fact in found["items"])


def test_a_rollback_takes_back_what_is_known_of_the_machine(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        assert snap.watermark is not None
        assert (snap.watermark.snapshot, snap.watermark.agent) == (snap.id, "hermes-1")
        manifest = world.home.snapshots / snap.id / "manifest.json"
        assert json.loads(manifest.read_text())["snapshot"]["watermark"]["tx"] == snap.watermark.tx
        await install(world, info, "ripgrep")
        await call(world, info, "remember", subject="user", attribute="home", value="Oslo")
        back = await world.engine.rollback(info.id, snap.id)
        assert (back.state, back.memory_note) == (S.RUNNING, None)
        assert await installed(world, info) == ["curl"]
        assert await installed(world, "hermes-1") == ["curl"]
        facts = await call(world, info, "facts", subject="user")
        assert [f["value"] for f in facts["items"]] == ["Oslo"]

    play(scene)


@pytest.mark.parametrize(
    ("policy", "packages", "homes"),
    [(Policy.KEEP, ["curl", "ripgrep"], ["Oslo"]), (Policy.REWIND, ["curl"], [])],
)
def test_a_rollback_as_it_is_asked_for(
    play: Play, policy: Policy, packages: list[str], homes: list[str]
) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        await install(world, info, "ripgrep")
        await call(world, info, "remember", subject="user", attribute="home", value="Oslo")
        await world.engine.rollback(info.id, snap.id, agent_memory=policy)
        assert await installed(world, info) == packages
        facts = await call(world, info, "facts", subject="user")
        assert [f["value"] for f in facts["items"]] == homes

    play(scene)


def test_a_sandbox_whose_agent_remembers_nothing_costs_nothing(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snap = await world.engine.snapshot(info.id)
        assert snap.watermark is not None
        assert (snap.watermark.branch, snap.watermark.problem) == ("", "")
        await world.engine.restore(snap.id, RestoreSpec())
        await world.engine.rollback(info.id, snap.id)
        assert not world.home.memory.exists() or await world.engine.memories.service.spaces() == []
        with pytest.raises(NotFound):
            await call(world, info.id, "facts")

    play(scene)


def test_forks_and_restores_have_memories_of_their_own(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        await install(world, info, "ripgrep")
        (fork,) = await world.engine.fork(snap.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        restored = await world.engine.restore(snap.id, RestoreSpec(metadata={"agent": "hermes-2"}))
        keeps = await world.engine.restore(snap.id, RestoreSpec(agent_memory=Policy.KEEP))
        assert await installed(world, fork) == ["curl"]
        assert await installed(world, "hermes-2") == ["curl"]
        assert await installed(world, keeps) == ["curl", "ripgrep"]
        await install(world, fork, "fd")
        assert await installed(world, info) == ["curl", "ripgrep"]
        assert await installed(world, restored) == ["curl"]
        (deeper,) = await world.engine.fork(fork.id, RestoreSpec())
        assert isinstance(deeper, SandboxInfo)
        assert await installed(world, deeper) == ["curl", "fd"]

    play(scene)


def test_a_fork_of_a_fork_that_nobody_asked_yet(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        (fork,) = await world.engine.fork(info.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        (deeper,) = await world.engine.fork(fork.id, RestoreSpec())
        assert isinstance(deeper, SandboxInfo)
        assert await installed(world, deeper) == ["curl"]

    play(scene)


def test_a_restore_takes_the_place_of_the_agents_machine(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        await install(world, info, "ripgrep")
        before = await world.engine.memories.space(Where(sandbox_id=info.id))
        new = await world.engine.restore(snap.id, RestoreSpec(metadata=HERMES))
        assert await installed(world, new) == ["curl"]
        stale = Where(sandbox_id=info.id, epoch=before.epoch)
        with pytest.raises(WrongState):
            await world.engine.memories.call(stale, parse("record", {"content": "x"}))

    play(scene)


def test_a_name_that_is_taken_makes_no_machine(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        await call(world, "other", "record", content="x")
        snap = await world.engine.snapshot(info.id)
        with pytest.raises(Conflict, match="has a memory already"):
            await world.engine.restore(snap.id, RestoreSpec(metadata={"agent": "other"}))
        (failed,) = await world.engine.fork(info.id, RestoreSpec(metadata=HERMES))
        assert isinstance(failed, Conflict)
        assert len(world.engine._tasks) == 1

    play(scene)


def test_a_sleeper_is_marked_as_memory_stands(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        asleep = await world.engine.hibernate(info.id)
        await call(world, info, "remember", subject="user", attribute="home", value="Oslo")
        copy = await world.engine.snapshot(info.id, label="later")
        assert copy.watermark is not None
        assert asleep.watermark is not None
        assert copy.watermark.tx > asleep.watermark.tx
        await world.engine.wake(info.id)
        await world.engine.rollback(info.id, copy.id, agent_memory=Policy.REWIND)
        facts = await call(world, info, "facts", subject="user")
        assert [f["value"] for f in facts["items"]] == ["Oslo"]

    play(scene)


def test_the_next_daemon_follows_a_rollback(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        await install(world, info, "ripgrep")

        async def dead(sandbox_id: str) -> None:
            """The daemon dies before memory has followed."""

        monkeypatch.setattr(world.engine._moves, "follow_quietly", dead)
        back = await world.engine.rollback(info.id, snap.id)
        assert back.memory_note == "it did not follow the machine yet"
        await world.restart()
        async with asyncio.timeout(10):
            while (await world.engine.get(info.id)).memory_note is not None:
                await asyncio.sleep(0.005)
        assert await installed(world, info) == ["curl"]

    play(scene)


def test_memory_that_followed_and_was_not_noted_follows_once(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        rows, put = world.engine._parts.move_rows, world.engine._parts.move_rows.put

        def full(sandbox_id: str, move: object, note: str = "") -> None:
            if move is None:
                raise InsufficientResources("the disk is full")
            put(sandbox_id, move, note)  # type: ignore[arg-type]

        monkeypatch.setattr(rows, "put", full)
        await world.engine.rollback(info.id, snap.id)
        epoch = (await world.engine.memories.service.spaces())[0].epoch
        monkeypatch.undo()
        await world.restart()
        await install(world, info, "fd")
        assert await installed(world, info) == ["curl", "fd"]
        assert (await world.engine.memories.service.spaces())[0].epoch == epoch

    play(scene)


def test_a_rollback_that_was_never_begun_is_forgotten(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        await install(world, info, "ripgrep")
        intended = world.engine._moves.rollback_intended(info, snap.watermark, None)
        await intended.__aenter__()  # and the daemon dies here: the machine was not touched
        await world.restart()
        await world.engine.hibernate(info.id)
        await world.engine.wake(info.id)  # which is another life, but no rollback
        assert await installed(world, info) == ["curl", "ripgrep"]

    play(scene)


def test_a_rollback_that_fails_leaves_memory_until_it_is_made_again(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        await install(world, info, "ripgrep")
        world.driver.fail["restore"] = VmmFailed("no")
        with pytest.raises(VmmFailed):
            await world.engine.rollback(info.id, snap.id, agent_memory=Policy.KEEP)
        assert (await world.engine.get(info.id)).state is S.FAILED
        assert await installed(world, "hermes-1") == ["curl", "ripgrep"]
        world.driver.fail.clear()
        await world.engine.rollback(info.id, snap.id)
        assert await installed(world, "hermes-1") == ["curl"]

    play(scene)


def test_a_rollback_that_is_refused_leaves_no_intent(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        await world.engine.delete_snapshot(snap.id)
        with pytest.raises(NotFound):
            await world.engine.rollback(info.id, snap.id)
        assert world.engine._parts.move_rows.all() == {}

    play(scene)


def test_a_damaged_memory_holds_up_no_machine_and_follows_when_it_is_mended(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        snap = await world.engine.snapshot(info.id)
        await install(world, info, "ripgrep")
        await world.engine.memories.service.aclose()
        good = world.home.memory.read_bytes()
        for path in world.home.root.glob("memory.db-*"):
            path.unlink()
        world.home.memory.write_bytes(b"nothing that anyone could read as a database")
        await world.restart()
        marked = await world.engine.snapshot(info.id, label="while damaged")
        assert marked.watermark is not None
        assert "does not begin like a database" in marked.watermark.problem
        back = await world.engine.rollback(info.id, snap.id)
        assert back.state is S.RUNNING
        assert "does not begin like a database" in (back.memory_note or "")
        with pytest.raises(DataDamaged):
            await installed(world, info)
        forks = await world.engine.fork(snap.id, RestoreSpec())
        assert isinstance(forks[0], SandboxInfo)
        world.home.memory.write_bytes(good)
        assert await installed(world, info) == ["curl"]
        assert (await world.engine.get(info.id)).memory_note is None
        assert await installed(world, forks[0]) == ["curl"]
        # the snapshot that was made meanwhile says that it cannot put memory back
        again = await world.engine.rollback(info.id, marked.id)
        assert "could not be marked" in (again.memory_note or "")
        assert await installed(world, info) == ["curl"]
        assert (await world.engine.rollback(info.id, snap.id)).memory_note is None

    play(scene)


def test_a_memory_that_does_not_answer_delays_a_snapshot_by_little(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        stuck = asyncio.Event()
        monkeypatch.setattr(service_module, "MARK_LIMIT_S", 0.01)
        service = world.engine.memories.service
        loop = asyncio.get_running_loop()
        service._marker.submit(
            lambda: asyncio.run_coroutine_threadsafe(stuck.wait(), loop).result()
        )
        snap = await world.engine.snapshot(info.id)
        stuck.set()
        assert snap.watermark is not None
        assert "did not answer" in snap.watermark.problem

    play(scene)


def test_a_deleted_sandbox_leaves_no_intent(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(metadata=HERMES)
        await install(world, info, "curl")
        (fork,) = await world.engine.fork(info.id, RestoreSpec())
        assert isinstance(fork, SandboxInfo)
        assert set(world.engine._parts.move_rows.all()) == {fork.id}
        await world.engine.delete(fork.id)
        assert world.engine._parts.move_rows.all() == {}
        assert await installed(world, info) == ["curl"]

    play(scene)


def test_an_agents_name_is_a_name(play: Play) -> None:
    async def scene(world: World) -> None:
        for name in ("", "a\nb", "x" * 300):
            with pytest.raises(TorporError):
                await world.create(metadata={"agent": name})
        info = await world.create()
        assert (await world.engine.memories.space(Where(sandbox_id=info.id))).agent == info.id
        with pytest.raises(NotFound):
            await world.engine.memories.space(Where(sandbox_id=SandboxId("sbx_" + "0" * 20)))

    play(scene)
