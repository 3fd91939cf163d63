"""/v1/sandboxes and what every route has in common."""

from __future__ import annotations

import re

import pytest

from tests.contract.api.conftest import Rest, parse_sse
from tests.contract.api.test_cli import Cli
from tests.fakes.engine import USAGE
from tests.fakes.serving import ServerThread
from torpor import Sandbox, __version__
from torpor.server.wire import LifecycleWire, SandboxPageWire, SandboxWire
from torpor.server.wire_usage import UsageWire

UNKNOWN = "/v1/sandboxes/sbx_00000000000000000000"


def test_create_answers_with_the_sandbox(rest: Rest) -> None:
    body = rest.ok(
        "POST",
        "/v1/sandboxes",
        status=201,
        json={
            "template": "base",
            "vcpus": 2,
            "ram_mib": 1024,
            "env": {"KEY": "välue"},
            "metadata": {"who": "me"},
            "ttl_seconds": 60,
        },
    )
    SandboxWire.model_validate(body)
    assert body["state"] == body["status"] == "running"
    assert (body["vcpus"], body["cpu"]) == (2, 2)
    assert (body["ram_mib"], body["memory_mb"]) == (1024, 1024)
    assert body["env_names"] == ["KEY"]
    assert "välue" not in str(body)
    assert rest.ok("GET", f"/v1/sandboxes/{body['id']}") == body


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"template": "nosuch"}, 404, "object.not_found"),
        ({"template": "base", "vcpus": 1000}, 400, "request.invalid"),
        ({"template": "base", "ram_mib": 1 << 20}, 507, "host.insufficient_resources"),
        ({"template": "base", "vcpus": "many"}, 400, "request.invalid"),
        ({"template": "base", "memory": 5}, 400, "request.invalid"),
        ({}, 400, "request.invalid"),
        ([], 400, "request.invalid"),
    ],
)
def test_create_refuses(rest: Rest, body: object, status: int, code: str) -> None:
    rest.fails("POST", "/v1/sandboxes", status, code, json=body)
    assert rest.ok("GET", "/v1/sandboxes")["items"] == []


def test_a_refused_request_names_the_field_and_not_the_value(rest: Rest) -> None:
    body = rest.fails(
        "POST",
        "/v1/sandboxes",
        400,
        "request.invalid",
        json={"template": "base", "env": {"SECRET": ["hunter2"]}},
    )
    assert "env.SECRET" in body["error"]
    assert "hunter2" not in str(body)


@pytest.mark.parametrize("sent_as", [{}, {"content-type": "application/x-www-form-urlencoded"}])
def test_a_body_that_is_not_sent_as_json(rest: Rest, sent_as: dict[str, str]) -> None:
    """As `curl -d` does: what is missing is the header, and the error says so."""
    found = rest.fails(
        "POST",
        "/v1/sandboxes",
        400,
        "request.invalid",
        content=b'{"template": "base"}',
        headers=sent_as,
    )
    assert "JSON is wanted" in found["error"]
    assert found["hint"] == "send the header Content-Type: application/json"


def test_json_that_is_not_json(rest: Rest) -> None:
    rest.fails(
        "POST",
        "/v1/sandboxes",
        400,
        "request.invalid",
        content=b"{",
        headers={"content-type": "application/json"},
    )


def test_list_filters_and_pages(rest: Rest) -> None:
    made = [rest.create(metadata={"n": str(n), "odd key &=+": "ä b"}) for n in range(5)]
    agent = rest.create(template="agent")
    rest.ok("POST", f"/v1/sandboxes/{made[0]}/pause", status=204)
    page = rest.ok("GET", "/v1/sandboxes", params={"limit": 4})
    SandboxPageWire.model_validate(page)
    assert [item["id"] for item in page["items"]] == [agent, *made[:1:-1]]
    rest_of = rest.ok("GET", "/v1/sandboxes", params={"limit": 4, "cursor": page["next_cursor"]})
    assert [item["id"] for item in rest_of["items"]] == [made[1], made[0]]
    assert rest_of["next_cursor"] is None

    def ids(**params: str) -> list[str]:
        return [i["id"] for i in rest.ok("GET", "/v1/sandboxes", params=params)["items"]]

    assert ids(template="agent") == [agent]
    assert ids(state="paused") == [made[0]]
    assert len(ids(state="paused,running")) == 6
    assert ids(**{"metadata.n": "3"}) == [made[3]]
    assert len(ids(**{"metadata.odd key &=+": "ä b"})) == 5
    assert ids(**{"metadata.n": "3", "metadata.odd key &=+": "no"}) == []


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 1001}, {"state": "asleep"}])
def test_list_refuses(rest: Rest, params: dict[str, object]) -> None:
    rest.fails("GET", "/v1/sandboxes", 400, "request.invalid", params=params)


def test_pause_resume_delete(rest: Rest) -> None:
    path = f"/v1/sandboxes/{rest.create()}"
    for action, state in (("pause", "paused"), ("pause", "paused"), ("resume", "running")):
        rest.ok("POST", f"{path}/{action}", status=204)
        assert rest.ok("GET", path)["state"] == state
    rest.ok("DELETE", path, status=204)
    assert rest.ok("GET", path)["state"] == "deleted"
    rest.ok("DELETE", path, status=204)
    rest.fails("POST", f"{path}/pause", 409, "object.wrong_state")


