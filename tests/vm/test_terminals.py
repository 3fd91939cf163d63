"""Terminals and ports of a real machine: they outlive its sleep, and asking for them wakes it."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from torpor import Sandbox
from torpor.errors import GenerationChanged, PortClosed
from torpor.sdk.sync_terminals import Terminal

PORT = 8000
SERVER = r"""
import base64, hashlib, http.server

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") != "websocket":
            body = b"no socket, but hello"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        key = (self.headers["Sec-WebSocket-Key"] + GUID).encode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            size = head[1] & 127
            if size == 126:
                size = int.from_bytes(self.rfile.read(2), "big")
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
            self.wfile.write(bytes([head[0]]) + length + data)

http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Echo).serve_forever()
"""


@pytest.fixture
def machine(base: str) -> Iterator[Sandbox]:
    """A sandbox without a network."""
    sandbox = Sandbox.create(template=base, network="none")
    yield sandbox
    sandbox.delete()


@pytest.fixture
def listener() -> Iterator[int]:
    """The daemon listens on TCP, as `torpor serve --host` has it; the port."""
    words = [sys.executable, "-m", "torpor.cli", "serve", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
    assert found, said
    yield int(found[1])
    process.terminate()
    process.wait(20)
    process.stderr.close()


def until(output: Iterator[bytes], wanted: bytes) -> None:
    """Read a terminal until it shows something."""
    shown = b""
    while wanted not in shown:
        shown += next(output)


def visit(url: str, port: int) -> httpx.Response:
    """Open a link as a program does whose resolver knows no names below `localhost`."""
    found = urlsplit(url)
    target = f"http://127.0.0.1:{port}{found.path}?{found.query}"
    return httpx.get(target, headers={"host": found.netloc}, timeout=120)


def echoed(url: str, port: int, text: str) -> str:
    """Send a text over a WebSocket through a link, and return what comes back."""
    with (
        socket.create_connection(("127.0.0.1", port)) as link,
        connect("ws" + url.removeprefix("http"), sock=link, open_timeout=120) as echo,
    ):
        echo.send(text)
        return str(echo.recv(timeout=60))


def shown_until_sleep(terminal: Terminal) -> threading.Thread:
    """Watch a terminal in a thread, which ends well only when the machine falls asleep."""
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            for _ in terminal:
                pass
        except GenerationChanged:
            return
        except BaseException as exc:
            failures.append(exc)
            raise

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def refused(machine: Sandbox) -> None:
    """Connect to the port, and raise what the forward tells."""
    told: list[Exception] = []
    with machine.forward(PORT, on_error=told.append) as forward:
        link = socket.create_connection((forward.host, forward.port), timeout=60)
        with contextlib.suppress(ConnectionResetError):
            link.recv(1)
        link.close()
    raise told[0]


def test_terminals_and_ports_outlive_a_sleep(machine: Sandbox, listener: int) -> None:
    machine.filesystem.write("/tmp/echo.py", SERVER)
    with pytest.raises(PortClosed):
        refused(machine)
    machine.exec(["python3", "/tmp/echo.py"], background=True)
    wait = f"until ss -ltn 2>/dev/null | grep -q :{PORT} || grep -q :1F40 /proc/net/tcp; do sleep 0.1; done"
    machine.exec(wait, timeout_seconds=60, check=True)
    found = next(info for info in machine.ports() if info.port == PORT)
    assert (found.address, found.process) == ("127.0.0.1", "python3")

    terminal = machine.terminal(["/bin/bash", "--norc", "-i"], columns=90, rows=28, term="dumb")
    output = iter(terminal)
    until(output, b"# " if machine.exec("id -u").stdout == "0\n" else b"$ ")
    terminal.send_input("kept=41; stty size; tty\n")
    until(output, b"/dev/pts/")
    del output
    url = machine.preview_url(PORT, ttl_seconds=600)
    assert echoed(url, listener, "before") == "before"

    watching = shown_until_sleep(terminal)
    machine.hibernate()
    watching.join(60)
    assert not watching.is_alive()
    assert machine.refresh().state == "hibernated"

    with machine.forward(PORT) as forward:  # wakes it
        assert httpx.get(forward.url, timeout=120).text == "no socket, but hello"
    assert machine.refresh().state == "running"
    terminal.send_input("echo $((kept+1))\n")
    until(iter(terminal), b"\n42\r\n")

    machine.hibernate()
    assert visit(url, listener).text == "no socket, but hello"  # wakes it too
    assert echoed(url, listener, "after") == "after"
    assert visit(url[:-1], listener).status_code == 401

    machine.hibernate()
    terminal.send_input("exit 7\n")  # and so does a key
    assert terminal.wait(timeout_seconds=60).exit_code == 7
