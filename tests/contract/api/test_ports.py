"""Ports over the daemon: listed, forwarded byte for byte, previewed by name; and nothing beyond."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect, unix_connect

from tests.contract.api.conftest import Rest
from tests.fakes.serving import ServerThread, Tcp, serving_tcp
from torpor import Sandbox
from torpor.base.home import Home
from torpor.errors import Conflict, HostNotReady, InvalidRequest, NotFound, TorporError
from torpor.model_access import Scope

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class App(BaseHTTPRequestHandler):
    """A program in the machine: tells what it was asked, echoes, streams, and speaks WebSocket."""

    protocol_version = "HTTP/1.1"
    flooded = 0
    """Bytes that `/flood` has got rid of."""

    def do_GET(self) -> None:
        if self.headers.get("Upgrade") == "websocket" and self.path.startswith("/ws"):
            self.echo_frames()
        elif self.path.startswith("/cookies"):
            self.answer(
                b"cookies",
                ("Set-Cookie", "theirs=1; Domain=localhost; Path=/"),
                ("Set-Cookie", "torpor_preview=forged"),
                ("Set-Cookie", "=torpor_preview=forged; path=/"),
                ("Set-Cookie", "spaced=1; Domain =localhost;\tdomain\t; Path=/"),
            )
        elif self.path.startswith("/status"):
            self.send_response(int(self.path.rpartition("/")[2]))
            self.end_headers()
            self.close_connection = True
        elif self.path.startswith("/flood"):
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    App.flooded += self.connection.send(bytes(65536))
            self.close_connection = True
        elif self.path.startswith("/cut"):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
        else:
            lines = [f"{self.command} {self.path}", *(f"{k}: {v}" for k, v in self.headers.items())]
            self.answer("\n".join(lines).encode())

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.answer(self.rfile.read(size)[::-1])

    def answer(self, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def echo_frames(self) -> None:
        key = self.headers["Sec-WebSocket-Key"]
        mark = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", mark)
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            opcode, size = head[0] & 15, head[1] & 127
            if size == 126:
                size = int.from_bytes(self.rfile.read(2), "big")
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
            self.wfile.write(bytes([0x80 | opcode]) + length + data)
            if opcode == 8:
                return

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Threaded(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@pytest.fixture(scope="module")
def app() -> Iterator[int]:
    """A program on this machine's loopback, which is the fake guest's; its port."""
    server = Threaded(("127.0.0.1", 0), App)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join(10)


@contextlib.contextmanager
def echoing() -> Iterator[int]:
    """A program that sends everything back, then its end."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def echo(link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            while data := link.recv(65536):
                link.sendall(data)
            link.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rest_of(link: socket.socket) -> bytes:
    found = bytearray()
    while data := link.recv(65536):
        found += data
    return bytes(found)


# ---- lists and forwards, on the Unix socket ----


def test_what_listens_is_listed(server: ServerThread, app: int) -> None:
    with Sandbox.create() as sandbox:
        found = next(info for info in sandbox.ports() if info.port == app)
        assert found.address == "127.0.0.1"
        assert found.is_reachable
    with pytest.raises(NotFound):
        Sandbox.ports("sbx_00000000000000000000")


def test_a_forward_carries_bytes_both_ways(server: ServerThread) -> None:
    content = os.urandom(3 << 20)
    with Sandbox.create() as sandbox, echoing() as port, sandbox.forward(port) as forward:
        assert forward.host == "127.0.0.1"
        assert forward.url == f"http://127.0.0.1:{forward.port}"
        with socket.create_connection((forward.host, forward.port), timeout=30) as link:

            def send() -> None:
                link.sendall(content)
                link.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send)
            sender.start()
            assert rest_of(link) == content
            sender.join(10)


def test_many_connections_at_once(server: ServerThread) -> None:
    with (
        Sandbox.create() as sandbox,
        echoing() as port,
        sandbox.forward(port) as forward,
        contextlib.ExitStack() as stack,
    ):
        where = (forward.host, forward.port)
        links = [
            stack.enter_context(socket.create_connection(where, timeout=30)) for _ in range(40)
        ]
        for index, link in enumerate(links):
            link.sendall(b"%03d" % index)
        for index, link in reversed(list(enumerate(links))):
            assert link.recv(3) == b"%03d" % index


