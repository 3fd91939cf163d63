"""What is in one workspace does not exist for another's tokens, whatever route is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIWebSocketRoute

from tests.fakes.serving import Tcp, serving_tcp
from torpor.access.principal import Principal
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.model_access import Scope
from torpor.server.app import create_app
from torpor.server.guard import OWNED, UNOWNED
from torpor.server.openapi import document
from torpor.server.scopes import ADMIN, SOCKETS, listed

ROUTES = [
    (method.upper(), path, operation)
    for path, methods in json.loads(document())["paths"].items()
    for method, operation in methods.items()
]
PREFIXES = {
    "change_id": "chg",
    "sandbox": "sbx",
    "drill_id": "drl",
    "schedule_id": "sch",
    "sandbox_id": "sbx",
    "snap": "snap",
    "snapshot_id": "snap",
    "database": "db",
    "db": "db",
    "volume": "vol",
    "snapshot": "vsnap",
}
BODIES: dict[str, dict[str, Any]] = {
    "begin_change": {"reason": "x", "command": "true"},
    "schedule_sandbox_drills": {"schedule": "0 4 * * 1"},
    "schedule_snapshot_drills": {"schedule": "0 4 * * 1"},
    "put_watch": {"checks": "required: {file: {/x: {exists: true}}}"},
    "rollback_sandbox": {"snapshot_id": "{snapshot_id}"},
    "exec_command": {"cmd": "true"},
    "exec_stream": {"cmd": "true"},
    "write_stdin": {"data": "x"},
    "send_signal": {"signal": 9},
    "make_dir": {"path": "/x"},
    "rename_file": {"source": "/x", "target": "/y"},
    "pandastack_exec": {"cmd": "true"},
    "pandastack_exec_stream": {"cmd": "true"},
    "pandastack_fork_tree": {"count": 2},
    "pandastack_update_database": {"always_on": True},
    "pandastack_run_in_session": {"code": "1"},
    "pandastack_set_lifecycle": {"ttl_seconds": 9},
    "set_lifecycle": {"ttl_seconds": 9},
    "grow_volume": {"size_gib": 2},
    "clone_volume": {"name": "other"},
    "attach_database": {"sandbox_id": "{sandbox_id}"},
    "change_database": {"idle_seconds": 9},
    "clone_database": {"name": "other"},
    "grow_database": {"size": "2g"},
    "attach_volume": {"volume": "{volume}", "path": "/data"},
}
"""What a route's body needs to be valid."""


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tcp]:
    with serving_tcp(Home(tmp_path_factory.mktemp("workspaces") / "home"), per_s=1e5) as found:
        yield found


class World:
    """One workspace with things in it, and another that has none."""

    def __init__(self, tcp: Tcp) -> None:
        self.ours = _http(tcp, tcp.token(new_id("tok")[4:], Scope.ADMIN, "ours"))
        self.theirs = _http(tcp, tcp.token(new_id("tok")[4:], Scope.ADMIN, "theirs"))
        body = {"template": "base", "metadata": {"mine": "yes"}}
        self.sandbox = self.ours.post("/v1/sandboxes", json=body).json()["id"]
        taken = self.ours.post(f"/v1/sandboxes/{self.sandbox}/snapshots", json={"label": "mine"})
        self.snapshot = taken.json()["id"]
        change = {"reason": "mine", "command": "true", "inventory": False}
        path = f"/v1/sandboxes/{self.sandbox}/changes"
        self.change = self.ours.post(path, json=change).json()["id"]
        self.ours.get(f"/v1/changes/{self.change}/events")  # it is over
        path = f"/v1/snapshots/{self.snapshot}"
        self.drill = self.ours.post(f"{path}/drills", json={"boots": ["cold"]}).json()["id"]
        schedule = {"schedule": "0 4 1 1 *"}
        self.schedule = self.ours.post(f"{path}/drill-schedules", json=schedule).json()["id"]
        self.volume = self.ours.post("/v1/volumes", json={"name": "mine"}).json()["id"]
        point = self.ours.post(f"/v1/volumes/{self.volume}/snapshots", json={})
        self.point = point.json()["id"]
        self.database = tcp.server.add_database("mine", "ours")
        self.ids = {
            "database": self.database,
            "db": self.database,
            "change_id": self.change,
            "sandbox": self.sandbox,
            "drill_id": self.drill,
            "schedule_id": self.schedule,
            "sandbox_id": self.sandbox,
            "snap": self.snapshot,
            "snapshot_id": self.snapshot,
            "volume": self.volume,
            "snapshot": self.point,
        }


