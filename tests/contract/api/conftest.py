"""A real server over a fake engine, and clients of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from blockbuster import blockbuster_ctx

from tests.fakes.serving import ServerThread, serving
from torpor.base.home import Home
from torpor.sdk.loop import loop_thread


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("api") / "home")


@pytest.fixture(scope="module")
def _running(home: Home) -> Iterator[ServerThread]:
    with blockbuster_ctx("torpor.server"), serving(home) as found:
        yield found


@pytest.fixture
def server(_running: ServerThread) -> Iterator[ServerThread]:
    """The module's server, with an engine that knows nothing yet."""
    yield _running
    _running.run(_running.engine.aclose())
    _running.engine.reset()


@pytest.fixture(autouse=True)
def _clean_env(monkeypatch: pytest.MonkeyPatch, home: Home) -> Iterator[None]:
    for name in ("TORPOR_URL", "TORPOR_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORPOR_HOME", str(home.root))
    yield
    loop_thread.close()


class Rest:
    """Raw HTTP on the daemon's socket; failures keep the one flat shape."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def ok(self, method: str, path: str, *, status: int = 200, **kwargs: Any) -> Any:
        reply = self.http.request(method, path, **kwargs)
        assert reply.status_code == status, reply.text
        return reply.json() if reply.content else None

    def fails(self, method: str, path: str, status: int, code: str, **kwargs: Any) -> Any:
        reply = self.http.request(method, path, **kwargs)
        assert reply.status_code == status, reply.text
        body = reply.json()
        assert set(body) == {"error", "code", "hint", "retryable", "facts"}
        assert body["code"] == code
        assert isinstance(body["error"], str)
        assert body["error"]
        return body

    def create(self, **body: Any) -> str:
        found: str = self.ok(
            "POST", "/v1/sandboxes", json={"template": "base", **body}, status=201
        )["id"]
        return found

    def events(self, method: str, path: str, **kwargs: Any) -> list[tuple[str, Any]]:
        with self.http.stream(method, path, **kwargs) as reply:
            assert reply.status_code == 200, reply.read()
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            return parse_sse(reply.read())


def parse_sse(data: bytes) -> list[tuple[str, Any]]:
    """Parse frames strictly: an optional event line, one data line, an empty line."""
    assert data.isascii()
    found: list[tuple[str, Any]] = []
    for frame in data.decode("ascii").split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name = ""
        if lines[0].startswith("event: "):
            name = lines.pop(0)[7:]
        assert len(lines) == 1
        assert lines[0].startswith("data: ")
        found.append((name, json.loads(lines[0][6:])))
    return found


@pytest.fixture
def rest(server: ServerThread, home: Home) -> Iterator[Rest]:
    transport = httpx.HTTPTransport(uds=str(home.socket))
    with httpx.Client(transport=transport, base_url="http://torpor", timeout=30) as http:
        yield Rest(http)