def test_a_port_on_which_nothing_listens_is_told_and_the_connection_reset(
    server: ServerThread,
) -> None:
    told: list[TorporError] = []
    with (
        Sandbox.create() as sandbox,
        sandbox.forward(free_port(), on_error=told.append) as forward,
        socket.create_connection((forward.host, forward.port), timeout=30) as link,
        pytest.raises(ConnectionResetError),
    ):
        link.recv(1)
    assert [error.code for error in told] == ["port.closed"]


def test_what_cannot_be_forwarded_is_refused_at_once(server: ServerThread) -> None:
    with pytest.raises(NotFound), Sandbox.handle("sbx_00000000000000000000").forward(80):
        pass
    with Sandbox.create() as sandbox:
        with pytest.raises(InvalidRequest, match="no port"):
            sandbox.forward(0)
        with pytest.raises(InvalidRequest, match="no port"):
            sandbox.forward(80, local_port=65536)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            forward = sandbox.forward(80, local_port=taken.getsockname()[1])
            with pytest.raises(Conflict, match=r"cannot listen on .*: Address already in use$"):
                forward.start()


def test_a_connection_through_a_forward_wakes_a_sandbox_that_sleeps(server: ServerThread) -> None:
    with Sandbox.create() as sandbox, echoing() as port, sandbox.forward(port) as forward:
        sandbox.hibernate()
        assert sandbox.refresh().state == "hibernated"
        with socket.create_connection((forward.host, forward.port), timeout=30) as link:
            link.sendall(b"up?")
            assert link.recv(3) == b"up?"
        assert sandbox.refresh().state == "running"


def test_a_machine_that_falls_asleep_cuts_what_is_open(server: ServerThread) -> None:
    told: list[TorporError] = []
    with (
        Sandbox.create() as sandbox,
        echoing() as port,
        sandbox.forward(port, on_error=told.append) as forward,
        socket.create_connection((forward.host, forward.port), timeout=30) as link,
    ):
        link.sendall(b"there?")
        assert link.recv(6) == b"there?"
        assert server.engine.users[sandbox.id] == 1, "an open connection is work"
        sandbox.hibernate()
        with pytest.raises(ConnectionResetError):
            link.recv(1)
        assert [error.code for error in told] == ["sandbox.generation_changed"]
        server.wait_until(lambda: server.engine.users[sandbox.id] == 0)


# ---- the command line ----

TORPOR = [sys.executable, "-m", "torpor.cli"]


def told(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TORPOR, *words], capture_output=True, text=True, timeout=60)


def test_ports_on_the_command_line(server: ServerThread, app: int) -> None:
    with Sandbox.create() as sandbox:
        found = json.loads(told("ports", sandbox.id, "--json").stdout)
        assert (app, True) in {(item["port"], item["is_reachable"]) for item in found}
        assert f"{app}" in told("ports", sandbox.id).stdout
        done = told("preview", sandbox.id, str(app))
        assert done.returncode == HostNotReady.exit_code
        assert "torpor serve --host" in done.stderr
        done = told("preview", sandbox.id, str(app), "--ttl", "0")
        assert done.returncode == 2
        assert "--ttl" in done.stderr
        done = told("forward", sandbox.id, "0")
        assert done.returncode == InvalidRequest.exit_code


