"""Who is let in, and how much at once."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.serving import Tcp, serving_tcp
from torpor.base.home import Home
from torpor.errors import DaemonUnreachable, InvalidRequest, NotAllowed, NotAuthenticated
from torpor.model_access import Scope
from torpor.sdk.client import Client
from torpor.sdk.sync_sandbox import Sandbox
from torpor.server import limits
from torpor.server.limits import BODY_LIMIT_BYTES, FAILURES_BURST, SMALL_BODY_BYTES


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tcp]:
    home = Home(tmp_path_factory.mktemp("tcp") / "home")
    with serving_tcp(home) as found:
        yield found


@pytest.fixture(scope="module")
def token(tcp: Tcp) -> str:
    return tcp.token("use")


@pytest.fixture(autouse=True)
def _patient(tcp: Tcp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the address of all tests fail as often as it likes."""
    monkeypatch.setattr("torpor.server.limits.Buckets.check", lambda _self, _name: None)
    monkeypatch.setattr("torpor.server.limits.Buckets.take", lambda _self, _name: None)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer wrong", "Basic {}", "{}", "Bearer {} extra", "Bearer {}x"],
)
@pytest.mark.parametrize("path", ["/v1/health", "/v1/sandboxes", "/v1/openapi.json", "/nothing"])
def test_tcp_always_needs_a_token(tcp: Tcp, token: str, path: str, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header.format(token)}
    reply = httpx.get(tcp.url + path, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["code"] == "request.not_authenticated"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert token not in reply.text


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_the_token_opens(tcp: Tcp, token: str, scheme: str) -> None:
    headers = {"authorization": f"{scheme} {token}"}
    assert httpx.get(f"{tcp.url}/v1/health", headers=headers).status_code == 200


def test_a_removed_token_is_refused_at_once(tcp: Tcp) -> None:
    token = tcp.token("doomed")
    with httpx.Client(base_url=tcp.url, headers=bearer(token)) as http:
        assert http.get("/v1/me").json()["token"]["name"] == "doomed"
        tcp.server.run(tcp.access.tokens.delete("doomed", "default"))
        assert http.get("/v1/me").status_code == 401


def test_a_token_expires(tcp: Tcp, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tcp.token("short", expires_in_seconds=60)
    assert httpx.get(f"{tcp.url}/v1/me", headers=bearer(token)).status_code == 200
    clock = tcp.access.clock
    later = clock.now() + timedelta(seconds=61)
    monkeypatch.setattr(type(clock), "now", lambda _self: later)
    reply = httpx.get(f"{tcp.url}/v1/me", headers=bearer(token))
    assert reply.status_code == 401
    assert "expired at" in reply.json()["error"]
    assert token not in reply.text


def test_when_it_was_used_is_noted(tcp: Tcp) -> None:
    token = tcp.token("noted")
    assert tcp.access.tokens.find("noted", None).last_used_at is None
    httpx.get(f"{tcp.url}/v1/me", headers=bearer(token))
    tcp.server.wait_until(lambda: tcp.access.tokens.find("noted", None).last_used_at is not None)


def test_scopes(tcp: Tcp) -> None:
    read, use = tcp.token("r", Scope.READ), tcp.token("u", Scope.USE)
    admin = tcp.token("a", Scope.ADMIN)
    body = {"template": "base"}
    post = [
        httpx.post(f"{tcp.url}/v1/sandboxes", json=body, headers=bearer(token)).status_code
        for token in (read, use, admin)
    ]
    assert post == [403, 201, 201]
    tokens = [
        httpx.get(f"{tcp.url}/v1/tokens", headers=bearer(token)).status_code
        for token in (read, use, admin)
    ]
    assert tokens == [403, 403, 200]
    assert httpx.get(f"{tcp.url}/v1/sandboxes", headers=bearer(read)).status_code == 200


def test_the_sdk_over_tcp(tcp: Tcp, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_URL", tcp.url)
    with pytest.raises(NotAuthenticated):
        list(Sandbox.list())
    monkeypatch.setenv("TORPOR_TOKEN", tcp.token("reader", Scope.READ))
    with pytest.raises(NotAllowed, match="scope `use`"):
        Sandbox.create()
    monkeypatch.setenv("TORPOR_TOKEN", token)
    with Sandbox.create() as sandbox:
        assert sandbox.exec("echo hi").stdout == "hi\n"
        assert sandbox.info.workspace == "default"
    assert token not in repr(Client(url=tcp.url, token=token))


def test_no_daemon_at_a_url() -> None:
    with pytest.raises(DaemonUnreachable, match=r"no daemon answers at http://127\.0\.0\.1:9: "):
        list(Sandbox.list(client=Client(url="http://me:secret@127.0.0.1:9")))
    with pytest.raises(DaemonUnreachable, match="no daemon answers at unix:///nowhere/socket: "):
        list(Sandbox.list(client=Client(url="unix:///nowhere/socket")))
    with pytest.raises(InvalidRequest, match="not a URL"):
        list(Sandbox.list(client=Client(url="ftp://host")))


def test_the_socket_is_private(rest: Rest, home: Home) -> None:
    found = home.socket.stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "torpor:80"])
def test_names_that_are_not_ours(tcp: Tcp, token: str, host: str) -> None:
    reply = httpx.get(f"{tcp.url}/v1/me", headers={**bearer(token), "host": host})
    assert reply.status_code == 403
    assert reply.json()["code"] == "request.not_allowed"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:99", "10.1.2.3"]
)
def test_names_that_are_ours(tcp: Tcp, token: str, host: str) -> None:
    headers = {**bearer(token), "host": host}
    assert httpx.get(f"{tcp.url}/v1/me", headers=headers).status_code == 200


