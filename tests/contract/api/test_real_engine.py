"""The same calls over the real engine, with machines that are none: what the fake engine promises is so."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sandboxes.world import Play, World, play
from torpor import AsyncSandbox, AsyncSnapshot
from torpor.access import open_access
from torpor.databases.desk import open_databases
from torpor.errors import Conflict, InvalidRequest, NotFound, TorporError
from torpor.model import SandboxState, TemplateInfo
from torpor.recovery.desk import Recovery
from torpor.sdk.loop import loop_thread
from torpor.server.app import serving_app
from torpor.server.daemon import listening
from torpor.server.gate import UnixDoor
from torpor.server.listen import listen_unix

__all__ = ["play"]
S = SandboxState
Scene = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture
def serve(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scene], None]:
    """Run a scene with the world's engine behind a socket that the SDK finds."""
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path / "home"))

    def run(scene: Scene) -> None:
        async def served(world: World) -> None:
            def built() -> list[TemplateInfo]:
                return [world.templates.get("base").info]

            monkeypatch.setattr(world.templates, "list", built, raising=False)
            listener = listen_unix(world.home.socket)
            access = open_access(world.home)
            recovery = Recovery(world.home, world.engine)
            databases = open_databases(world.home, world.engine)
            await databases.start()
            try:
                async with (
                    serving_app(world.engine, access, recovery, databases) as app,
                    listening(app, listener, UnixDoor()),
                ):
                    await scene(world)
            finally:
                await databases.aclose()
                await recovery.aclose()
                access.close()

        play(served)

    return run


@pytest.fixture(autouse=True)
def _clean() -> Any:
    yield
    loop_thread.close()


def test_a_life_with_snapshots(serve: Callable[[Scene], None]) -> None:
    async def scene(_world: World) -> None:
        sandbox = await AsyncSandbox.create("base")
        taken = await sandbox.snapshot(label="one", metadata={"a": "b"})
        assert (taken.label, taken.sandbox_id, taken.metadata) == ("one", sandbox.id, {"a": "b"})
        with pytest.raises(Conflict):
            await sandbox.snapshot(label="one")
        held = await sandbox.snapshot(consistency="application")
        assert held.consistency == "application"
        await held.delete()
        with pytest.raises(InvalidRequest):
            await sandbox.snapshot(consistency="perfect")  # type: ignore[arg-type]
        assert (await taken.verify()).ok
        assert (await sandbox.rollback(taken.id)).info.generation == 2
        made = await AsyncSandbox.restore(taken.id, metadata={"c": "d"}, idle_seconds=9)
        assert (made.info.boot_mode, made.info.parent_snapshot) == ("restore", taken.id)
        assert (made.info.metadata, made.info.idle_seconds) == ({"c": "d"}, 9)
        asleep = await made.hibernate()
        with pytest.raises(Conflict, match="sleeps at it"):
            await asleep.delete()
        assert (await made.refresh()).state is S.HIBERNATED
        assert (await made.wake()).info.boot_mode == "resume"
        assert isinstance(await asleep.delete(), int)
        with pytest.raises(NotFound):
            await AsyncSnapshot.get(asleep.id)
        assert [s.id for s in await sandbox.snapshots()] == [taken.id]
        await sandbox.delete()
        assert [s.id for s in await sandbox.snapshots()] == [taken.id]

    serve(scene)


def test_forks_and_their_family(serve: Callable[[Scene], None]) -> None:
    async def scene(_world: World) -> None:
        sandbox = await AsyncSandbox.create("base")
        forks = [f for f in await sandbox.fork(count=3) if not isinstance(f, TorporError)]
        assert len({f.id for f in forks}) == 3
        with pytest.raises(InvalidRequest):
            await sandbox.fork(count=0)
        nodes = {node.id: node for node in await AsyncSnapshot.tree(sandbox_id=sandbox.id)}
        assert {f.id for f in forks} <= set(nodes)
        parent = nodes[str(nodes[forks[0].id].parent)]
        assert (parent.kind, parent.reason, parent.sandbox_id) == ("snapshot", "fork", sandbox.id)
        report = await AsyncSnapshot.layers()
        assert report.total_bytes >= report.shared_bytes > 0
        kept = await forks[0].promote(cleanup_siblings=True)
        assert set(kept.deleted) == {forks[1].id, forks[2].id}
        alive = {s.id async for s in AsyncSandbox.list()}
        assert alive == {sandbox.id, forks[0].id}
        found = await AsyncSandbox.explore(parent.id, [lambda f: f.id, lambda f: 1 / 0])
        assert found.winner is not None
        assert [type(e) for e in found.errors] == [ZeroDivisionError]
        assert {s.id async for s in AsyncSandbox.list()} == {*alive, found.winner.id}

    serve(scene)


def test_a_hold_keeps_it_awake(serve: Callable[[Scene], None]) -> None:
    async def scene(world: World) -> None:
        sandbox = await AsyncSandbox.create("base", idle_seconds=60)
        async with sandbox.hold():
            world.clock.time += timedelta(seconds=120)
            await sandbox.set_ttl(None)  # lets the engine look at the time
            assert (await sandbox.refresh()).state is S.RUNNING
        world.clock.time += timedelta(seconds=61)
        await sandbox.set_ttl(None)
        await world.until(sandbox.id, S.HIBERNATED)
        async with sandbox.hold():
            assert (await sandbox.refresh()).state is S.RUNNING
            await sandbox.hibernate()
            assert (await sandbox.refresh()).state is S.HIBERNATED

    serve(scene)
