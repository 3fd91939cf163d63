"""/v1/snapshots and what makes sandboxes of them."""

from __future__ import annotations

import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.serving import ServerThread
from torpor.model import SandboxSpec
from torpor.server.wire import LifecycleWire, SandboxWire
from torpor.server.wire_snapshots import (
    ForkWire,
    PromoteWire,
    SnapshotListWire,
    SnapshotWire,
    VerifyWire,
)

UNKNOWN_SANDBOX = "/v1/sandboxes/sbx_00000000000000000000"
UNKNOWN = "/v1/snapshots/snap_00000000000000000000"
EMPTY = {"content-length": "0"}


@pytest.fixture
def sandbox(rest: Rest) -> str:
    return rest.create(env={"A": "1"})


@pytest.fixture
def snapshot(rest: Rest, sandbox: str) -> str:
    path = f"/v1/sandboxes/{sandbox}/snapshots"
    found: str = rest.ok("POST", path, json={"label": "first"}, status=201)["id"]
    return found


def test_take_list_get(rest: Rest, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/snapshots"
    body = {"label": "pré", "consistency": "crash", "metadata": {"who": "me"}}
    first = rest.ok("POST", path, json=body, status=201)
    SnapshotWire.model_validate(first)
    assert first["id"] == first["snapshot_id"]
    assert (first["label"], first["consistency"], first["sandbox_id"]) == ("pré", "crash", sandbox)
    assert (first["reason"], first["metadata"], first["parent"]) == (
        "snapshot",
        {"who": "me"},
        None,
    )
    second = rest.ok("POST", path, headers=EMPTY, status=201)
    assert (second["parent"], second["label"], second["consistency"]) == (
        first["id"],
        None,
        "filesystem",
    )
    found = rest.ok("GET", path)
    SnapshotListWire.model_validate(found)
    assert found["snapshots"] == [second, first]
    other = rest.create()
    third = rest.ok("POST", f"/v1/sandboxes/{other}/snapshots", status=201)
    assert rest.ok("GET", "/v1/snapshots")["snapshots"] == [third, second, first]
    params = {"sandbox_id": sandbox}
    assert rest.ok("GET", "/v1/snapshots", params=params)["snapshots"] == [second, first]
    assert rest.ok("GET", f"/v1/snapshots/{first['id']}") == first
    rest.ok("DELETE", f"/v1/sandboxes/{sandbox}", status=204)
    assert rest.ok("GET", path)["snapshots"] == [second, first]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"label": "first"}, 409, "object.conflict"),
        ({"consistency": "perfect"}, 400, "request.invalid"),
        ({"consistency": "filesystem", "quiesce": {}}, 400, "request.invalid"),
        ({"name": "x"}, 400, "request.invalid"),
        ([], 400, "request.invalid"),
    ],
)
def test_take_refuses(
    rest: Rest, sandbox: str, snapshot: str, body: object, status: int, code: str
) -> None:
    rest.fails("POST", f"/v1/sandboxes/{sandbox}/snapshots", status, code, json=body)
    assert [s["id"] for s in rest.ok("GET", "/v1/snapshots")["snapshots"]] == [snapshot]


def test_what_cannot_be_quieted_is_not_taken(
    rest: Rest, sandbox: str, server: ServerThread
) -> None:
    server.engine.will_not_freeze = True
    path = f"/v1/sandboxes/{sandbox}"
    rest.fails("POST", f"{path}/snapshots", 502, "guest.failed")
    rest.fails("POST", f"{path}/fork", 502, "guest.failed", json={"count": 3})
    rest.fails("POST", f"{path}/hibernate", 502, "guest.failed")
    assert rest.ok("GET", path)["state"] == "running"
    assert rest.ok("GET", "/v1/snapshots")["snapshots"] == []