def test_a_forward_on_the_command_line_until_control_c(server: ServerThread) -> None:
    with Sandbox.create() as sandbox, echoing() as port:
        words = ["forward", sandbox.id, str(port), "--local", "0"]
        with subprocess.Popen([*TORPOR, *words], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            local = int(line.partition(" ")[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", local), timeout=30) as link:
                link.sendall(b"hello")
                assert link.recv(5) == b"hello"
                process.send_signal(signal.SIGINT)
                assert process.wait(20) == 0
                with contextlib.suppress(ConnectionResetError):
                    assert link.recv(1) == b""
            assert "Traceback" not in process.stderr.read()


def test_a_forward_says_why_a_connection_was_cut(server: ServerThread) -> None:
    port = free_port()
    with Sandbox.create() as sandbox:
        words = ["forward", sandbox.id, str(port), "--local", "0", "--json"]
        with subprocess.Popen(
            [*TORPOR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            said = process.stdout.readline()
            while not said.rstrip().endswith("}"):
                said += process.stdout.readline()
            local = json.loads(said)["port"]
            with (
                socket.create_connection(("127.0.0.1", local), timeout=30) as link,
                contextlib.suppress(ConnectionResetError),
            ):
                assert link.recv(1) == b""
            process.stderr.readline()
            assert f"nothing listens on port {port}" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


# ---- odd clients of the tunnel ----


def opened(home: Home, sandbox: str, port: int | str, query: str = "") -> Any:
    url = f"ws://torpor/v1/sandboxes/{sandbox}/ports/{port}/tunnel{query}"
    return unix_connect(str(home.socket), url, open_timeout=20)


@pytest.mark.parametrize("message", ["", "{", "[]", "3", '"end"', '{"type":"en"}', "[" * 5000, "é"])
def test_odd_messages_end_the_tunnel_in_words(home: Home, rest: Rest, message: str) -> None:
    with echoing() as port, opened(home, rest.create(), port) as tunnel:
        tunnel.send(b"fine")
        assert tunnel.recv() == b"fine"
        tunnel.send(message)
        assert "request.invalid" in tunnel.recv()
        with pytest.raises(Exception, match="1008"):
            tunnel.recv()


@pytest.mark.parametrize(
    ("port", "query", "status"),
    [
        ("0", "", 400),
        ("65536", "", 400),
        ("http", "", 400),
        ("-1", "", 400),
        ("80", "?idle_seconds=0", 400),
        ("80", "?idle_seconds=x", 400),
        ("99999999999999999999", "", 400),
    ],
)
def test_a_tunnel_that_cannot_be_is_answered_as_a_request_is(
    home: Home, rest: Rest, port: str, query: str, status: int
) -> None:
    with pytest.raises(Exception, match=f"HTTP {status}") as refused:
        opened(home, rest.create(), port, query)
    assert b'"code":"request.invalid"' in refused.value.response.body  # type: ignore[attr-defined]


def test_a_closed_port_and_an_unknown_sandbox_are_answered(home: Home, rest: Rest) -> None:
    with pytest.raises(Exception, match="HTTP 502"):
        opened(home, rest.create(), free_port())
    with pytest.raises(Exception, match="HTTP 404"):
        opened(home, "sbx_00000000000000000000", 80)


def test_a_message_that_is_too_large_ends_the_tunnel(home: Home, rest: Rest) -> None:
    def send(tunnel: Any) -> None:
        tunnel.send(bytes(2 << 20))
        while tunnel.recv():
            pass

    with (
        echoing() as port,
        opened(home, rest.create(), port) as tunnel,
        pytest.raises(ConnectionClosed),
    ):
        send(tunnel)


def handshake(path: str, host: str, **headers: str) -> bytes:
    """Return the request for a WebSocket."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged as an error; what clients do is none."""
    return [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]


def test_what_comes_before_the_answer_waits_for_it(
    home: Home, rest: Rest, server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with echoing() as port, socket.socket(socket.AF_UNIX) as link:
        sandbox = rest.create()
        guest, may_open = server.guest(sandbox), asyncio.Event()
        open_port = guest.open_port

        @contextlib.asynccontextmanager
        async def open_late(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            await may_open.wait()
            async with open_port(*args, **kwargs) as stream:
                yield stream

        guest.open_port = open_late
        link.settimeout(10)
        link.connect(str(home.socket))
        link.sendall(handshake(f"/v1/sandboxes/{sandbox}/ports/{port}/tunnel", "torpor"))
        for frame in (b"\x89\x80\0\0\0\0", b"\xf3\xf3\xf3"):  # a ping, and what is no frame
            server.run(asyncio.sleep(0.05))
            link.sendall(frame)
        server.run(asyncio.sleep(0.05))
        server.loop.call_soon_threadsafe(may_open.set)
        answer = link.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 101 ")
    pong, closing, protocol_error = b"\x8a\x00", b"\x88", (1002).to_bytes(2, "big")
    assert answer.partition(b"\r\n\r\n")[2].startswith(pong + closing)
    assert protocol_error in answer
    assert errors_in(caplog) == []


@pytest.mark.parametrize(
    ("first", "frame"),
    [(b"", b"\x89\xfd\0\0\0\0" + bytes(125)), (b"\x02\x80\0\0\0\0", b"\x00\x80\0\0\0\0")],
    ids=["pings", "fragments"],
)
def test_frames_without_end_take_no_memory_without_end(
    home: Home, rest: Rest, first: bytes, frame: bytes
) -> None:
    with echoing() as port, socket.socket(socket.AF_UNIX) as link:
        sandbox = rest.create()
        link.settimeout(10)
        link.connect(str(home.socket))
        link.sendall(handshake(f"/v1/sandboxes/{sandbox}/ports/{port}/tunnel", "torpor"))
        assert link.recv(1000).startswith(b"HTTP/1.1 101 ")
        link.sendall(first)
        many = frame * (65536 // len(frame))
        with pytest.raises(ConnectionError):
            link.sendall(many * ((24 << 20) // len(many)))
    assert rest.ok("GET", "/v1/health")["status"] == "ok"


def framed(opcode: int, data: bytes, *, fin: bool = True) -> bytes:
    """Return a client's frame, masked with zeros."""
    return bytes([(0x80 if fin else 0) | opcode, 0x80 | len(data)]) + bytes(4) + data


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (framed(1, b'{"type": "\xff"}'), 1007),
        (framed(1, b"\xed\xa0\x80"), 1007),  # a surrogate
        (framed(1, b'"\xc3', fin=False) + framed(0, b'"'), 1007),
        (framed(1, b"\xff") + framed(1, b"\xff") + framed(2, b"more"), 1007),
        (framed(1, b'{"type": "\xc3', fin=False) + framed(0, b'\xa9"}'), 1008),  # UTF-8 it is
    ],
    ids=["byte", "surrogate", "across frames", "twice", "a letter in two frames"],
)
def test_a_text_that_is_not_utf_8_ends_the_connection(
    home: Home, rest: Rest, caplog: pytest.LogCaptureFixture, frames: bytes, code: int
) -> None:
    with echoing() as port, socket.socket(socket.AF_UNIX) as link:
        sandbox = rest.create()
        link.settimeout(10)
        link.connect(str(home.socket))
        link.sendall(handshake(f"/v1/sandboxes/{sandbox}/ports/{port}/tunnel", "torpor"))
        answers = link.makefile("rb")
        assert answers.readline().startswith(b"HTTP/1.1 101 ")
        while answers.readline() != b"\r\n":
            pass
        link.sendall(frames)
        said = b""
        while code.to_bytes(2, "big") not in said and (piece := answers.read1()):
            said += piece
        if code == 1007:  # nothing but the end is said, and the server hangs up
            assert said.startswith(b"\x88")
            assert answers.read() == b""
    assert code.to_bytes(2, "big") in said
    assert errors_in(caplog) == []
    assert rest.ok("GET", f"/v1/sandboxes/{sandbox}")["state"] == "running"


def test_an_idle_tunnel_is_closed(home: Home, rest: Rest) -> None:
    with echoing() as port, opened(home, rest.create(), port, "?idle_seconds=1") as tunnel:
        assert "operation.timeout" in tunnel.recv(timeout=20)


# ---- previews, on TCP ----


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tcp]:
    with serving_tcp(Home(tmp_path_factory.mktemp("tcp") / "home")) as found:
        yield found


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.server.limits.Buckets.check", lambda _self, _name: None)
    monkeypatch.setattr("torpor.server.limits.Buckets.take", lambda _self, _name, **_kwargs: None)


class Preview:
    """A sandbox on the TCP daemon, and requests by its preview's name."""

    def __init__(self, tcp: Tcp, app: int) -> None:
        self.tcp = tcp
        self.port = app
        self.token = tcp.token(f"t{os.urandom(4).hex()}")
        self.api = httpx.Client(
            base_url=tcp.url, headers={"authorization": f"Bearer {self.token}"}, timeout=30
        )
        self.id = self.api.post("/v1/sandboxes", json={"template": "base"}).json()["id"]
        self.name = f"{app}-{self.id}.localhost:{tcp.url.rpartition(':')[2]}"

    def link(self, port: int | None = None, **body: Any) -> Any:
        path = f"/v1/sandboxes/{self.id}/ports/{port or self.port}/links"
        reply = self.api.post(path, json=body)
        assert reply.status_code == 201, reply.text
        return reply.json()

    def signature(self) -> str:
        return str(self.link()["url"].partition("torpor_preview=")[2])

    def get(self, path: str, *, method: str = "GET", **headers: str) -> httpx.Response:
        said = {"host": self.name, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return httpx.request(method, self.tcp.url + path, headers=said, timeout=30)


@pytest.fixture
def preview(tcp: Tcp, app: int) -> Iterator[Preview]:
    found = Preview(tcp, app)
    yield found
    found.api.delete(f"/v1/sandboxes/{found.id}")
    found.api.close()


def test_a_link_opens_the_preview_and_is_kept_as_a_cookie(preview: Preview) -> None:
    link = preview.link(path="/docs?page=2", ttl_seconds=60)
    assert link["url"].startswith(f"http://{preview.name}/docs?page=2&torpor_preview=")
    path = link["url"].partition(preview.name)[2]
    reply = preview.get(path)
    assert reply.status_code == 200
    assert reply.text.startswith("GET /docs?page=2\n")
    assert "torpor_preview" not in reply.text
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "domain" not in cookie.lower()
    again = preview.get("/next", cookie=f"a=1; {cookie.partition(';')[0]}; b=2")
    assert again.status_code == 200
    assert "Cookie: a=1; b=2" in again.text.title().replace("Cookie: A=1; B=2", "Cookie: a=1; b=2")


def test_a_browser_is_sent_on_so_that_the_link_is_not_in_its_bar(preview: Preview) -> None:
    path = preview.link(path="/x?y=1")["url"].partition(preview.name)[2]
    reply = preview.get(path, sec_fetch_mode="navigate")
    assert reply.status_code == 303
    assert reply.headers["location"] == "/x?y=1"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert "torpor_preview=" in reply.headers["set-cookie"]
    for elsewhere in ("//evil.example/", "/\\evil.example/", "\\/evil.example/"):
        with socket.create_connection(
            ("127.0.0.1", int(preview.tcp.url.rpartition(":")[2]))
        ) as link:
            head = f"GET {elsewhere}{path[2:]} HTTP/1.1\r\nHost: {preview.name}\r\n"
            link.sendall(f"{head}Sec-Fetch-Mode: navigate\r\nConnection: close\r\n\r\n".encode())
            answer = link.makefile("rb").read()
        assert b"\r\nlocation: /evil.example/" in answer


def test_a_token_opens_it_too_and_never_reaches_the_machine(preview: Preview) -> None:
    for headers in (
        {"x_torpor_token": preview.token},
        {"authorization": f"Bearer {preview.token}"},
    ):
        reply = preview.get("/", **headers)
        assert reply.status_code == 200
        assert preview.token not in reply.text
        assert "x-forwarded-host: " + preview.name in reply.text.lower()
        assert "connection: close" in reply.text.lower()
    theirs = preview.get("/", x_torpor_token=preview.token, authorization="Bearer theirs")
    assert "authorization: bearer theirs" in theirs.text.lower()


def test_without_a_link_or_token_nothing_is_shown(preview: Preview) -> None:
    for headers in (
        {},
        {"cookie": "torpor_preview=1.x"},
        {"cookie": "torpor_preview="},
        {"x_torpor_token": "torpor_wrong"},
        {"x_torpor_token": ""},
    ):
        reply = preview.get("/", **headers)
        assert reply.status_code == 401, headers
        assert reply.json()["code"] == "request.not_authenticated"


def test_a_link_is_for_one_port_of_one_sandbox_until_it_ends(
    preview: Preview, tcp: Tcp, app: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = preview.signature()
    other = Preview(tcp, app)
    other.api.close()
    assert other.get(f"/?torpor_preview={mark}").status_code == 401
    elsewhere = preview.link(port=app - 1)["url"].partition("torpor_preview=")[2]
    assert preview.get(f"/?torpor_preview={elsewhere}").status_code == 401
    ends, _, seal = mark.partition(".")
    for wrong in (f"{int(ends) + 1}.{seal}", f"{ends}.{seal[:-1]}A", f"{ends}.{seal}=", f"{ends}."):
        if wrong != mark:
            assert preview.get(f"/?torpor_preview={wrong}").status_code == 401
    assert preview.get(f"/?torpor_preview={mark}").status_code == 200
    clock = tcp.access.clock
    later = type(clock).now(clock).fromtimestamp(int(ends) + 1, type(clock).now(clock).tzinfo)
    monkeypatch.setattr(type(clock), "now", lambda _self: later)
    reply = preview.get(f"/?torpor_preview={mark}")
    assert reply.status_code == 401
    assert "ended" in reply.json()["error"]


def test_another_workspace_and_a_lesser_scope_see_nothing(preview: Preview, tcp: Tcp) -> None:
    stranger = tcp.token(f"s{os.urandom(4).hex()}", workspace="other")
    reader = tcp.token(f"r{os.urandom(4).hex()}", Scope.READ)
    assert preview.get("/", x_torpor_token=stranger).status_code == 404
    assert preview.get("/", x_torpor_token=reader).status_code == 403
    path = f"{tcp.url}/v1/sandboxes/{preview.id}/ports/{preview.port}/links"
    headers = {"authorization": f"Bearer {stranger}"}
    assert httpx.post(path, json={}, headers=headers).status_code == 404
    headers = {"authorization": f"Bearer {reader}"}
    assert httpx.post(path, json={}, headers=headers).status_code == 403


def test_other_pages_cannot_use_the_cookie(preview: Preview) -> None:
    cookie = f"torpor_preview={preview.signature()}"
    assert preview.get("/", cookie=cookie, origin=f"http://{preview.name}").status_code == 200
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://9{preview.name}"},
        {"origin": "http://[::1"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"},
    ):
        assert preview.get("/", cookie=cookie, **headers).status_code == 403, headers
    visit = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert preview.get("/", cookie=cookie, **visit).status_code == 200
    assert preview.get("/", method="POST", cookie=cookie, **visit).status_code == 403


def test_bodies_and_methods_go_through(preview: Preview) -> None:
    content = os.urandom(2 << 20)
    headers = {"host": preview.name, "x-torpor-token": preview.token}
    reply = httpx.post(preview.tcp.url, content=content, headers=headers, timeout=60)
    assert reply.content == content[::-1]
    assert preview.get("/", method="HEAD", x_torpor_token=preview.token).status_code == 501


def test_cookies_of_the_program_stay_with_its_name(preview: Preview) -> None:
    reply = preview.get("/cookies", x_torpor_token=preview.token)
    assert reply.headers.get_list("set-cookie") == ["theirs=1; Path=/", "spaced=1; Path=/"]


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_is_none_is_told(preview: Preview, status: int) -> None:
    reply = preview.get(f"/status/{status}", x_torpor_token=preview.token)
    assert (reply.status_code, reply.json()["code"]) == (502, "guest.failed")


def test_connection_names_nothing_that_a_request_needs(preview: Preview) -> None:
    said = {"host": preview.name, "x-torpor-token": preview.token}
    headers = {**said, "connection": "close, host, content-length, x-hop", "x-hop": "1"}
    shown = httpx.get(preview.tcp.url, headers=headers).text.lower()
    assert f"host: {preview.name}" in shown
    assert "x-hop" not in shown
    assert httpx.post(preview.tcp.url, content=b"abc", headers=headers).content == b"cba"


def test_an_answer_that_breaks_off_is_never_taken_for_the_whole(preview: Preview) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        preview.get("/cut", x_torpor_token=preview.token)


def test_a_port_on_which_nothing_listens_is_told(preview: Preview) -> None:
    name = preview.name.replace(f"{preview.port}-", f"{free_port()}-")
    headers = {"host": name, "x-torpor-token": preview.token}
    reply = httpx.get(preview.tcp.url, headers=headers)
    assert reply.status_code == 502
    assert reply.json()["code"] == "port.closed"


@pytest.mark.parametrize(
    "host",
    [
        "{label}.evil.example",
        "{label}.127.0.0.1",
        "{label}",
        "x{label}.localhost",
        "0-{id}.localhost",
        "99999-{id}.localhost",
        "080-{id}.localhost",
        "{label}.localhost.evil.example",
    ],
)
def test_names_that_are_no_preview_of_ours(preview: Preview, host: str) -> None:
    label = preview.name.partition(".")[0]
    name = host.format(label=label, id=preview.id)
    headers = {"host": name, "x-torpor-token": preview.token}
    reply = httpx.get(preview.tcp.url, headers=headers)
    assert reply.status_code in (401, 403)
    assert reply.json()["code"].startswith("request.not_")


def test_a_preview_wakes_a_sandbox_that_sleeps(preview: Preview) -> None:
    preview.api.post(f"/v1/sandboxes/{preview.id}/hibernate")
    assert preview.api.get(f"/v1/sandboxes/{preview.id}").json()["state"] == "hibernated"
    assert preview.get("/", x_torpor_token=preview.token).status_code == 200
    assert preview.api.get(f"/v1/sandboxes/{preview.id}").json()["state"] == "running"


def web_socket(preview: Preview, path: str, **headers: str) -> Any:
    port = int(preview.tcp.url.rpartition(":")[2])
    link = socket.create_connection(("127.0.0.1", port))
    said = {k.replace("_", "-"): v for k, v in headers.items()}
    try:
        return connect(
            f"ws://{preview.name}{path}", sock=link, additional_headers=said, open_timeout=20
        )
    except BaseException:
        link.close()
        raise


def test_web_sockets_go_through(preview: Preview) -> None:
    with web_socket(preview, "/ws", x_torpor_token=preview.token) as echo:
        for size in (0, 5, 125, 126, 60_000):
            content = os.urandom(size)
            echo.send(content)
            assert echo.recv() == content
        echo.send("text")
        assert echo.recv() == "text"
    with web_socket(preview, f"/ws?torpor_preview={preview.signature()}") as echo:
        echo.send("by link")
        assert echo.recv() == "by link"
    cookie = f"torpor_preview={preview.signature()}"
    with web_socket(preview, "/ws", cookie=cookie) as echo:
        echo.send("by cookie")
        assert echo.recv() == "by cookie"


def test_browsers_that_hang_up_are_no_errors_of_ours(
    preview: Preview, caplog: pytest.LogCaptureFixture
) -> None:
    address = ("127.0.0.1", int(preview.tcp.url.rpartition(":")[2]))
    tunnel = f"/v1/sandboxes/{preview.id}/ports/{preview.port}/tunnel"
    bearer = f"Bearer {preview.token}"
    frames = (b"\x82\xfe\x40\0\0\0\0\0" + bytes(16384)) * 20
    for heads in (
        handshake("/ws", preview.name, x_torpor_token=preview.token),
        handshake(tunnel, "localhost", authorization=bearer),
    ):
        for number in range(20):
            with socket.create_connection(address, timeout=10) as link:
                link.sendall(heads)
                if number % 2:
                    link.recv(10)
                    link.sendall(frames)
                linger = struct.pack("ii", 1, 0)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert preview.get("/", x_torpor_token=preview.token).status_code == 200
    preview.tcp.server.run(asyncio.sleep(0.3))
    assert errors_in(caplog) == []


def test_web_sockets_without_leave_are_refused(preview: Preview) -> None:
    with pytest.raises(Exception, match="HTTP 401"):
        web_socket(preview, "/ws")
    cookie = f"torpor_preview={preview.signature()}"
    with pytest.raises(Exception, match="HTTP 403"):
        web_socket(preview, "/ws", cookie=cookie, origin="http://evil.example")
    with pytest.raises(Exception, match="HTTP 200"):  # the program answers without switching
        web_socket(preview, "/plain", x_torpor_token=preview.token)


def test_a_link_needs_a_listener_and_a_life_that_can_be(
    server: ServerThread, preview: Preview
) -> None:
    with Sandbox.create() as sandbox, pytest.raises(HostNotReady, match="does not listen on TCP"):
        sandbox.preview_url(80)
    path = f"/v1/sandboxes/{preview.id}/ports/80/links"
    for body in ({"ttl_seconds": 0}, {"ttl_seconds": 10**9}, {"path": "x"}, {"path": "//evil"}):
        assert preview.api.post(path, json=body).status_code == 400


def test_the_tunnel_s_token_may_come_in_the_query(preview: Preview) -> None:
    base = f"{preview.tcp.url.replace('http', 'ws')}/v1/sandboxes/{preview.id}/ports"
    with echoing() as port:
        with connect(f"{base}/{port}/tunnel?access_token={preview.token}") as tunnel:
            tunnel.send(b"hi")
            assert tunnel.recv() == b"hi"
        with pytest.raises(Exception, match="HTTP 401"):
            connect(f"{base}/{port}/tunnel")


def test_hundreds_of_idle_connections_do_not_shut_out_others(preview: Preview) -> None:
    host, port = "127.0.0.1", int(preview.tcp.url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(socket.create_connection((host, port), timeout=30))
        assert preview.get("/", x_torpor_token=preview.token).status_code == 200


def test_browsers_that_read_nothing_hold_up_nobody_and_no_memory(preview: Preview) -> None:
    App.flooded = 0
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            port = int(preview.tcp.url.rpartition(":")[2])
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            head = f"GET /flood HTTP/1.1\r\nHost: {preview.name}\r\n"
            link.sendall(f"{head}X-Torpor-Token: {preview.token}\r\n\r\n".encode())
        pause, before = threading.Event(), -1
        while App.flooded != before or not before:
            before = App.flooded
            pause.wait(0.5)
        assert before < 8 * (16 << 20)  # mostly what kernels buffer
        assert preview.get("/", x_torpor_token=preview.token).status_code == 200