def _http(tcp: Tcp, token: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=tcp.url, headers=headers, timeout=20)


@pytest.fixture(scope="module")
def world(tcp: Tcp) -> Iterator[World]:
    found = World(tcp)
    yield found
    found.ours.close()
    found.theirs.close()


def test_every_route_says_its_scope() -> None:
    names = {operation["operationId"] for _, _, operation in ROUTES}
    assert set(listed()) == names, "list each route in torpor/server/scopes.py, once"


def test_every_web_socket_says_its_scope(tcp: Tcp) -> None:
    app = create_app(tcp.server.engine)
    found = set()
    pending = list(app.routes)
    while pending:
        route = pending.pop()
        pending += getattr(getattr(route, "original_router", None), "routes", ())
        if isinstance(route, APIWebSocketRoute):
            found.add(route.name)
    assert found == set(SOCKETS), "list each WebSocket in torpor/server/scopes.py"


def test_what_a_path_names_is_known() -> None:
    named = {name for _, path, _ in ROUTES for name in re.findall(r"{(\w+)}", path)}
    assert named <= set(OWNED) | UNOWNED, "say in torpor/server/guard.py whose it is"
    assert set(OWNED) <= named
    assert not set(OWNED) & UNOWNED


OWN = [route for route in ROUTES if any(f"{{{name}}}" in route[1] for name in OWNED)]


@pytest.mark.parametrize("route", OWN, ids=lambda route: route[2]["operationId"])
def test_ids_of_another_workspace_are_unknown(
    world: World, route: tuple[str, str, dict[str, Any]]
) -> None:
    method, path, operation = route
    unknown = {name: new_id(PREFIXES[name]) for name in PREFIXES}
    answers = []
    for ids in (world.ids, unknown):
        reply = world.theirs.request(
            method, _filled(path, ids), params=_query(operation, ids), **_body(operation, ids)
        )
        text = reply.text
        for value in ids.values():
            text = text.replace(value, "ID")
        answers.append((reply.status_code, text))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def test_ids_in_bodies_are_unknown_too(world: World, tcp: Tcp) -> None:
    theirs = world.theirs.post("/v1/sandboxes", json={"template": "base"}).json()["id"]
    for snapshot in (world.snapshot, new_id("snap")):
        made = world.theirs.post("/v1/sandboxes", json={"from_snapshot": snapshot})
        back = world.theirs.post(f"/v1/sandboxes/{theirs}/rollback", json={"snapshot_id": snapshot})
        assert (made.status_code, back.status_code) == (404, 404)
    world.theirs.delete(f"/v1/sandboxes/{theirs}")


LISTS = [r for r in ROUTES if r[0] == "GET" and "{" not in r[1]]


@pytest.mark.parametrize("route", LISTS, ids=lambda route: route[2]["operationId"])
def test_no_list_shows_what_is_elsewhere(
    world: World, route: tuple[str, str, dict[str, Any]]
) -> None:
    if any(p["in"] == "query" and p.get("required") for p in route[2].get("parameters", ())):
        pytest.skip("it needs a query")
    if "text/event-stream" in route[2]["responses"]["200"].get("content", {}):
        pytest.skip("it does not end; its own tests look at it")
    if "agent" in {p["name"] for p in route[2].get("parameters", ())}:
        pytest.skip("it is about the agent that it names; a test of its own looks at it")
    ours, theirs = world.ours.get(route[1]), world.theirs.get(route[1])
    assert theirs.status_code in (200, 403)
    for found in (world.sandbox, world.snapshot, world.change, "mine", "ours"):
        assert found not in theirs.text
    for params in ({"sandbox_id": world.sandbox}, {"metadata.mine": "yes"}):
        again = world.theirs.get(route[1], params=params)
        assert world.snapshot not in again.text
        assert '"label":"mine"' not in again.text
    assert ours.status_code in (200, 403)