def test_delete(rest: Rest, snapshot: str) -> None:
    body = rest.ok("DELETE", f"/v1/snapshots/{snapshot}")
    assert body == {"deleted": snapshot, "freed_bytes": 0}
    rest.fails("DELETE", f"/v1/snapshots/{snapshot}", 404, "object.not_found")


def test_delete_frees_what_nobody_needs(rest: Rest, sandbox: str, snapshot: str) -> None:
    rest.ok("DELETE", f"/v1/sandboxes/{sandbox}", status=204)
    assert rest.ok("DELETE", f"/v1/snapshots/{snapshot}")["freed_bytes"] == 1 << 20


def test_a_snapshot_that_a_sandbox_sleeps_at_stays(rest: Rest, sandbox: str) -> None:
    asleep = rest.ok("POST", f"/v1/sandboxes/{sandbox}/hibernate", headers=EMPTY)
    body = rest.fails("DELETE", f"/v1/snapshots/{asleep['id']}", 409, "object.conflict")
    assert body["facts"]["sandboxes"] == [sandbox]


def test_verify(rest: Rest, snapshot: str, server: ServerThread) -> None:
    path = f"/v1/snapshots/{snapshot}/verify"
    assert rest.ok("POST", path, headers=EMPTY) == {"ok": True, "damage": []}
    layer = server.engine.points[snapshot].layers[0]  # type: ignore[index]
    server.engine.damaged.add(layer)
    body = rest.ok("POST", path)
    VerifyWire.model_validate(body)
    assert body["ok"] is False
    assert (body["damage"][0]["layer"], body["damage"][0]["dependents"]) == (layer, [snapshot])
    rest.fails("POST", f"/v1/snapshots/{snapshot}/restore", 500, "data.damaged")


def test_restore(rest: Rest, sandbox: str, snapshot: str) -> None:
    path = f"/v1/snapshots/{snapshot}/restore"
    body = {
        "env": {"B": "2"},
        "metadata": {"who": "me"},
        "network": "none",
        "ttl_seconds": 60,
        "on_timeout": "hibernate",
        "idle_seconds": 5,
    }
    found = rest.ok("POST", path, json=body, status=201)
    SandboxWire.model_validate(found)
    assert (found["boot_mode"], found["state"], found["network"]) == ("restore", "running", "none")
    assert (found["parent_snapshot"], found["metadata"]) == (snapshot, {"who": "me"})
    assert (found["ttl_seconds"], found["on_timeout"], found["idle_seconds"]) == (
        60,
        "hibernate",
        5,
    )
    assert found["id"] != sandbox
    assert rest.ok("POST", path, headers=EMPTY, status=201)["network"] == "user"
    rest.fails("POST", path, 400, "request.invalid", json={"ram_mib": 5})


def test_restore_where_the_ram_cannot_go_on(
    rest: Rest, snapshot: str, server: ServerThread
) -> None:
    server.engine.foreign.add(snapshot)  # type: ignore[arg-type]
    path = f"/v1/snapshots/{snapshot}/restore"
    assert "cold" in rest.fails("POST", path, 409, "snapshot.unusable")["hint"]
    assert rest.ok("POST", path, json={"allow_cold": True}, status=201)["boot_mode"] == "cold"


def test_create_from_a_snapshot(rest: Rest, snapshot: str) -> None:
    body = {"template": "never-heard-of", "from_snapshot": snapshot, "metadata": {"a": "b"}}
    found = rest.ok("POST", "/v1/sandboxes", json=body, status=201)
    assert (found["template"], found["boot_mode"]) == ("base", "restore")
    assert (found["parent_snapshot"], found["metadata"]) == (snapshot, {"a": "b"})
    del body["template"]
    rest.ok("POST", "/v1/sandboxes", json=body, status=201)
    for size in ("vcpus", "ram_mib", "disk_gib"):
        rest.fails("POST", "/v1/sandboxes", 400, "request.invalid", json={**body, size: 8})
    body["from_snapshot"] = "snap_00000000000000000000"
    rest.fails("POST", "/v1/sandboxes", 404, "object.not_found", json=body)