def test_what_a_machine_uses(rest: Rest) -> None:
    sandbox, cli = rest.create(), Cli()
    path = f"/v1/sandboxes/{sandbox}"
    body = rest.ok("GET", f"{path}/usage")
    UsageWire.model_validate(body)
    assert (body["disk_reads"], body["network_sent_bytes"]) == (30, None)
    assert Sandbox.usage(sandbox) == USAGE
    assert Sandbox.get(sandbox).usage() == USAGE
    assert cli.json("usage", sandbox) == {
        "sandbox_id": sandbox,
        **body,
        "since": USAGE.since.isoformat(),
    }
    shown = cli("usage", sandbox)
    assert re.search(r"^disk read +3\.0 MiB in 30$", shown, re.MULTILINE)
    assert re.search(r"^sent +-$", shown, re.MULTILINE)
    rest.ok("POST", f"{path}/pause", status=204)
    (row,) = cli.json("usage")
    assert (row["sandbox_id"], row["disk_throttled"]) == (sandbox, 4)
    numbers = r" +1\.5 s +90 MiB +3\.0 MiB +2\.0 MiB +- +- +4$"
    assert re.search(rf"^{sandbox} .*{numbers}", cli("usage").rstrip().splitlines()[1])
    rest.ok("POST", f"{path}/hibernate")
    rest.fails("GET", f"{path}/usage", 409, "object.wrong_state")
    assert (cli("usage"), cli.stderr) == ("", "no machine runs\n")


def test_lifecycle(rest: Rest) -> None:
    path = f"/v1/sandboxes/{rest.create()}/lifecycle"
    body = rest.ok("GET", path)
    LifecycleWire.model_validate(body)
    assert (body["ttl_seconds"], body["persistent"]) == (None, True)
    body = rest.ok("PATCH", path, json={"ttl_seconds": 5, "on_timeout": "hibernate"})
    assert (body["ttl_seconds"], body["on_timeout"]) == (5, "hibernate")
    assert body["expires_at"] is not None
    assert rest.ok("PATCH", path, json={"ttl_seconds": None})["expires_at"] is None
    rest.fails("PATCH", path, 400, "request.invalid", json={})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", UNKNOWN),
        ("DELETE", UNKNOWN),
        ("POST", f"{UNKNOWN}/pause"),
        ("POST", f"{UNKNOWN}/resume"),
        ("GET", f"{UNKNOWN}/lifecycle"),
        ("GET", f"{UNKNOWN}/usage"),
        ("GET", f"{UNKNOWN}/logs"),
        ("GET", f"{UNKNOWN}/execs"),
        ("GET", f"{UNKNOWN}/execs/exec_00000000000000000000/stream"),
        ("GET", f"{UNKNOWN}/processes"),
        ("GET", f"{UNKNOWN}/fs?path=/x"),
        ("GET", f"{UNKNOWN}/fs/walk?path=/x"),
        ("GET", f"{UNKNOWN}/fs/archive?path=/x"),
        ("GET", "/v1/sandboxes/not%20an%20id"),
        ("GET", "/v1/no/such/route"),
    ],
)
def test_what_is_not_there_is_404(rest: Rest, method: str, path: str) -> None:
    rest.fails(method, path, 404, "object.not_found")


def test_a_wrong_method_is_405_in_the_same_shape(rest: Rest) -> None:
    rest.fails("PUT", "/v1/health", 405, "request.invalid")


def test_an_unexpected_failure_is_500_without_its_details(
    rest: Rest, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_sandbox_id: str) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(server.engine, "get", broken)
    body = rest.fails("GET", UNKNOWN, 500, "internal")
    assert "secret detail" not in str(body)


def test_logs(rest: Rest) -> None:
    path = f"/v1/sandboxes/{rest.create()}/logs"
    assert rest.http.get(path).content == b"booting\nlogin: \xc3\xa9\xff\n"
    assert rest.http.get(path).headers["content-type"] == "text/plain; charset=utf-8"


def test_logs_follow_until_the_machine_ends(rest: Rest, server: ServerThread) -> None:
    sandbox_id = rest.create()
    with rest.http.stream("GET", f"/v1/sandboxes/{sandbox_id}/logs?follow=true") as reply:
        chunks = reply.iter_raw()
        first = next(chunks)
        assert parse_sse(first)[0][1]["chunk"] == "booting\nlogin: é\ufffd\n"
        server.engine.sandboxes[sandbox_id].console += b"more\n"  # type: ignore[index]
        assert parse_sse(next(chunks)) == [("", {"chunk": "more\n"})]
        server.run(server.engine.delete(sandbox_id))  # type: ignore[arg-type]
        assert parse_sse(b"".join(chunks)) == [("done", {})]


def test_health_version_doctor(rest: Rest) -> None:
    assert rest.ok("GET", "/v1/health") == {"status": "ok", "version": __version__}
    body = rest.ok("GET", "/v1/version")
    assert (body["version"], body["api"]) == (__version__, "v1")
    assert rest.ok("GET", "/v1/doctor")["ok"] is True
    assert rest.http.get("/v1/health").headers["x-torpor-version"] == __version__
