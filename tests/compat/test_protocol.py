"""What PandaStack's own client relies on, word by word; its machine is a fake one."""

from __future__ import annotations

import threading
import time
from typing import Any

import pandastack
import pytest
import requests
from pandastack import CreateRetryEvent, Sandbox
from pandastack.exceptions import (
    AuthError,
    BadRequestError,
    CreateCancelled,
    NotFoundError,
    SandboxTimeout,
    ServerError,
)

from tests.compat.failing import fails_with
from tests.fakes.serving import Tcp
from torpor.errors import (
    GuestUnreachable,
    InsufficientResources,
    OperationTimeout,
    RateLimited,
    TorporError,
)
from torpor.model_access import Scope
from torpor.server import protocol

# ---- transport ----


def test_the_client_needs_nothing_but_its_two_variables(panda: pandastack.Client) -> None:
    assert panda.me()["workspace"] == "default"
    with Sandbox.create(template="base") as made:
        assert made.exec("echo hi", check=True).stdout == "hi\n"
    assert Sandbox.list() == []


@pytest.mark.parametrize("base", ["/v1", "/pandastack", "/pandastack/v1", "/"])
def test_every_way_to_write_the_base_works(
    tcp: Tcp, tokens: dict[Scope, str], panda: pandastack.Client, base: str
) -> None:
    client = pandastack.Client(api_url=tcp.url + base, api_key=tokens[Scope.READ])
    with client.session:
        assert client.sandboxes.list() == []


def test_without_the_clients_name_the_prefix_is_needed(
    tcp: Tcp, tokens: dict[Scope, str], box: Sandbox
) -> None:
    headers = {"Authorization": f"Bearer {tokens[Scope.READ]}"}
    plain = requests.get(f"{tcp.url}/v1/sandboxes/{box.id}", headers=headers, timeout=20)
    named = requests.get(f"{tcp.url}/pandastack/v1/sandboxes/{box.id}", headers=headers, timeout=20)
    assert "vcpus" in plain.json()
    assert "vcpus" not in named.json()
    assert named.json()["status"] == "running"


def test_the_worker_s_bare_listing_finds_its_fields_on_the_native_route(
    tcp: Tcp, tokens: dict[Scope, str], box: Sandbox
) -> None:
    """The managed-agents worker of the package asks for folders without the client's own headers."""
    box.filesystem.write("/w/a.txt", b"abc")
    reply = requests.get(
        f"{tcp.url}/v1/sandboxes/{box.id}/fs/dir",
        params={"path": "/w"},
        headers={"Authorization": f"Bearer {tokens[Scope.USE]}"},
        timeout=20,
    )
    entry = reply.json()["entries"][0]
    assert (entry["name"], entry["is_dir"], entry["size"]) == ("a.txt", False, 3)


def test_errors_are_flat_and_have_the_hint_in_their_text(panda: pandastack.Client) -> None:
    with pytest.raises(
        NotFoundError, match=r"there is no template 'nope' \(built are: agent, base;"
    ):
        panda.sandboxes.create(template="nope")
    reply = panda.session.post(f"{panda.api_url}/v1/sandboxes", json={"ttl_seconds": "x"})
    assert reply.status_code == 400
    assert isinstance(reply.json()["error"], str)
    assert "ttl_seconds" in reply.json()["error"]


def test_a_wrong_token_is_an_auth_error(tcp: Tcp) -> None:
    client = pandastack.Client(api_url=tcp.url, api_key="torpor_wrong")
    with client.session, pytest.raises(AuthError, match="not valid"):
        client.sandboxes.list()


def test_scopes_hold(tcp: Tcp, tokens: dict[Scope, str], box: Sandbox) -> None:
    reader = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.READ])
    user = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.USE])
    with reader.session, user.session:
        assert reader.sandboxes.get(box.id).id == box.id
        with pytest.raises(BadRequestError, match="scope"):
            reader.sandboxes.get(box.id).exec("true")
        with pytest.raises(BadRequestError, match="scope"):
            user.tokens.create("more")


def test_another_workspace_sees_nothing(tcp: Tcp, box: Sandbox) -> None:
    other = pandastack.Client(
        api_url=tcp.url, api_key=tcp.token(f"x{time.monotonic_ns()}", Scope.ADMIN, "elsewhere")
    )
    with other.session:
        assert other.sandboxes.list() == []
        with pytest.raises(NotFoundError):
            other.sandboxes.get(box.id)


def test_what_is_missing_is_a_404_whatever_its_name(panda: pandastack.Client, box: Sandbox) -> None:
    box.kill()
    for name in (box.id, "sbx_00000000000000000000", "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"):
        with pytest.raises(NotFoundError):
            panda.sandboxes.get(name)
        with pytest.raises(NotFoundError):
            panda.sandboxes.delete(name)
    with pytest.raises(NotFoundError):
        panda.snapshots.get("snap_x")
    with pytest.raises(NotFoundError):
        box.exec("true")


def test_posts_without_a_body(panda: pandastack.Client, box: Sandbox) -> None:
    for path in ("pause", "resume", "snapshots", "hibernate", "wake", "fork", "promote"):
        reply = panda.session.post(f"{panda.api_url}/v1/sandboxes/{box.id}/{path}")
        assert reply.status_code in (200, 201, 204), (path, reply.text)