def test_rollback(rest: Rest, sandbox: str, snapshot: str) -> None:
    path = f"/v1/sandboxes/{sandbox}"
    rest.ok("PUT", f"{path}/fs?path=/workspace/x", content=b"x")
    found = rest.ok("POST", f"{path}/rollback", json={"snapshot_id": snapshot})
    assert (found["id"], found["state"], found["generation"]) == (sandbox, "running", 2)
    assert found["parent_snapshot"] == snapshot
    rest.fails("GET", f"{path}/fs?path=/workspace/x", 404, "object.not_found")
    rest.ok("POST", f"{path}/hibernate")
    assert rest.ok("POST", f"{path}/rollback", json={"snapshot_id": snapshot})["generation"] == 3
    cold = {"snapshot_id": snapshot, "memory": "cold"}
    found = rest.ok("POST", f"{path}/rollback", json=cold)
    assert (found["boot_mode"], found["generation"]) == ("cold", 4)
    rest.fails("POST", f"{path}/rollback", 400, "request.invalid", json={**cold, "memory": "warm"})
    rest.fails("POST", f"{path}/rollback", 400, "request.invalid")
    rest.fails("POST", f"{path}/rollback", 400, "request.invalid", json={})
    unknown = {"snapshot_id": "snap_00000000000000000000"}
    rest.fails("POST", f"{path}/rollback", 404, "object.not_found", json=unknown)
    other = rest.create(template="agent")
    foreign = rest.ok("POST", f"/v1/sandboxes/{other}/snapshots", status=201)["id"]
    assert rest.ok("GET", path)["state"] == "running"
    rest.ok("DELETE", path, status=204)
    body = {"snapshot_id": foreign}
    rest.fails("POST", f"{path}/rollback", 409, "object.wrong_state", json=body)


def test_hibernate_and_wake(rest: Rest, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}"
    asleep = rest.ok("POST", f"{path}/hibernate", headers=EMPTY)
    SnapshotWire.model_validate(asleep)
    assert (asleep["reason"], asleep["sandbox_id"]) == ("hibernate", sandbox)
    assert rest.ok("POST", f"{path}/hibernate") == asleep
    for request in ("", "/lifecycle", "/snapshots", "/logs"):
        assert rest.http.get(path + request).status_code == 200
    taken = rest.ok("POST", f"{path}/snapshots", status=201)
    assert rest.ok("GET", path)["state"] == "hibernated"
    woken = rest.ok("POST", f"{path}/wake", headers=EMPTY)
    assert (woken["state"], woken["boot_mode"], woken["generation"]) == ("running", "resume", 2)
    assert rest.ok("POST", f"{path}/wake") == woken
    rest.ok("DELETE", f"/v1/snapshots/{taken['id']}")
    rest.ok("POST", f"{path}/hibernate")
    assert rest.ok("POST", f"{path}/exec", json={"cmd": "echo hi"})["stdout"] == "hi\n"
    assert rest.ok("GET", path)["state"] == "running"
    rest.ok("DELETE", path, status=204)
    rest.fails("POST", f"{path}/wake", 409, "object.wrong_state")
    rest.fails("POST", f"{path}/hibernate", 409, "object.wrong_state")


def test_idle_seconds(rest: Rest) -> None:
    sandbox = rest.create(idle_seconds=30, ttl_seconds=60)
    path = f"/v1/sandboxes/{sandbox}/lifecycle"
    body = rest.ok("PATCH", path, json={"idle_seconds": 40})
    LifecycleWire.model_validate(body)
    assert (body["idle_seconds"], body["ttl_seconds"]) == (40, 60)
    both = {"idle_seconds": None, "ttl_seconds": 5, "on_timeout": "hibernate"}
    body = rest.ok("PATCH", path, json=both)
    assert (body["idle_seconds"], body["ttl_seconds"]) == (None, 5)
    assert rest.ok("GET", path) == body
    rest.fails("PATCH", path, 400, "request.invalid", json={"idle_seconds": 0})
    rest.fails("PATCH", path, 400, "request.invalid", json={"on_timeout": "delete"})


