"""Requests with an idempotency key are carried out once over the daemon's death."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.unit.sandboxes.world import Play, World, play
from torpor.access import open_access
from torpor.access.ledger import Plan
from torpor.errors import InsufficientResources
from torpor.model import RestoreSpec, SandboxFilter, SandboxSpec, SandboxState, TemplateInfo
from torpor.sandboxes.admission import Sizes
from torpor.sandboxes.new_rows import new_row
from torpor.server.app import create_app
from torpor.server.gate import Gate, UnixDoor

__all__ = ["play"]


def keyed(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


class Daemon:
    """An engine with tokens and a ledger, whose daemon can die and begin anew."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open()

    def _open(self) -> None:
        self._access = open_access(self._world.home)
        app = Gate(create_app(self._world.engine, self._access), UnixDoor())
        transport = httpx.ASGITransport(app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://torpor")

    async def restart(self) -> None:
        await self.http.aclose()
        self._access.close()
        await self._world.restart()
        self._open()

    async def aclose(self) -> None:
        await self.http.aclose()
        self._access.close()

    async def half_done(self, key: str, path: str, body: dict[str, Any]) -> Plan:
        """Leave the row of a request that was never answered, and return its plan."""
        ledger = self._access.ledger
        data = httpx.Request("POST", "http://torpor", json=body).content
        print_ = ledger.fingerprint(path.encode(), b"", data)
        with pytest.raises(ZeroDivisionError):
            async with ledger.turn("default", key, print_) as turn:
                raise ZeroDivisionError
        return turn.plan


@pytest.fixture
def daemon(play: Play) -> Callable[[Callable[[World, Daemon], Any]], None]:
    def run(scene: Callable[[World, Daemon], Any]) -> None:
        async def main(world: World) -> None:
            def built() -> list[TemplateInfo]:
                return [world.templates.get("base").info]

            world.templates.list = built  # type: ignore[attr-defined]
            found = Daemon(world)
            try:
                await scene(world, found)
            finally:
                await found.aclose()

        play(main)

    return run


BASE = {"template": "base"}


def test_the_same_answer_after_a_restart(daemon: Callable[[Any], None]) -> None:
    async def scene(world: World, found: Daemon) -> None:
        first = await found.http.post("/v1/sandboxes", json=BASE, headers=keyed("restart"))
        assert first.status_code == 201, first.text
        await found.restart()
        again = await found.http.post("/v1/sandboxes", json=BASE, headers=keyed("restart"))
        assert again.content == first.content
        assert again.headers["idempotency-replayed"] == "true"
        assert len((await world.engine.list(SandboxFilter())).items) == 1

    daemon(scene)


def test_a_create_that_was_made_but_not_answered(daemon: Callable[[Any], None]) -> None:
    async def scene(world: World, found: Daemon) -> None:
        plan = await found.half_done("made", "/v1/sandboxes", BASE)
        await world.create(sandbox_id=plan.sandbox())
        await found.restart()
        reply = await found.http.post("/v1/sandboxes", json=BASE, headers=keyed("made"))
        assert reply.json()["id"] == plan.sandbox()
        assert reply.json()["state"] == "running"
        assert len((await world.engine.list(SandboxFilter())).items) == 1

    daemon(scene)


def test_a_create_that_never_began_is_begun(daemon: Callable[[Any], None]) -> None:
    async def scene(world: World, found: Daemon) -> None:
        plan = await found.half_done("never", "/v1/sandboxes", BASE)
        await found.restart()
        reply = await found.http.post("/v1/sandboxes", json=BASE, headers=keyed("never"))
        assert (reply.status_code, reply.json()["id"]) == (201, plan.sandbox())

    daemon(scene)


def test_a_create_that_the_daemon_s_death_broke_is_told(daemon: Callable[[Any], None]) -> None:
    async def scene(world: World, found: Daemon) -> None:
        plan = await found.half_done("broken", "/v1/sandboxes", BASE)
        row = new_row(
            world.engine._parts,
            SandboxSpec(template="base", sandbox_id=plan.sandbox()),
            Sizes(1, 512, 1),
            world.templates.get("base").info,
        )
        world.engine._parts.rows.insert(row)
        await found.restart()
        assert (await world.engine.get(plan.sandbox())).state is SandboxState.FAILED
        for _ in range(2):
            reply = await found.http.post("/v1/sandboxes", json=BASE, headers=keyed("broken"))
            assert (reply.status_code, reply.json()["code"]) == (500, "vmm.failed")
            assert plan.sandbox() in reply.json()["error"]
        assert len((await world.engine.list(SandboxFilter())).items) == 1

    daemon(scene)


def test_a_fork_that_was_half_made_is_finished(daemon: Callable[[Any], None]) -> None:
    async def scene(world: World, found: Daemon) -> None:
        source = await world.create()
        path, body = f"/v1/sandboxes/{source.id}/fork", {"count": 3}
        plan = await found.half_done("forks", path, body)
        taken = await world.engine.snapshot(source.id, snapshot_id=plan.snapshot)
        metadata = {"fork_tree_id": plan.tree, "fork_parent_id": source.id}
        await world.engine.restore(
            taken.id, RestoreSpec(sandbox_id=plan.sandbox(1), metadata=metadata), reason="fork"
        )
        await found.restart()
        reply = await found.http.post(path, json=body, headers=keyed("forks"))
        assert reply.status_code == 201, reply.text
        children = reply.json()["children"]
        assert [c["id"] for c in children] == [plan.sandbox(n) for n in range(3)]
        assert {c["metadata"]["fork_tree_id"] for c in children} == {plan.tree}
        assert {c["parent_snapshot"] for c in children} == {plan.snapshot}
        assert len(await world.engine.snapshots(source.id)) == 1
        assert len((await world.engine.list(SandboxFilter())).items) == 4

    daemon(scene)


def test_a_snapshot_that_was_taken_but_not_answered(daemon: Callable[[Any], None]) -> None:
    async def scene(world: World, found: Daemon) -> None:
        source = await world.create()
        path, body = f"/v1/sandboxes/{source.id}/snapshots", {"label": "one"}
        plan = await found.half_done("taken", path, body)
        await world.engine.snapshot(source.id, label="one", snapshot_id=plan.snapshot)
        await found.restart()
        reply = await found.http.post(path, json=body, headers=keyed("taken"))
        assert (reply.status_code, reply.json()["id"]) == (201, plan.snapshot)
        assert len(await world.engine.snapshots(source.id)) == 1

    daemon(scene)


def test_a_failed_machine_is_the_answer_not_a_second_one(daemon: Callable[[Any], None]) -> None:
    async def scene(world: World, found: Daemon) -> None:
        await world.warm()
        world.driver.fail["restore"] = InsufficientResources("no memory for QEMU")
        first = await found.http.post("/v1/sandboxes", json=BASE, headers=keyed("fails"))
        assert first.status_code == 507
        world.driver.fail.clear()
        again = await found.http.post("/v1/sandboxes", json=BASE, headers=keyed("fails"))
        assert again.json()["code"] == "vmm.failed"  # it is there, and it says so
        assert len((await world.engine.list(SandboxFilter())).items) == 1

    daemon(scene)