def test_web_pages_from_elsewhere(tcp: Tcp, token: str) -> None:
    for origin in ("https://evil.example", "http://[::1", "null"):
        headers = {**bearer(token), "origin": origin}
        reply = httpx.get(f"{tcp.url}/v1/me", headers=headers)
        assert reply.status_code == 403
    asked = httpx.options(
        f"{tcp.url}/v1/sandboxes",
        headers={"origin": tcp.url, "access-control-request-method": "POST"},
    )
    assert asked.status_code == 401
    for found in (reply, asked):
        assert not [name for name in found.headers if name.startswith("access-control")]


def test_every_answer_has_the_headers(tcp: Tcp, token: str) -> None:
    for path, headers in (("/v1/me", bearer(token)), ("/v1/me", {}), ("/nothing", bearer(token))):
        found = httpx.get(tcp.url + path, headers=headers).headers
        assert found["x-content-type-options"] == "nosniff"
        assert found["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in found["content-security-policy"]


def test_too_many_headers(tcp: Tcp, token: str) -> None:
    many = {f"x-{n}": "1" for n in range(120)}
    reply = httpx.get(f"{tcp.url}/v1/me", headers={**bearer(token), **many})
    assert reply.status_code == 413
    assert reply.json()["code"] == "request.limit_exceeded"


class TestRates:
    @pytest.fixture
    def _patient(self) -> None:
        """Here the limits hold."""

    @pytest.fixture
    def slow(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Tcp]:
        monkeypatch.setattr(
            limits, "FAILURES_PER_S", 0.01
        )  # a slow host may take seconds for a few
        with serving_tcp(Home(tmp_path_factory.mktemp("slow") / "home"), per_s=0.2) as found:
            yield found

    def test_a_token_has_a_rate(self, slow: Tcp) -> None:
        one, other = slow.token("one"), slow.token("other")
        assert httpx.get(f"{slow.url}/v1/me", headers=bearer(one)).status_code == 200
        reply = httpx.get(f"{slow.url}/v1/me", headers=bearer(one))
        assert reply.status_code == 429
        assert reply.json()["code"] == "request.rate_limited"
        assert 1 <= int(reply.headers["retry-after"]) <= 6
        assert httpx.get(f"{slow.url}/v1/me", headers=bearer(other)).status_code == 200

    def test_who_shows_no_token_shuts_nobody_out(self, slow: Tcp) -> None:
        name = f"8000-sbx_{'a' * 20}.localhost:{slow.url.rpartition(':')[2]}"
        elsewhere = {"host": name, "sec-fetch-site": "cross-site"}
        for _ in range(FAILURES_BURST + 3):
            assert httpx.get(f"{slow.url}/v1/me").status_code == 401
            assert httpx.get(slow.url, headers={"host": name}).status_code == 401
            bad = httpx.get(f"{slow.url}/?torpor_preview=1.a", headers=elsewhere)
            assert bad.status_code == 401
        right = httpx.get(f"{slow.url}/v1/me", headers=bearer(slow.token("right")))
        assert right.status_code == 200
        codes = [
            httpx.get(f"{slow.url}/?torpor_preview=1.a", headers={"host": name}).status_code
            for _ in range(FAILURES_BURST + 3)
        ]
        assert codes[0] == 401
        assert codes[-1] == 429

    def test_guessing_is_slow(self, slow: Tcp) -> None:
        codes = [
            httpx.get(f"{slow.url}/v1/me", headers=bearer(f"guess-{n}")).status_code
            for n in range(FAILURES_BURST + 3)
        ]
        assert codes[:FAILURES_BURST] == [401] * FAILURES_BURST
        assert codes[-1] == 429
        right = httpx.get(f"{slow.url}/v1/me", headers=bearer(slow.token("right")))
        assert right.status_code == 429


def test_bodies_over_the_limit(rest: Rest) -> None:
    def content(limit: int) -> Iterator[bytes]:
        for _ in range(limit // (1 << 20) + 1):
            yield b" " * (1 << 20)

    headers = {"content-type": "application/json"}
    sandbox = rest.create()
    for path, limit in (
        ("/v1/sandboxes", BODY_LIMIT_BYTES),
        (f"/v1/sandboxes/{sandbox}/promote", SMALL_BODY_BYTES),
    ):
        for body in (content(limit), b" " * (limit + 1)):
            rest.fails("POST", path, 413, "request.limit_exceeded", content=body, headers=headers)
    assert rest.ok("GET", "/v1/health")["status"] == "ok"


def test_a_length_of_0_hides_no_body_in_chunks(rest: Rest) -> None:
    def content() -> Iterator[bytes]:
        for _ in range(3):
            yield b" " * (1 << 20)

    headers = {"content-type": "application/json", "content-length": "0"}
    headers["transfer-encoding"] = "chunked"
    path = f"/v1/sandboxes/{rest.create()}/promote"
    rest.fails("POST", path, 413, "request.limit_exceeded", content=content(), headers=headers)


def test_bodies_just_below_the_limit_in_pieces(rest: Rest) -> None:
    def content() -> Iterator[bytes]:
        yield b'{"template":'
        yield b" " * (1 << 20)
        yield b'"base"}'

    headers = {"content-type": "application/json"}
    rest.ok("POST", "/v1/sandboxes", content=content(), headers=headers, status=201)


def test_bodies_together_have_a_limit(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.server.limits.BUFFERED_MOST_BYTES", 1000)
    body = {"template": "base", "metadata": {"k": "v" * 1000}}
    reply = rest.http.post("/v1/sandboxes", json=body)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    rest.create()  # what was held is let go


def test_a_body_that_stops_coming(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("torpor.server.limits.BODY_SILENCE_S", 0.1)
    stop = threading.Event()

    def content() -> Iterator[bytes]:
        yield b"{"
        stop.wait(2)
        yield b"}"

    headers = {"content-type": "application/json"}
    reply = rest.http.post("/v1/sandboxes", content=content(), headers=headers)
    assert reply.status_code == 504
    assert reply.json()["code"] == "operation.timeout"


def test_posts_without_a_body(rest: Rest) -> None:
    sandbox = rest.create()
    reply = rest.http.post(f"/v1/sandboxes/{sandbox}/pause", headers={"content-length": "0"})
    assert reply.status_code == 204
