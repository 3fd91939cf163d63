"""Requests with an idempotency key are carried out once, whether they come twice or at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.serving import CuttingProxy, ServerThread
from torpor.base.home import Home
from torpor.model import SandboxSpec
from torpor.sdk.client import Client
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_sandbox import Sandbox


def keyed(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


def test_a_create_that_comes_twice_is_one(rest: Rest, server: ServerThread) -> None:
    body = {"template": "base", "env": {"SECRET": "x"}}
    first = rest.http.post("/v1/sandboxes", json=body, headers=keyed("twice"))
    again = rest.http.post("/v1/sandboxes", json=body, headers=keyed("twice"))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["content-type"] == "application/json"
    assert len(server.engine.sandboxes) == 1


def test_without_a_key_it_is_two(rest: Rest, server: ServerThread) -> None:
    assert rest.create() != rest.create()
    assert len(server.engine.sandboxes) == 2


def test_another_request_with_the_same_key(rest: Rest, server: ServerThread) -> None:
    sandbox = rest.ok(
        "POST", "/v1/sandboxes", json={"template": "base"}, headers=keyed("same"), status=201
    )["id"]
    rest.fails(
        "POST",
        "/v1/sandboxes",
        422,
        "request.key_reused",
        json={"template": "agent"},
        headers=keyed("same"),
    )
    path = f"/v1/sandboxes/{sandbox}/snapshots"
    rest.fails("POST", path, 422, "request.key_reused", headers=keyed("same"))
    assert len(server.engine.sandboxes) == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "k\x7f", "k\xe9"])
def test_keys_that_cannot_be(rest: Rest, key: str) -> None:
    headers = [(b"idempotency-key", key.encode("latin-1"))]
    rest.fails(
        "POST", "/v1/sandboxes", 400, "request.invalid", json={"template": "base"}, headers=headers
    )


def test_snapshots_forks_and_restores(rest: Rest, server: ServerThread) -> None:
    sandbox = rest.create()
    snapshot = ""
    for path, body in (
        (f"/v1/sandboxes/{sandbox}/snapshots", {"label": "one"}),
        (f"/v1/sandboxes/{sandbox}/fork", {"count": 3}),
        (f"/v1/sandboxes/{sandbox}/fork-tree", {"count": 2}),
        ("/v1/snapshots/{}/fork", {"count": 2}),
        ("/v1/snapshots/{}/restore", None),
    ):
        at = path.format(snapshot)
        answers = [
            rest.http.post(at, json=body, headers=keyed(f"of {path}")).content for _ in range(2)
        ]
        assert answers[0] == answers[1], at
        snapshot = snapshot or rest.ok("GET", "/v1/snapshots")["snapshots"][0]["id"]
    assert len(server.engine.sandboxes) == 1 + 3 + 2 + 2 + 1


def test_those_that_come_at_once_wait_for_the_first(
    rest: Rest, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inside = threading.Event(), threading.Event()
    create = server.engine.create

    async def slow(spec: SandboxSpec) -> Any:
        inside.set()
        await asyncio.to_thread(gate.wait, 10)
        return await create(spec)

    monkeypatch.setattr(server.engine, "create", slow)
    with ThreadPoolExecutor(5) as pool:
        sent = [
            pool.submit(
                rest.http.post, "/v1/sandboxes", json={"template": "base"}, headers=keyed("at once")
            )
            for _ in range(5)
        ]
        assert inside.wait(10)
        gate.set()
        bodies = {found.result(30).content for found in sent}
    assert len(bodies) == 1
    assert len(server.engine.sandboxes) == 1


def test_one_that_waited_long_enough_is_told(
    rest: Rest, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.access.ledger.WAIT_S", 0.05)
    gate, inside = threading.Event(), threading.Event()
    create = server.engine.create

    async def slow(spec: SandboxSpec) -> Any:
        inside.set()
        await asyncio.to_thread(gate.wait, 10)
        return await create(spec)

    monkeypatch.setattr(server.engine, "create", slow)
    args: Any = {"json": {"template": "base"}, "headers": keyed("long")}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(rest.http.post, "/v1/sandboxes", **args)
        assert inside.wait(10)
        reply = rest.http.post("/v1/sandboxes", **args)
        assert (reply.status_code, reply.json()["code"]) == (409, "object.busy")
        assert reply.headers["retry-after"] == "5"
        gate.set()
        assert first.result(30).status_code == 201


def test_a_failure_that_made_nothing_gives_the_key_back(rest: Rest) -> None:
    wrong = {"template": "unheard-of"}
    for _ in range(2):
        rest.fails(
            "POST", "/v1/sandboxes", 404, "object.not_found", json=wrong, headers=keyed("back")
        )
    right = {"template": "base"}
    rest.ok("POST", "/v1/sandboxes", json=right, headers=keyed("back"), status=201)


def test_a_full_host_is_asked_again_with_the_same_key(rest: Rest, server: ServerThread) -> None:
    sandbox = rest.create()
    server.engine.room = 1
    path, body = f"/v1/sandboxes/{sandbox}/fork", {"count": 1}
    assert "sandbox" in rest.ok("POST", path, json=body, headers=keyed("full 1"), status=201)
    reply = rest.http.post(path, headers=keyed("full 2"))
    assert (reply.status_code, reply.headers["retry-after"]) == (507, "5")
    server.engine.room = None
    points = len(server.engine.points)
    made = rest.ok("POST", path, headers=keyed("full 2"), status=201)
    assert len(server.engine.points) == points  # the snapshot of the first try is used
    again = rest.ok("POST", path, headers=keyed("full 2"), status=201)
    assert made == again
    assert made["sandbox"]["metadata"]["fork_tree_id"] == made["tree_id"]


def test_a_body_is_in_no_row(rest: Rest, home: Home) -> None:
    body = {"template": "base", "env": {"KEY": "hunter2-in-a-body"}}
    rest.ok("POST", "/v1/sandboxes", json=body, headers=keyed("secret"), status=201)
    for path in home.root.glob("torpor.db*"):
        assert b"hunter2" not in path.read_bytes()


@pytest.fixture
def proxied(server: ServerThread, home: Home, tmp_path: Path) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(server, home.socket, tmp_path / "proxy.sock", [1])
    yield proxy
    loop_thread.close()
    proxy.close()


def test_the_sdk_s_retries_make_one_machine(proxied: CuttingProxy, server: ServerThread) -> None:
    client = Client(url=proxied.url)
    sandbox = Sandbox.create(client=client)
    assert list(server.engine.sandboxes) == [sandbox.id]
    for make in (sandbox.snapshot, sandbox.fork, lambda: sandbox.fork(count=2)):
        loop_thread.close()
        proxied.cuts[:] = [1]
        before = proxied.connections
        assert make() is not None
        assert proxied.connections - before == 2
    assert len(server.engine.sandboxes) == 1 + 1 + 2
    assert [p.info.reason for p in server.engine.points.values()] == ["snapshot", "fork", "fork"]
