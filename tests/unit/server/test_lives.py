"""What is begun in one life of a machine does not reach into another."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.engine import FakeEngine
from torpor.errors import GenerationChanged
from torpor.model import ExecId, ExecSpec, SandboxId, SandboxSpec, SandboxState
from torpor.server import lives
from torpor.server.execs import ExecDesk, Start
from torpor.server.lives import Lives

EXEC = ExecId("exec_00000000000000000000")


def test_entering_a_certain_life() -> None:
    async def work() -> None:
        engine = FakeEngine()
        found = Lives(engine)  # type: ignore[arg-type]
        sandbox = (await engine.create(SandboxSpec(template="base"))).id
        async with found.enter(sandbox) as (guest, generation):
            await guest.ping()
            assert generation == 1
        async with found.enter(sandbox, 1) as (_, generation):
            assert generation == 1
        with pytest.raises(GenerationChanged):
            async with found.enter(sandbox, 2):
                pass
        await engine.hibernate(sandbox)
        with pytest.raises(GenerationChanged):
            async with found.enter(sandbox, 1):
                pass
        assert (await engine.get(sandbox)).state is SandboxState.HIBERNATED
        async with found.enter(sandbox) as (_, generation):
            assert generation == 2

    asyncio.run(work())


def test_a_change_between_the_look_and_the_entry() -> None:
    async def work() -> None:
        engine = FakeEngine()
        sandbox = (await engine.create(SandboxSpec(template="base"))).id
        enter = engine.guest

        def late(sandbox_id: SandboxId):  # type: ignore[no-untyped-def]
            found = engine.sandboxes[sandbox_id]
            found.info = type(found.info)(
                **{n: getattr(found.info, n) for n in found.info.__slots__} | {"generation": 2}
            )
            return enter(sandbox_id)

        engine.guest = late  # type: ignore[method-assign]
        with pytest.raises(GenerationChanged):
            async with Lives(engine).enter(sandbox, 1):  # type: ignore[arg-type]
                pass

    asyncio.run(work())


def test_starts_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "_REMEMBERED_STARTS", 2)
    found = Lives(FakeEngine())  # type: ignore[arg-type]
    for name in ("a", "a", "b", "c"):
        found.note_start(SandboxId("s"), ExecId(name), 1)
    with pytest.raises(GenerationChanged):
        found.note_start(SandboxId("s"), ExecId("c"), 2)
    found.note_start(SandboxId("s"), ExecId("a"), 2)
    found.note_start(SandboxId("other"), ExecId("c"), 2)


def test_input_is_not_fed_into_another_life(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        engine = FakeEngine()
        desk = ExecDesk(engine)  # type: ignore[arg-type]
        sandbox = (await engine.create(SandboxSpec(template="base"))).id
        guest = engine.sandboxes[sandbox].guest
        start = guest.exec_start

        async def start_and_sleep(*args, **kwargs):  # type: ignore[no-untyped-def]
            info = await start(*args, **kwargs)
            await engine.hibernate(sandbox)
            return info

        monkeypatch.setattr(guest, "exec_start", start_and_sleep)
        spec = ExecSpec(command="cat", stdin=True)
        await desk.start(sandbox, Start(spec=spec, exec_id=EXEC, stdin=b"secret"))
        await desk.aclose()
        assert (await engine.get(sandbox)).state is SandboxState.HIBERNATED
        assert guest.execs[EXEC].stdout == b""
        await engine.aclose()

    asyncio.run(work())
