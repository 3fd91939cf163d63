"""Tokens and size limits."""

from __future__ import annotations

import stat
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.serving import serving_tcp
from torpor.base.home import Home
from torpor.errors import DaemonUnreachable, InvalidRequest, NotAuthenticated
from torpor.sdk.client import Client
from torpor.sdk.sync_sandbox import Sandbox
from torpor.server.gate import BODY_LIMIT_BYTES


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving_tcp("s3cret") as found:
        yield found


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Basic s3cret",
        "s3cret",
        "Bearer s3cret extra",
    ],
)
@pytest.mark.parametrize("path", ["/v1/health", "/v1/sandboxes", "/v1/openapi.json", "/nothing"])
def test_tcp_always_needs_the_token(url: str, path: str, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    reply = httpx.get(url + path, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["code"] == "request.not_authenticated"


@pytest.mark.parametrize("header", ["Bearer s3cret", "bearer s3cret"])
def test_the_token_opens(url: str, header: str) -> None:
    assert httpx.get(f"{url}/v1/health", headers={"authorization": header}).status_code == 200


def test_the_sdk_over_tcp(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_URL", url)
    with pytest.raises(NotAuthenticated):
        list(Sandbox.list())
    monkeypatch.setenv("TORPOR_TOKEN", "s3cret")
    with Sandbox.create() as sandbox:
        assert sandbox.exec("echo hi").stdout == "hi\n"
    assert [s.id for s in Sandbox.list(client=Client(url=url, token="s3cret"))] == []
    assert "s3cret" not in repr(Client(url=url, token="s3cret"))


def test_no_daemon_at_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DaemonUnreachable, match="no daemon answers"):
        list(Sandbox.list(client=Client(url="http://127.0.0.1:9")))
    with pytest.raises(InvalidRequest, match="not a URL"):
        list(Sandbox.list(client=Client(url="ftp://host")))


def test_the_socket_is_private(rest: Rest, home: Home) -> None:
    found = home.socket.stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600


def test_bodies_over_the_limit(rest: Rest) -> None:
    def content() -> Iterator[bytes]:
        for _ in range(BODY_LIMIT_BYTES // (1 << 20) + 1):
            yield b" " * (1 << 20)

    headers = {"content-type": "application/json"}
    rest.fails(
        "POST", "/v1/sandboxes", 413, "request.limit_exceeded", content=content(), headers=headers
    )
    rest.fails(
        "POST",
        "/v1/sandboxes",
        413,
        "request.limit_exceeded",
        content=b" " * (BODY_LIMIT_BYTES + 1),
        headers=headers,
    )
    assert rest.ok("GET", "/v1/health")["status"] == "ok"


def test_bodies_just_below_the_limit_in_pieces(rest: Rest) -> None:
    def content() -> Iterator[bytes]:
        yield b'{"template":'
        yield b" " * (1 << 20)
        yield b'"base"}'

    headers = {"content-type": "application/json"}
    rest.ok("POST", "/v1/sandboxes", content=content(), headers=headers, status=201)


def test_posts_without_a_body(rest: Rest) -> None:
    sandbox = rest.create()
    reply = rest.http.post(f"/v1/sandboxes/{sandbox}/pause", headers={"content-length": "0"})
    assert reply.status_code == 204
