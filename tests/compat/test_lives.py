"""Lives, forks, snapshots and ports through PandaStack's own client; the machine is a fake one."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

import pandastack
import pytest
import requests
from pandastack import Sandbox
from pandastack.exceptions import (
    BadRequestError,
    NotFoundError,
    ServerError,
)

from tests.compat.failing import fails_with
from tests.fakes.serving import Tcp
from torpor.errors import (
    InsufficientResources,
)
from torpor.model_access import Scope

# ---- lives ----


def test_a_sandbox_has_all_its_fields(panda: pandastack.Client, box: Sandbox) -> None:
    raw = panda.session.get(f"{panda.api_url}/v1/sandboxes/{box.id}").json()
    assert isinstance(raw["cpu"], int)
    assert isinstance(raw["memory_mb"], int)
    found = panda.sandboxes.get(box.id)
    assert (found.template, found.status, found.metadata) == ("base", "running", {"a": "b"})
    assert found.created_at
    assert (found.boot_ms, found.boot_mode) == (12, "cold")
    assert found.persistent is False


def test_wake_is_idempotent_and_sleepers_are_listed_and_woken(
    panda: pandastack.Client, box: Sandbox
) -> None:
    box.wake()
    box.hibernate()
    box.hibernate()
    assert [(s.id, s.status) for s in panda.sandboxes.list()] == [(box.id, "hibernated")]
    assert box.exec("echo up").stdout == "up\n"
    assert box.refresh().status == "running"
    box.hibernate()
    box.filesystem.write("/x", b"1")
    assert box.refresh().status == "running"
    box.wake()


def test_pause_and_resume(box: Sandbox) -> None:
    box.pause()
    assert box.refresh().status == "paused"
    with pytest.raises(BadRequestError):
        box.exec("true")
    box.resume()
    assert box.refresh().status == "running"


def test_lifecycle(panda: pandastack.Client) -> None:
    made = panda.sandboxes.create(template="base", ttl_seconds=600, persistent=True)
    assert made.persistent is True
    found = made.lifecycle()
    assert (found["ttl_seconds"], found["persistent"]) == (600, True)
    assert made.set_ttl(900)["ttl_seconds"] == 900
    assert made.set_persistent(False)["persistent"] is False
    assert made.lifecycle()["ttl_seconds"] == 900


# ---- forks ----


def test_fork_returns_a_whole_sandbox(panda: pandastack.Client, box: Sandbox) -> None:
    fork = box.fork(metadata={"k": "v"})
    assert fork.id != box.id
    assert (fork.template, fork.cpu, fork.memory_mb) == (box.template, box.cpu, box.memory_mb)
    assert fork.metadata["k"] == "v"
    assert fork.metadata["fork_parent_id"] == box.id
    assert panda.sandboxes.get(fork.id).metadata == fork.metadata


def test_fork_tree_and_promote_without_a_tree(panda: pandastack.Client, box: Sandbox) -> None:
    forged = {"fork_tree_id": "forged", "fork_parent_id": "forged"}
    children = box.fork_tree(3, metadata=forged)
    assert len(children) == 3
    trees = {child.metadata["fork_tree_id"] for child in children}
    assert len(trees) == 1
    assert "forged" not in trees
    assert {child.metadata["fork_parent_id"] for child in children} == {box.id}
    assert all((c.cpu, c.memory_mb) == (box.cpu, box.memory_mb) for c in children)
    winner, *losers = children
    found = winner.promote(cleanup_siblings=True)
    assert found["winner"] == winner.id
    assert found["tree_id"] in trees
    assert set(found["deleted"]) == {loser.id for loser in losers}
    assert found["failures"] == {}
    assert {s.id for s in panda.sandboxes.list()} == {box.id, winner.id}


def test_promote_spares_other_trees(panda: pandastack.Client, box: Sandbox) -> None:
    one, two = box.fork_tree(2), box.fork_tree(2)
    with pytest.raises(BadRequestError, match="tree"):
        one[0].promote(cleanup_siblings=True, tree_id=two[0].metadata["fork_tree_id"])
    assert len(panda.sandboxes.list()) == 5


def test_part_of_a_tree_and_none_of_it(
    tcp: Tcp, monkeypatch: pytest.MonkeyPatch, panda: pandastack.Client, box: Sandbox
) -> None:
    full = InsufficientResources("no memory")
    fails_with(monkeypatch, tcp.server.engine, "restore", full)
    assert len(box.fork_tree(3)) == 2
    panda.max_create_retry_seconds = 0
    calls = fails_with(monkeypatch, tcp.server.engine, "restore", full, full)
    with pytest.raises(ServerError, match="no memory"):
        box.fork_tree(2)
    assert len(calls) == 2


def test_explore_knows_its_tree_and_ends_its_orphans(
    panda: pandastack.Client, box: Sandbox
) -> None:
    children = box.fork_tree(2, metadata={"explore": "1", "explore_ttl": "600"})
    assert children[0].lifecycle()["ttl_seconds"] == 600
    children[0].promote(cleanup_siblings=True)
    assert children[0].lifecycle()["ttl_seconds"] is None
    result = box.explore(["exit 3", "echo PASS"], capture_files=False)
    assert result.winner is not None
    assert result.tree_id
    assert result.errors == []
    assert result.reap_failures == {}
    assert {s.id for s in panda.sandboxes.list()} == {box.id, children[0].id, result.winner.id}


# ---- snapshots ----


def test_snapshots(panda: pandastack.Client, box: Sandbox) -> None:
    first, second = box.snapshot(), box.snapshot()
    box.fork()
    box.hibernate()
    assert [s["id"] for s in panda.snapshots.list()] == [second, first]
    assert [s["id"] for s in panda.snapshots.list(sandbox_id=box.id)] == [second, first]
    found = panda.snapshots.get(first)
    assert (found["sandbox_id"], found["template"]) == (box.id, "base")
    assert found["size_bytes"] >= 0
    again = panda.sandboxes.create(from_snapshot=first)
    assert again.from_snapshot == first
    panda.snapshots.delete(second)
    with pytest.raises(NotFoundError):
        panda.snapshots.get(second)
    with pytest.raises(NotFoundError):
        panda.sandboxes.create(from_snapshot=second)


# ---- ports ----


def test_ports_that_listen_have_urls(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the fake machine's loopback is ours
        port = listener.getsockname()[1]
        assert box.preview_urls()[port].startswith(f"https://{port}-{box.id}.")
    assert port not in box.preview_urls()


def test_a_preview_url_wants_a_token(
    tcp: Tcp, tokens: dict[Scope, str], panda: pandastack.Client, box: Sandbox
) -> None:
    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None:
            pass

    panda.preview_host = tcp.url.replace("http://127.0.0.1", "localhost")  # type: ignore[attr-defined]
    with HTTPServer(("127.0.0.1", 0), Hello) as program:
        answering = threading.Thread(target=program.serve_forever, daemon=True)
        answering.start()
        name = urlsplit(box.preview_url(program.server_port, scheme="http")).netloc
        bare = requests.get(tcp.url, headers={"Host": name}, timeout=20)
        assert bare.status_code == 401
        headers = {"Host": name, "Authorization": f"Bearer {tokens[Scope.USE]}"}
        assert requests.get(tcp.url, headers=headers, timeout=20).text == "hello"
        program.shutdown()
        answering.join(10)
