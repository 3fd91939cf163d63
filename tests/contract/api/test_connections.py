"""Connections that misbehave: those that trickle, idle, do not read, or do not speak HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.serving import Tcp, serving_tcp
from torpor.base.home import Home
from torpor.errors import InvalidRequest
from torpor.server import limits
from torpor.server.listen import listen_tcp


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tcp]:
    with serving_tcp(Home(tmp_path_factory.mktemp("connections") / "home"), per_s=1e5) as found:
        yield found


@pytest.fixture(scope="module")
def token(tcp: Tcp) -> str:
    return tcp.token("use")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.server.limits.Buckets.check", lambda _self, _name: None)
    monkeypatch.setattr("torpor.server.limits.Buckets.take", lambda _self, _name: None)


def connect(tcp: Tcp) -> socket.socket:
    host, _, port = tcp.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def all_of(sock: socket.socket) -> bytes:
    found = b""
    try:
        while data := sock.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def flat(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head.lower(), answer[:200]
    found: dict[str, object] = json.loads(body)
    assert set(found) == {"error", "code", "hint", "retryable", "facts"}
    return found


def works(tcp: Tcp, token: str) -> bool:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(f"{tcp.url}/v1/health", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * (limits.HEAD_LIMIT_BYTES + 10),
        b"GET /" + b"x" * (limits.HEAD_LIMIT_BYTES + 10),
    ],
)
def test_what_is_not_http(
    tcp: Tcp, token: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(tcp) as sock:
        sock.sendall(data)
        answer = all_of(sock)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert flat(answer)["code"] == "request.invalid"
    assert works(tcp, token)
    for word in ("Fatal error", "Exception"):
        assert word not in caplog.text, "a stranger can fill the log with tracebacks"


def test_a_head_that_trickles(tcp: Tcp, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_LIMIT_S", 0.1)
    for sent in (b"", b"GET /v1/health HTTP/1.1\r\nHost: local"):
        with connect(tcp) as sock:
            sock.sendall(sent)
            assert flat(all_of(sock))["code"] == "operation.timeout"
    with connect(tcp) as sock:  # also the second request's
        request = (
            f"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        sock.sendall(request.encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GET /v1/h")
        assert flat(all_of(sock))["code"] == "operation.timeout"


def test_a_web_socket_that_is_refused_is_no_error_of_ours(
    tcp: Tcp, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = "GET /v1/sandboxes/x/ports/1/tunnel HTTP/1.1\r\nHost: localhost\r\n"
    head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    head += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    for leave, status in (("", b"401"), (f"Authorization: Bearer {token}\r\n", b"404")):
        with connect(tcp) as sock:
            sock.sendall(f"{head}{leave}\r\n".encode())
            assert all_of(sock).startswith(b"HTTP/1.1 " + status)
    tcp.server.run(_nothing())
    said = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert said == [], "a stranger can fill the log"


@pytest.mark.parametrize("host", ["a" * 300, "\ud800", "a\0b", "..", ":", "192.0.2.1"])
def test_a_name_that_is_none_is_not_listened_on(host: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot listen on") as caught:
        listen_tcp(host, 0)
    assert "Errno" not in caught.value.message
    assert "127.0.0.1" in str(caught.value.hint)


def test_thousands_of_idle_connections_keep_nobody_out(
    tcp: Tcp, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MOST", 50)
    idle = [connect(tcp) for _ in range(200)]
    try:
        assert works(tcp, token)
        tcp.server.run(_nothing())
        closed = sum(1 for sock in idle if _is_closed(sock))
        assert closed >= 150
    finally:
        for sock in idle:
            sock.close()
    assert works(tcp, token)


def test_connections_in_use_are_not_closed_for_others(
    tcp: Tcp, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MOST", 3)
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=tcp.url, headers=headers, timeout=10) as http:
        streams = [http.stream("GET", "/v1/events") for _ in range(3)]
        for stream in streams:
            stream.__enter__()
        try:
            with connect(tcp) as sock:
                found = flat(all_of(sock))
                assert (found["code"], found["retryable"]) == ("request.rate_limited", True)
        finally:
            for stream in streams:
                stream.__exit__(None, None, None)


def test_clients_that_hang_up_are_no_errors_of_ours(
    tcp: Tcp, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=tcp.url, headers=headers, timeout=20) as http:
        sandbox = http.post("/v1/sandboxes", json={"template": "base"}).json()["id"]
        path = f"/v1/sandboxes/{sandbox}"
        body = '{"cmd":"sleep 30"}'
        head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n"
        kind = "Content-Type: application/json\r\nContent-Length: 18\r\n\r\n"
        for request in (
            f"POST {path}/exec HTTP/1.1\r\n{head}{kind}{body}",
            f"POST /pandastack{path}/exec HTTP/1.1\r\n{head}{kind}{body}",
            f"PUT {path}/fs?path=/x HTTP/1.1\r\n{head}Content-Length: 99\r\n\r\nbegun",
        ):
            with connect(tcp) as sock:
                sock.sendall(request.encode())
                tcp.server.run(asyncio.sleep(0.1))
        tcp.server.run(asyncio.sleep(0.2))
        assert http.get(f"{path}/fs/stat?path=/x").status_code == 404
        figures = http.get("/metrics").text
        http.delete(path)
    counted = [line for line in figures.splitlines() if "requests_total{" in line]
    assert sum('status="499"' in line for line in counted) == 3
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


def test_a_reader_that_does_not_read_is_held_back_at_the_source(tcp: Tcp, token: str) -> None:
    """The daemon must not pile up what nobody takes."""
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=tcp.url, headers=headers, timeout=20) as http:
        sandbox = http.post("/v1/sandboxes", json={"template": "base"}).json()["id"]
        path = f"/v1/sandboxes/{sandbox}/fs"
        http.put(path, params={"path": "/big"}, content=b"x" * (64 << 20))
        files = tcp.server.guest(sandbox).files
        sent = _count_reads(files)
        with connect(tcp) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            request = f"GET {path}?path=/big HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
            sock.sendall(request.encode())
            sock.recv(10)
            before = -1
            for _ in range(100):
                if before == (before := sent[0]) and before > 0:
                    break
                threading.Event().wait(0.05)
            assert 0 < sent[0] < 16 << 20, sent
            assert http.get("/v1/health").status_code == 200
        http.delete(f"/v1/sandboxes/{sandbox}")


def _count_reads(files: object) -> list[int]:
    sent = [0]
    read = files.read  # type: ignore[attr-defined]

    async def counted(*args: object, **kwargs: object):  # type: ignore[no-untyped-def]
        async for chunk in read(*args, **kwargs):
            sent[0] += len(chunk)
            yield chunk

    files.read = counted  # type: ignore[attr-defined]
    return sent


async def _nothing() -> None:
    pass


def _is_closed(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        return sock.recv(1) in (b"", b"H")
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HEADER = st.tuples(
    st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20),
    st.binary(max_size=60).map(lambda b: bytes(c for c in b if c >= 32 and c != 127).strip()),
)
NOT_OURS = {"host", "content-length", "transfer-encoding", "connection", "upgrade", "expect"}


@FUZZ
@given(headers=st.lists(HEADER, max_size=20))
def test_any_headers(tcp: Tcp, token: str, headers: list[tuple[str, bytes]]) -> None:
    found = [(n.encode(), v) for n, v in headers if n not in NOT_OURS and n != "authorization"]
    found.append((b"authorization", f"Bearer {token}".encode()))
    reply = httpx.get(f"{tcp.url}/v1/me", headers=found)
    assert reply.status_code in (200, 400, 403), reply.text


@FUZZ
@given(given=st.text(max_size=80))
def test_any_token(tcp: Tcp, given: str) -> None:
    headers = [(b"authorization", b"Bearer " + given.encode("utf-8", "replace"))]
    try:
        reply = httpx.get(f"{tcp.url}/v1/me", headers=headers)
    except (httpx.LocalProtocolError, httpx.RemoteProtocolError):
        return
    assert reply.status_code in (400, 401)
    assert set(reply.json()) == {"error", "code", "hint", "retryable", "facts"}


@FUZZ
@given(body=st.binary(max_size=200), kind=st.sampled_from(["application/json", "text/plain", ""]))
def test_any_body(tcp: Tcp, token: str, body: bytes, kind: str) -> None:
    headers = {"authorization": f"Bearer {token}", "content-type": kind}
    for path in ("/v1/sandboxes", "/v1/tokens", "/v1/listeners", "/v1/templates/build"):
        reply = httpx.post(tcp.url + path, content=body, headers=headers)
        assert reply.status_code < 500, reply.text
        assert set(reply.json()) == {"error", "code", "hint", "retryable", "facts"}


@FUZZ
@given(name=st.text(max_size=100), workspace=st.text(max_size=70))
def test_any_names(tcp: Tcp, name: str, workspace: str) -> None:
    import re

    from torpor.errors import Conflict, InvalidRequest
    from torpor.model_access import Scope

    is_name = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?").fullmatch
    try:
        made = tcp.server.run(tcp.access.tokens.create(name, scope=Scope.READ, workspace=workspace))
    except InvalidRequest:
        assert not (is_name(name) and is_name(workspace)) or name.startswith(("sbx_", "tok_"))
        return
    except Conflict:
        return
    assert is_name(name)
    assert is_name(workspace)
    tcp.server.run(tcp.access.tokens.delete(made.info.id, None))