def test_the_owner_sees_it_all(world: World) -> None:
    assert world.sandbox in world.ours.get("/v1/sandboxes").text
    assert world.snapshot in world.ours.get("/v1/snapshots").text
    assert world.change in world.ours.get("/v1/changes").text
    assert world.snapshot in world.ours.get("/v1/layers").text
    assert world.sandbox in world.ours.get("/v1/tree").text
    assert "elsewhere" not in world.ours.get("/v1/layers").text


def test_newer_changes_of_others_hide_none_of_ours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.server.routes.changes._AT_ONCE", 1)
    sandbox = world.theirs.post("/v1/sandboxes", json={"template": "base"}).json()["id"]
    change = {"reason": "theirs", "command": "true", "inventory": False}
    for _ in range(3):
        made = world.theirs.post(f"/v1/sandboxes/{sandbox}/changes", json=change).json()["id"]
        world.theirs.get(f"/v1/changes/{made}/events")  # it is over
    found = world.ours.get("/v1/changes", params={"limit": 1}).json()["changes"]
    assert [c["id"] for c in found] == [world.change]
    assert len(world.theirs.get("/v1/changes", params={"limit": 2}).json()["changes"]) == 2
    for limit in (0, -1, 1001):
        reply = world.ours.get("/v1/changes", params={"limit": limit})
        assert (reply.status_code, reply.json()["code"]) == (400, "request.invalid")
    world.theirs.delete(f"/v1/sandboxes/{sandbox}")


def test_a_template_s_own_snapshot_is_for_all(world: World, tcp: Tcp) -> None:
    from dataclasses import replace

    from torpor.model import SnapshotId

    point = tcp.server.engine.points[SnapshotId(world.snapshot)]
    own = replace(
        point.info, id=SnapshotId(new_id("snap")), reason="template", sandbox_id=None,
        workspace="default", label=None, metadata={},
    )  # fmt: skip
    tcp.server.engine.points[own.id] = replace(point, info=own)
    try:
        made = world.theirs.post(f"/v1/snapshots/{own.id}/restore")
        assert made.status_code == 201, made.text
        assert made.json()["workspace"] == "theirs"
        user = _http(tcp, tcp.token("user-of-theirs", Scope.USE, "theirs"))
        with user:
            assert user.delete(f"/v1/snapshots/{own.id}").status_code == 403
        layers = world.theirs.get("/v1/layers")
        assert world.snapshot not in layers.text
        assert "elsewhere" in layers.text
        world.theirs.delete(f"/v1/sandboxes/{made.json()['id']}")
    finally:
        del tcp.server.engine.points[own.id]


def test_forks_and_restores_stay_in_the_workspace(world: World) -> None:
    for path in (
        f"/v1/sandboxes/{world.sandbox}/fork",
        f"/v1/snapshots/{world.snapshot}/fork",
        f"/v1/snapshots/{world.snapshot}/restore",
    ):
        made = world.ours.post(path).json()
        info = made.get("sandbox") or made
        assert info["workspace"] == "ours"
        assert world.theirs.get(f"/v1/sandboxes/{info['id']}").status_code == 404
        world.ours.delete(f"/v1/sandboxes/{info['id']}")


def test_the_host_is_seen_from_default_only(tcp: Tcp, world: World) -> None:
    assert world.theirs.get("/v1/doctor").status_code == 403
    with _http(tcp, tcp.token("watcher", Scope.READ)) as http:
        assert http.get("/v1/doctor").status_code == 200


def test_an_admin_makes_tokens_for_its_own_workspace_only(world: World) -> None:
    body = {"name": "more", "scope": "use"}
    made = world.ours.post("/v1/tokens", json=body)
    assert made.status_code == 201
    assert made.json()["workspace"] == "ours"
    assert made.json()["token"].startswith(made.json()["prefix"])
    other = world.ours.post("/v1/tokens", json={**body, "workspace": "theirs"})
    assert other.status_code == 403
    assert world.theirs.delete("/v1/tokens/more").status_code == 404
    assert world.ours.post("/v1/tokens", json=body).status_code == 409
    assert world.ours.delete("/v1/tokens/more").status_code == 204