# ---- silence ----


def test_a_long_command_outlives_the_clients_patience(
    tcp: Tcp, tokens: dict[Scope, str], box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "INTERIM_S", 0.2)
    hasty = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.USE], timeout=1.0)
    with hasty.session:
        same = hasty.sandboxes.get(box.id)
        assert same.exec("sleep 2.5; echo done").stdout == "done\n"
        assert same.exec("echo again").stdout == "again\n"  # the connection is as good as before
        with pytest.raises(SandboxTimeout):
            same.exec("sleep 60", timeout_seconds=2)


def test_native_clients_get_no_interim_answers(
    tcp: Tcp, tokens: dict[Scope, str], box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "INTERIM_S", 0.2)
    with pytest.raises(requests.ReadTimeout):
        requests.post(
            f"{tcp.url}/v1/sandboxes/{box.id}/exec",
            json={"cmd": "sleep 2"},
            headers={"Authorization": f"Bearer {tokens[Scope.USE]}"},
            timeout=1,
        )


# ---- capacity ----


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (InsufficientResources("no memory"), 5),
        (RateLimited("too many", retry_after_seconds=1), 1),
    ],
)
def test_a_refusal_for_want_of_room_is_asked_again(
    tcp: Tcp,
    tokens: dict[Scope, str],
    monkeypatch: pytest.MonkeyPatch,
    panda: pandastack.Client,
    error: TorporError,
    wait: float,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("pandastack.client._sleep", waits.append)
    seen: list[CreateRetryEvent] = []
    client = pandastack.Client(
        api_url=tcp.url, api_key=tokens[Scope.USE], on_create_retry=seen.append
    )
    calls = fails_with(monkeypatch, tcp.server.engine, "create", error)
    with client.session:
        made = client.sandboxes.create(template="base")
    assert made.status == "running"
    assert len(calls) == 2
    assert [event.status_code for event in seen] == [error.http_status]
    assert waits[0] >= wait
    assert len(panda.sandboxes.list()) == 1


@pytest.mark.parametrize(
    "error", [OperationTimeout("it took too long"), GuestUnreachable("no answer")]
)
def test_what_may_have_been_begun_is_not_asked_again(
    tcp: Tcp, monkeypatch: pytest.MonkeyPatch, panda: pandastack.Client, error: TorporError
) -> None:
    calls = fails_with(monkeypatch, tcp.server.engine, "create", error)
    with pytest.raises(ServerError):
        panda.sandboxes.create(template="base")
    assert len(calls) == 1


def test_a_cancelled_retry_leaves_nothing(
    tcp: Tcp, monkeypatch: pytest.MonkeyPatch, panda: pandastack.Client
) -> None:
    stop = threading.Event()
    panda.on_create_retry = lambda _event: stop.set()
    fails_with(monkeypatch, tcp.server.engine, "create", InsufficientResources("no memory"))
    with pytest.raises(CreateCancelled):
        panda.sandboxes.create(template="base", cancel=stop)
    assert panda.sandboxes.list() == []


# ---- tokens, volumes, and what is not offered ----


def test_tokens(tcp: Tcp, panda: pandastack.Client) -> None:
    made = panda.tokens.create("CI Token (2)", expires_in_days=1)
    assert made.token
    assert made.token.startswith(made.prefix)
    assert made.name == "ci-token-2"
    assert made.prefix in [t.prefix for t in panda.tokens.list()]
    client = pandastack.Client(api_url=tcp.url, api_key=made.token)
    with client.session:
        assert client.me()["scope"] == "use"
        panda.tokens.revoke(made.prefix)
        with pytest.raises(AuthError):
            client.me()
    with pytest.raises(NotFoundError):
        panda.tokens.revoke(made.prefix)
    with pytest.raises(BadRequestError):
        panda.tokens.create("!")


def test_volumes(panda: pandastack.Client) -> None:
    made = panda.volumes.create("data", 2048)
    assert (made["name"], made["size_mb"], made["size_bytes"]) == ("data", 2048, 2 << 30)
    with pytest.raises(BadRequestError):
        panda.volumes.create("data", 2048)
    box = panda.sandboxes.create(template="base", volumes=[{"name": "data"}])
    assert panda.volumes.get("data")["attached_to"] == [box.id]
    with pytest.raises(BadRequestError):
        panda.volumes.delete("data")
    box.kill()
    assert [v["name"] for v in panda.volumes.list()] == ["data"]
    with pytest.raises(NotFoundError):
        panda.sandboxes.create(template="base", volumes=[{"name": "nope"}])


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.functions.list(),
        lambda c: c.functions.get("f-1"),
        lambda c: c.apps.list(),
        lambda c: c.apps.get("app-1"),
        lambda c: c.schedules.list(),
        lambda c: c.schedules.delete("s-1"),
    ],
    ids=["functions", "function", "apps", "app", "schedules", "schedule"],
)
def test_what_is_not_offered_says_so(panda: pandastack.Client, call: Any) -> None:
    with pytest.raises(ServerError, match="this daemon does not offer"):
        call(panda)


def test_a_route_that_nobody_has_is_a_404(panda: pandastack.Client) -> None:
    reply = panda.session.get(f"{panda.api_url}/v1/orgs")
    assert reply.status_code == 404
    assert "/v1/orgs" in reply.json()["error"]
