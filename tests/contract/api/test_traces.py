"""Spans from the request to the machine, where somebody wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.sandboxes.world import World
from torpor.access import open_access
from torpor.base import tracing
from torpor.base.home import Home
from torpor.errors import HostNotReady
from torpor.sandboxes import admission
from torpor.sandboxes.traced import traced_connect, traced_driver
from torpor.server.app import create_app
from torpor.server.gate import Gate, UnixDoor
from torpor.server.traces import start_traces
from torpor.server.watch import Watch


class Tracer:
    """Keeps the names of spans and what each is inside."""

    def __init__(self) -> None:
        from opentelemetry import trace

        self._trace = trace
        self.spans: list[tuple[str, str | None]] = []
        self._stack = ContextVar[tuple[str, ...]]("stack", default=())

    @contextmanager
    def start_as_current_span(self, name: str, **_kwargs: Any) -> Iterator[Any]:
        above = self._stack.get()
        self.spans.append((name, above[-1] if above else None))
        place = self._stack.set((*above, name))
        try:
            yield self._trace.INVALID_SPAN
        finally:
            self._stack.reset(place)


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    pytest.importorskip("opentelemetry")
    found = Tracer()
    tracing.enable(found)
    yield found
    tracing.enable(None)


def test_spans_lead_from_the_request_to_the_machine(tracer: Tracer, tmp_path: Path) -> None:
    async def main() -> None:
        world = World(Home(tmp_path / "home"))
        parts = world.engine._parts
        parts.driver, parts.connect_guest = (
            traced_driver(parts.driver),
            traced_connect(parts.connect_guest),
        )
        await world.engine.start()
        access = open_access(world.home)
        app = create_app(world.engine, access)
        outer = Watch(Gate(app, UnixDoor()), app.state.metrics, None)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(outer), base_url="http://torpor"
        ) as http:
            made = await http.post("/v1/sandboxes", json={"template": "base"})
            assert made.status_code == 201, made.text
        await world.engine.delete(made.json()["id"])
        await world.engine.aclose()
        access.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "free_bytes", lambda _: 1 << 50)
        asyncio.run(main())
    inside = dict(tracer.spans)
    assert inside["engine.create"] == "request"
    assert inside["guest.connect"] == "engine.create"
    assert {name for name, above in tracer.spans if above == "engine.create"} >= {
        "vmm.restore",
        "guest.renew",
    }


@pytest.mark.parametrize(
    "environ", [{}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}]
)
def test_traces_are_off_unless_they_are_asked_for(environ: dict[str, str]) -> None:
    start_traces(environ)
    assert not tracing.is_enabled()


def test_what_is_missing_for_traces_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(HostNotReady, match="is not installed") as caught:
        start_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})
    assert "torpor[otel]" in str(caught.value.hint)
