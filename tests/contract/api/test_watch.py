"""Figures, access log, request ids and spans."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.engine import USAGE
from tests.fakes.serving import ServerThread
from torpor.base import tracing
from torpor.model import SandboxId
from torpor.server import access_log
from torpor.server.access_log import AccessLog


def figures(rest: Rest) -> dict[str, float]:
    reply = rest.http.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain")
    lines = [line for line in reply.text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_what_is_counted(rest: Rest) -> None:
    sandbox = rest.create()
    rest.ok("POST", f"/v1/sandboxes/{sandbox}/exec", json={"cmd": "exit 3"})
    rest.ok("POST", f"/v1/sandboxes/{sandbox}/snapshots", status=201)
    rest.ok("POST", f"/v1/sandboxes/{sandbox}/pause", status=204)
    rest.http.get("/v1/no/such/route")
    found = figures(rest)
    assert found['torpor_sandboxes{state="paused"}'] == 1
    assert found["torpor_snapshots"] == 1
    assert found["torpor_templates"] == 2
    assert found['torpor_operation_seconds_count{operation="create",outcome="ok"}'] >= 1
    assert found['torpor_exec_seconds_count{outcome="failed"}'] >= 1
    assert found["torpor_snapshot_pause_seconds_count"] >= 1
    assert found['torpor_boot_seconds_count{boot_mode="cold"}'] >= 1
    route = 'method="POST",route="/v1/sandboxes/{sandbox_id}/exec",status="200"'
    assert found[f"torpor_http_requests_total{{{route}}}"] >= 1
    assert found['torpor_http_requests_total{method="GET",route="none",status="404"}'] >= 1


def test_what_machines_used_between_two_scrapes_is_added_up(
    rest: Rest, server: ServerThread
) -> None:
    one, two = (SandboxId(rest.create()) for _ in range(2))

    def totals() -> tuple[float, float, float]:
        found = figures(rest)
        names = ("cpu_seconds_total", "disk_reads_total", "memory_bytes")
        cpu_s, reads, memory = (found[f"torpor_machines_{name}"] for name in names)
        return cpu_s, reads, memory

    before = totals()
    assert before[2] == 2 * USAGE.memory_bytes
    grown = replace(USAGE, cpu_seconds=USAGE.cpu_seconds + 2, disk_reads=USAGE.disk_reads + 10)
    server.engine.usages[one] = grown
    assert totals() == (before[0] + 2, before[1] + 10, before[2])
    assert totals() == (before[0] + 2, before[1] + 10, before[2]), "nothing is added twice"
    anew = replace(grown, since=USAGE.since + timedelta(hours=1), disk_reads=5)
    server.engine.usages[one] = anew
    assert totals()[1] == before[1] + 10, "it slept meanwhile"
    server.engine.usages[one] = replace(anew, disk_reads=8)
    rest.ok("DELETE", f"/v1/sandboxes/{two}", status=204)
    assert totals() == (before[0] + 2, before[1] + 13, USAGE.memory_bytes)


def test_no_label_is_an_id(rest: Rest) -> None:
    sandbox = rest.create()
    rest.http.get(f"/v1/sandboxes/{sandbox}")
    rest.http.get(f"/v1/{sandbox}")
    rest.http.request("EVIL" + sandbox[4:].upper(), "/v1/health")
    text = rest.http.get("/metrics").text
    assert sandbox not in text
    assert not re.search(r"(sbx|snap|exec)_[0-9a-z]{20}", text)
    assert sandbox[4:].upper() not in text


@pytest.mark.parametrize("given", ["abc-123", "a" * 128, "2024:x/y+z=@_."])
def test_a_request_keeps_its_id(rest: Rest, given: str) -> None:
    reply = rest.http.get("/v1/health", headers={"x-request-id": given})
    assert reply.headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "a" * 129, 'a"b', "a b", "a\x7f", "\xe9"])
def test_or_gets_a_fresh_one(rest: Rest, given: str | None) -> None:
    headers = [] if given is None else [(b"x-request-id", given.encode("latin-1"))]
    first, second = (rest.http.get("/nothing", headers=headers) for _ in range(2))
    assert re.fullmatch("[0-9a-f]{16}", first.headers["x-request-id"])
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_the_access_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FILE_BYTES", 2000)
    path = tmp_path / "access.log"
    log = AccessLog()
    with log.into(path):
        for number in range(2000):
            log.write({"number": number, "path": "/v1/\u00e9\n"})
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + access_log.FILES
    assert all(file.stat().st_size <= 2100 for file in files)
    assert path.stat().st_mode & 0o777 == 0o600
    numbers = [json.loads(line)["number"] for line in path.read_text().splitlines()]
    assert numbers[-1] == 1999


def test_what_the_disk_is_too_slow_for_is_dropped_and_said(tmp_path: Path) -> None:
    log = AccessLog()
    for number in range(10_005):
        log.write({"number": number})
    with log.into(tmp_path / "log"):
        pass
    with log.into(tmp_path / "log"):
        log.write({"number": -1})
    last = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert last == {"number": -1, "dropped_before": 5}


def test_every_request_is_a_line(
    rest: Rest, server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []

    class Kept(AccessLog):
        def write(self, line: Any) -> None:
            lines.append(dict(line))

    from torpor.server.watch import Watch

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b"tea"})

    from torpor.server.metrics import Metrics

    async def ask() -> None:
        async def nothing(*_: Any) -> Any: ...

        scope = {
            "type": "http", "method": "GET", "path": "/v1/x", "query_string": b"access_token=s3cret",
            "headers": [(b"authorization", b"Bearer s3cret"), (b"x-request-id", b"mine")],
        }  # fmt: skip
        await Watch(app, Metrics(), Kept())(scope, nothing, nothing)

    server.run(ask())
    (line,) = lines
    assert (line["status"], line["bytes"], line["request_id"], line["client"]) == (
        418, 3, "mine", "unix",
    )  # fmt: skip
    assert "s3cret" not in json.dumps(line)


def test_nobody_pays_for_what_nobody_wants() -> None:
    assert not tracing.is_enabled()
    assert tracing.span("a", key=1) is tracing.span("b")