def test_only_admin_routes_make_power() -> None:
    for name in ("build_template", "create_token", "open_listener"):
        assert name in ADMIN
    assert not Principal(Scope.USE, "w").scope.covers(Scope.ADMIN)
    assert Principal(Scope.ADMIN, "w").scope.covers(Scope.READ)


def _filled(path: str, ids: dict[str, str]) -> str:
    others = {
        "session": "ctx_x",
        "exec_id": "exec_x",
        "context_id": "ctx_x",
        "hold_id": "h",
        "name": "base",
        "port": "80",
        "token": "t",
    }
    return path.format_map({**others, **ids})


def _query(operation: dict[str, Any], ids: dict[str, str]) -> dict[str, str]:
    found = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "query" and parameter.get("required"):
            found[parameter["name"]] = ids.get(parameter["name"], "/x")
    return found


def _body(operation: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        body = json.dumps(BODIES.get(operation["operationId"], {}))
        for name, value in ids.items():
            body = body.replace(f"{{{name}}}", value)
        return {"json": json.loads(body)}
    return {"content": b"x"} if content else {}


def _memory(http: httpx.Client, method: str, verb: str, status: int = 200, **params: Any) -> Any:
    how = {"params": params} if method == "GET" else {"json": params}
    reply = http.request(method, f"/v1/memory/{verb}", **how)  # type: ignore[arg-type]
    assert reply.status_code == status, reply.text
    return reply.json()


def test_agents_of_one_name_in_two_workspaces_are_two(world: World, tcp: Tcp) -> None:
    hermes = {"agent": "hermes-1"}
    default = _http(tcp, tcp.token(new_id("tok")[4:], Scope.ADMIN, "default"))
    for http, text in ((world.ours, "ours"), (world.theirs, "theirs"), (default, "default")):
        _memory(http, "POST", "record", content=text, **hermes)
    for http, text in ((world.ours, "ours"), (world.theirs, "theirs"), (default, "default")):
        (episode,) = _memory(http, "GET", "episodes", **hermes)["items"]
        assert episode["content"] == text
        (space,) = _memory(http, "GET", "spaces")["items"]
        assert space["agent"] == "hermes-1"
        assert _memory(http, "GET", "space", **hermes)["agent"] == "hermes-1"
    ours = _memory(world.ours, "GET", "space", **hermes)
    (episode,) = _memory(world.ours, "GET", "episodes", **hermes)["items"]
    for wrong in ({"branch": ours["branch"], **hermes}, {"agent": "nobody"}):
        _memory(world.theirs, "GET", "episodes", 404, **wrong)
    _memory(world.theirs, "GET", "episode", 404, episode_id=episode["id"], **hermes)
    _memory(world.theirs, "GET", "plan_merge", 404, source=ours["branch"], **hermes)
    _memory(world.theirs, "GET", "episodes", 404, sandbox_id=world.sandbox)
    _memory(world.theirs, "GET", "episodes", 400, agent="ours::hermes-1")
    _memory(default, "GET", "episodes", 400, agent="ours::hermes-1")
    _memory(world.ours, "POST", "watermark", snapshot_id="point", **hermes)
    _memory(world.theirs, "POST", "fork", 404, new_agent="spy", snapshot_id="point", **hermes)
    child = _memory(world.ours, "POST", "fork", new_agent="child", **hermes)
    assert child["agent"] == "child"
    assert len(_memory(world.ours, "GET", "spaces")["items"]) == 2
    for http in (world.ours, world.theirs):
        assert http.get("/v1/memory/verify_chain").status_code == 403
        assert http.get("/v1/memory/export").status_code == 403
    assert _memory(default, "GET", "verify_chain")["ok"]
    named = world.ours.post("/v1/sandboxes", json={"template": "base", "metadata": hermes})
    found = _memory(world.ours, "GET", "space", sandbox_id=named.json()["id"])
    assert found["branch"] == ours["branch"]
    wrong = {"template": "base", "metadata": {"agent": "theirs::hermes-1"}}
    if world.ours.post("/v1/sandboxes", json=wrong).status_code == 201:
        pytest.fail("a sandbox may name an agent of another workspace")
    default.close()