def test_fork_one(rest: Rest, sandbox: str, server: ServerThread) -> None:
    path = f"/v1/sandboxes/{sandbox}/fork"
    body = rest.ok("POST", path, headers=EMPTY, status=201)
    ForkWire.model_validate(body)
    made = body["sandbox"]
    SandboxWire.model_validate(made)
    assert body["results"] == [{"sandbox": made}]
    assert body["children"] == [made]
    assert made["metadata"] == {"fork_tree_id": body["tree_id"], "fork_parent_id": sandbox}
    assert (body["parent_id"], body["snapshot_id"]) == (sandbox, made["parent_snapshot"])
    server.engine.room = 0
    rest.fails("POST", path, 507, "host.insufficient_resources")


def test_fork_many_of_which_some_fail(rest: Rest, sandbox: str, server: ServerThread) -> None:
    server.engine.room = 2
    path = f"/v1/sandboxes/{sandbox}/fork"
    wanted = {"count": 3, "metadata": {"a": "b", "fork_tree_id": "forged"}, "env": {"X": "1"}}
    body = rest.ok("POST", path, json=wanted, status=201)
    assert [set(result) for result in body["results"]] == [{"sandbox"}, {"sandbox"}, {"error"}]
    assert body["results"][2]["error"]["code"] == "host.insufficient_resources"
    assert body["errors"] == [{"index": 2, "err": body["results"][2]["error"]["error"]}]
    assert body["sandbox"] is None
    assert len({child["id"] for child in body["children"]}) == 2
    assert {child["metadata"]["fork_tree_id"] for child in body["children"]} == {body["tree_id"]}
    assert body["tree_id"] != "forged"
    body = rest.ok("POST", path, json={"count": 1}, status=201)
    assert (body["sandbox"], body["children"], len(body["results"])) == (None, [], 1)
    rest.fails("POST", f"{path}-tree", 507, "host.insufficient_resources", json={"count": 2})
    for count in (0, 101):
        rest.fails("POST", path, 400, "request.invalid", json={"count": count})


def test_fork_a_snapshot(rest: Rest, sandbox: str, snapshot: str) -> None:
    path = f"/v1/snapshots/{snapshot}/fork"
    body = rest.ok("POST", path, json={"count": 2}, status=201)
    assert (body["tree_id"], body["parent_id"], body["snapshot_id"]) == (
        snapshot,
        sandbox,
        snapshot,
    )
    assert rest.ok("POST", path, status=201)["sandbox"]["parent_snapshot"] == snapshot
    rest.fails("POST", f"/v1/snapshots/{sandbox}/fork", 404, "object.not_found")
    assert len(rest.ok("GET", "/v1/snapshots")["snapshots"]) == 1


def test_promote(rest: Rest, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}"
    ids = [
        c["id"]
        for c in rest.ok("POST", f"{path}/fork-tree", json={"count": 3}, status=201)["children"]
    ]
    stranger = rest.ok("POST", f"{path}/fork", status=201)["sandbox"]["id"]
    winner = f"/v1/sandboxes/{ids[1]}"
    body = rest.ok("POST", f"{winner}/promote", headers=EMPTY)
    PromoteWire.model_validate(body)
    assert (body["winner"], body["deleted"], body["failures"]) == (ids[1], [], {})
    wrong = {"cleanup_siblings": True, "tree_id": "tree_other"}
    rest.fails("POST", f"{winner}/promote", 400, "request.invalid", json=wrong)
    right = {"cleanup_siblings": True, "tree_id": body["tree_id"]}
    body = rest.ok("POST", f"{winner}/promote", json=right)
    assert sorted(body["deleted"]) == sorted([ids[0], ids[2]])
    lives = [item["id"] for item in rest.ok("GET", "/v1/sandboxes")["items"]]
    assert sorted(lives) == sorted([sandbox, ids[1], stranger])
    assert rest.ok("POST", f"{winner}/promote", json=right)["deleted"] == []
    cleanup = {"cleanup_siblings": True}
    rest.fails("POST", f"{path}/promote", 400, "request.invalid", json=cleanup)
    rest.ok("DELETE", winner, status=204)
    rest.fails("POST", f"{winner}/promote", 409, "object.wrong_state", json=cleanup)


