"""Holds: taken, renewed, released, expired; over REST and through the SDK."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.serving import ServerThread
from torpor import AsyncSandbox, Sandbox
from torpor.errors import NotFound, WrongState
from torpor.sdk import hold as hold_module
from torpor.sdk.loop import loop_thread
from torpor.server import holds as desk_module

pytestmark = pytest.mark.usefixtures("server")
EMPTY = {"content-length": "0"}


def test_over_rest(rest: Rest, server: ServerThread) -> None:
    sandbox = rest.create()
    path = f"/v1/sandboxes/{sandbox}/holds"
    users = server.engine.users
    body = rest.ok("POST", f"{path}/mine", headers=EMPTY)
    assert (body["hold_id"], body["sandbox_id"]) == ("mine", sandbox)
    left = datetime.fromisoformat(body["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=50) < left <= timedelta(seconds=60)
    rest.ok("POST", f"{path}/mine", json={"seconds": 600})
    rest.ok("POST", f"{path}/other", json={"seconds": 5})
    found = rest.ok("GET", path)["holds"]
    assert [h["hold_id"] for h in found] == ["mine", "other"]
    left = datetime.fromisoformat(found[0]["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=590) < left <= timedelta(seconds=600)
    assert users[sandbox] == 2  # type: ignore[index]
    rest.ok("DELETE", f"{path}/mine", status=204)
    rest.ok("DELETE", f"{path}/mine", status=204)
    assert users[sandbox] == 1  # type: ignore[index]
    rest.ok("DELETE", f"{path}/other", status=204)
    for body in ({"seconds": 0}, {"seconds": 3601}, {"s": 1}):
        rest.fails("POST", f"{path}/mine", 400, "request.invalid", json=body)
    rest.fails("POST", f"{path}/a%20b", 400, "request.invalid")
    unknown = "/v1/sandboxes/sbx_00000000000000000000/holds"
    rest.fails("GET", unknown, 404, "object.not_found")
    rest.fails("POST", f"{unknown}/mine", 404, "object.not_found")
    rest.fails("DELETE", f"{unknown}/mine", 404, "object.not_found")


def test_one_that_is_not_renewed_expires(rest: Rest, server: ServerThread) -> None:
    sandbox = rest.create()
    path = f"/v1/sandboxes/{sandbox}/holds"
    rest.ok("POST", f"{path}/mine", json={"seconds": 1})
    server.wait_until(lambda: server.engine.users[sandbox] == 0)  # type: ignore[index]
    assert rest.ok("GET", path)["holds"] == []
    rest.ok("POST", f"{path}/mine", json={"seconds": 60})
    assert server.engine.users[sandbox] == 1  # type: ignore[index]
    rest.ok("DELETE", f"{path}/mine", status=204)


def test_a_hold_wakes_and_ends_with_its_sandbox(rest: Rest, server: ServerThread) -> None:
    sandbox = rest.create()
    path = f"/v1/sandboxes/{sandbox}"
    rest.ok("POST", f"{path}/hibernate")
    rest.ok("POST", f"{path}/holds/mine")
    assert rest.ok("GET", path)["state"] == "running"
    rest.ok("POST", f"{path}/hibernate")
    rest.ok("POST", f"{path}/holds/mine")
    assert rest.ok("GET", path)["state"] == "hibernated"  # renewing does not wake it
    rest.ok("DELETE", path, status=204)
    rest.fails("POST", f"{path}/holds/mine", 409, "object.wrong_state")
    assert server.engine.users[sandbox] == 0  # type: ignore[index]
    paused = rest.create()
    rest.ok("POST", f"/v1/sandboxes/{paused}/pause", status=204)
    rest.fails("POST", f"/v1/sandboxes/{paused}/holds/mine", 409, "object.wrong_state")
    assert rest.ok("GET", f"/v1/sandboxes/{paused}/holds")["holds"] == []


def test_there_is_a_limit(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "HOLDS_MOST", 1)
    path = f"/v1/sandboxes/{rest.create()}/holds"
    rest.ok("POST", f"{path}/a")
    rest.fails("POST", f"{path}/b", 413, "request.limit_exceeded")
    rest.ok("POST", f"{path}/a")
    rest.ok("DELETE", f"{path}/a", status=204)


def test_a_with_block(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_module, "_RENEWALS", 20)
    sandbox = Sandbox.create()
    users = server.engine.users
    renewals: list[str] = []
    get = server.engine.get

    async def counting(sandbox_id: str) -> object:
        renewals.append(sandbox_id)
        return await get(sandbox_id)  # type: ignore[arg-type]

    monkeypatch.setattr(server.engine, "get", counting)
    with sandbox.hold(lease_seconds=1) as hold:
        server.wait_until(lambda: len(renewals) > 3)
        assert users[sandbox.id] == 1
        assert hold.lost is None
        assert hold.id.startswith("hold_")
    assert users[sandbox.id] == 0
    with pytest.raises(ZeroDivisionError), Sandbox.hold(sandbox.id):
        _ = 1 / (users[sandbox.id] - 1)
    assert users[sandbox.id] == 0


def test_a_daemon_that_forgot_the_hold_gets_it_again(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_module, "_RENEWALS", 20)
    sandbox = Sandbox.create()
    path = f"/v1/sandboxes/{sandbox.id}/holds"
    with sandbox.hold(lease_seconds=2) as hold:
        loop_thread.run(_release(f"{path}/{hold.id}"))
        assert server.engine.users[sandbox.id] == 0
        server.wait_until(lambda: server.engine.users[sandbox.id] == 1)


async def _release(path: str) -> None:
    from torpor.sdk.client import connection

    await connection(None).call("DELETE", path)


def test_a_hold_that_cannot_go_on_says_so(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_module, "_RENEWALS", 100)
    sandbox = Sandbox.create()
    with sandbox.hold(lease_seconds=1) as hold:
        sandbox.delete()
        server.wait_until(lambda: hold.lost is not None)
        assert isinstance(hold.lost, WrongState)
    with pytest.raises(NotFound), Sandbox.hold("sbx_00000000000000000000"):
        pass


def test_asynchronously(server: ServerThread) -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create()
        async with sandbox.hold() as hold:
            assert server.engine.users[sandbox.id] == 1
            assert hold.lost is None
        assert server.engine.users[sandbox.id] == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), AsyncSandbox.hold(sandbox.id):
                await asyncio.sleep(60)
        assert server.engine.users[sandbox.id] == 0

    asyncio.run(work())