def test_promote_takes_none_of_another_workspace_for_a_sibling(
    rest: Rest, sandbox: str, server: ServerThread
) -> None:
    made = rest.ok("POST", f"/v1/sandboxes/{sandbox}/fork", status=201)
    spec = SandboxSpec(
        template="base", workspace="other", metadata={"fork_tree_id": made["tree_id"]}
    )
    other = server.run(server.engine.create(spec)).id
    path = f"/v1/sandboxes/{made['sandbox']['id']}/promote"
    assert rest.ok("POST", path, json={"cleanup_siblings": True})["deleted"] == []
    assert rest.ok("GET", f"/v1/sandboxes/{other}")["state"] == "running"


def test_promote_says_what_it_could_not_delete(
    rest: Rest, sandbox: str, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torpor.errors import VmmFailed

    path = f"/v1/sandboxes/{sandbox}"
    ids = [
        c["id"] for c in rest.ok("POST", f"{path}/fork", json={"count": 3}, status=201)["children"]
    ]
    delete = server.engine.delete

    async def stubborn(sandbox_id: str) -> object:
        if sandbox_id == ids[1]:
            raise VmmFailed("it will not go")
        return await delete(sandbox_id)  # type: ignore[arg-type]

    monkeypatch.setattr(server.engine, "delete", stubborn)
    body = rest.ok("POST", f"/v1/sandboxes/{ids[0]}/promote", json={"cleanup_siblings": True})
    assert (body["deleted"], body["failures"]) == ([ids[2]], {ids[1]: "it will not go"})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{UNKNOWN_SANDBOX}/snapshots"),
        ("GET", f"{UNKNOWN_SANDBOX}/snapshots"),
        ("POST", f"{UNKNOWN_SANDBOX}/fork"),
        ("POST", f"{UNKNOWN_SANDBOX}/fork-tree"),
        ("POST", f"{UNKNOWN_SANDBOX}/promote"),
        ("POST", f"{UNKNOWN_SANDBOX}/hibernate"),
        ("POST", f"{UNKNOWN_SANDBOX}/wake"),
        ("GET", UNKNOWN),
        ("DELETE", UNKNOWN),
        ("POST", f"{UNKNOWN}/verify"),
        ("POST", f"{UNKNOWN}/restore"),
        ("POST", f"{UNKNOWN}/fork"),
        ("GET", "/v1/snapshots/..%2f..%2fetc"),
    ],
)
def test_what_is_not_there_is_404(rest: Rest, method: str, path: str) -> None:
    rest.fails(method, path, 404, "object.not_found")


def test_nobody_says_that_a_sandbox_is_a_drills_clone(
    rest: Rest, sandbox: str, snapshot: str
) -> None:
    """Such a one is counted by no quota."""
    for path in (
        "/v1/sandboxes",
        f"/v1/snapshots/{snapshot}/restore",
        f"/v1/snapshots/{snapshot}/fork",
        f"/v1/sandboxes/{sandbox}/fork",
    ):
        body = {"metadata": {"torpor.drill": "drl_1"}}
        rest.fails("POST", path, 400, "request.invalid", json=body)
    assert [s["id"] for s in rest.ok("GET", "/v1/sandboxes")["items"]] == [sandbox]
