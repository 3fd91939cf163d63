"""What PandaStack's own client relies on, word by word; its machine is a fake one."""

from __future__ import annotations

import base64
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

import pandastack
import pytest
import requests
from pandastack import CreateRetryEvent, Execution, Sandbox
from pandastack.exceptions import (
    AuthError,
    BadRequestError,
    CommandFailed,
    CreateCancelled,
    NotFoundError,
    SandboxTimeout,
    ServerError,
)

from tests.fakes.serving import Tcp
from torpor.errors import (
    CommandLost,
    GuestFailed,
    GuestUnreachable,
    InsufficientResources,
    InvalidRequest,
    OperationTimeout,
    RateLimited,
    TorporError,
)
from torpor.model_access import Scope
from torpor.server import protocol
from torpor.server.compat.contexts import CodeTold
from torpor.server.compat.words import RUN_AGAIN
from torpor.server.wire_contexts import CodeResultWire, CodeRunWire

RUN_AGAIN_TEXT = "; ".join(RUN_AGAIN)


@pytest.fixture
def box(panda: pandastack.Client) -> Sandbox:
    return panda.sandboxes.create(template="base", metadata={"a": "b"})


def fails_with(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, *errors: Any) -> list[int]:
    """Let a method raise these errors, one a call, and then do as it did; return a list that grows by each call."""
    left, real, calls = list(errors), getattr(target, name), []

    async def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if left:
            raise left.pop(0)
        return await real(*args, **kwargs)

    monkeypatch.setattr(target, name, failing)
    return calls


# ---- transport ----


def test_the_client_needs_nothing_but_its_two_variables(panda: pandastack.Client) -> None:
    assert panda.me()["workspace"] == "default"
    with Sandbox.create(template="base") as made:
        assert made.exec("echo hi", check=True).stdout == "hi\n"
    assert Sandbox.list() == []


@pytest.mark.parametrize("base", ["/v1", "/pandastack", "/pandastack/v1", "/"])
def test_every_way_to_write_the_base_works(
    tcp: Tcp, tokens: dict[Scope, str], panda: pandastack.Client, base: str
) -> None:
    client = pandastack.Client(api_url=tcp.url + base, api_key=tokens[Scope.READ])
    with client.session:
        assert client.sandboxes.list() == []


def test_without_the_clients_name_the_prefix_is_needed(
    tcp: Tcp, tokens: dict[Scope, str], box: Sandbox
) -> None:
    headers = {"Authorization": f"Bearer {tokens[Scope.READ]}"}
    plain = requests.get(f"{tcp.url}/v1/sandboxes/{box.id}", headers=headers, timeout=20)
    named = requests.get(f"{tcp.url}/pandastack/v1/sandboxes/{box.id}", headers=headers, timeout=20)
    assert "vcpus" in plain.json()
    assert "vcpus" not in named.json()
    assert named.json()["status"] == "running"


def test_the_worker_s_bare_listing_finds_its_fields_on_the_native_route(
    tcp: Tcp, tokens: dict[Scope, str], box: Sandbox
) -> None:
    """The managed-agents worker of the package asks for folders without the client's own headers."""
    box.filesystem.write("/w/a.txt", b"abc")
    reply = requests.get(
        f"{tcp.url}/v1/sandboxes/{box.id}/fs/dir",
        params={"path": "/w"},
        headers={"Authorization": f"Bearer {tokens[Scope.USE]}"},
        timeout=20,
    )
    entry = reply.json()["entries"][0]
    assert (entry["name"], entry["is_dir"], entry["size"]) == ("a.txt", False, 3)


def test_errors_are_flat_and_have_the_hint_in_their_text(panda: pandastack.Client) -> None:
    with pytest.raises(NotFoundError, match=r"there is no template 'nope' \(build it: torpor"):
        panda.sandboxes.create(template="nope")
    reply = panda.session.post(f"{panda.api_url}/v1/sandboxes", json={"ttl_seconds": "x"})
    assert reply.status_code == 400
    assert isinstance(reply.json()["error"], str)
    assert "ttl_seconds" in reply.json()["error"]


def test_a_wrong_token_is_an_auth_error(tcp: Tcp) -> None:
    client = pandastack.Client(api_url=tcp.url, api_key="torpor_wrong")
    with client.session, pytest.raises(AuthError, match="not valid"):
        client.sandboxes.list()


def test_scopes_hold(tcp: Tcp, tokens: dict[Scope, str], box: Sandbox) -> None:
    reader = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.READ])
    user = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.USE])
    with reader.session, user.session:
        assert reader.sandboxes.get(box.id).id == box.id
        with pytest.raises(BadRequestError, match="scope"):
            reader.sandboxes.get(box.id).exec("true")
        with pytest.raises(BadRequestError, match="scope"):
            user.tokens.create("more")


def test_another_workspace_sees_nothing(tcp: Tcp, box: Sandbox) -> None:
    other = pandastack.Client(
        api_url=tcp.url, api_key=tcp.token(f"x{time.monotonic_ns()}", Scope.ADMIN, "elsewhere")
    )
    with other.session:
        assert other.sandboxes.list() == []
        with pytest.raises(NotFoundError):
            other.sandboxes.get(box.id)


def test_what_is_missing_is_a_404_whatever_its_name(panda: pandastack.Client, box: Sandbox) -> None:
    box.kill()
    for name in (box.id, "sbx_00000000000000000000", "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"):
        with pytest.raises(NotFoundError):
            panda.sandboxes.get(name)
        with pytest.raises(NotFoundError):
            panda.sandboxes.delete(name)
    with pytest.raises(NotFoundError):
        panda.snapshots.get("snap_x")
    with pytest.raises(NotFoundError):
        box.exec("true")


def test_posts_without_a_body(panda: pandastack.Client, box: Sandbox) -> None:
    for path in ("pause", "resume", "snapshots", "hibernate", "wake", "fork", "promote"):
        reply = panda.session.post(f"{panda.api_url}/v1/sandboxes/{box.id}/{path}")
        assert reply.status_code in (200, 201, 204), (path, reply.text)


# ---- silence ----


def test_a_long_command_outlives_the_clients_patience(
    tcp: Tcp, tokens: dict[Scope, str], box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "INTERIM_S", 0.2)
    hasty = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.USE], timeout=1.0)
    with hasty.session:
        same = hasty.sandboxes.get(box.id)
        assert same.exec("sleep 2.5; echo done").stdout == "done\n"
        assert same.exec("echo again").stdout == "again\n"  # the connection is as good as before
        with pytest.raises(SandboxTimeout):
            same.exec("sleep 60", timeout_seconds=2)


def test_native_clients_get_no_interim_answers(
    tcp: Tcp, tokens: dict[Scope, str], box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "INTERIM_S", 0.2)
    with pytest.raises(requests.ReadTimeout):
        requests.post(
            f"{tcp.url}/v1/sandboxes/{box.id}/exec",
            json={"cmd": "sleep 2"},
            headers={"Authorization": f"Bearer {tokens[Scope.USE]}"},
            timeout=1,
        )


# ---- capacity ----


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (InsufficientResources("no memory"), 5),
        (RateLimited("too many", retry_after_seconds=1), 1),
    ],
)
def test_a_refusal_for_want_of_room_is_asked_again(
    tcp: Tcp,
    tokens: dict[Scope, str],
    monkeypatch: pytest.MonkeyPatch,
    panda: pandastack.Client,
    error: TorporError,
    wait: float,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("pandastack.client._sleep", waits.append)
    seen: list[CreateRetryEvent] = []
    client = pandastack.Client(
        api_url=tcp.url, api_key=tokens[Scope.USE], on_create_retry=seen.append
    )
    calls = fails_with(monkeypatch, tcp.server.engine, "create", error)
    with client.session:
        made = client.sandboxes.create(template="base")
    assert made.status == "running"
    assert len(calls) == 2
    assert [event.status_code for event in seen] == [error.http_status]
    assert waits[0] >= wait
    assert len(panda.sandboxes.list()) == 1


@pytest.mark.parametrize(
    "error", [OperationTimeout("it took too long"), GuestUnreachable("no answer")]
)
def test_what_may_have_been_begun_is_not_asked_again(
    tcp: Tcp, monkeypatch: pytest.MonkeyPatch, panda: pandastack.Client, error: TorporError
) -> None:
    calls = fails_with(monkeypatch, tcp.server.engine, "create", error)
    with pytest.raises(ServerError):
        panda.sandboxes.create(template="base")
    assert len(calls) == 1


def test_a_cancelled_retry_leaves_nothing(
    tcp: Tcp, monkeypatch: pytest.MonkeyPatch, panda: pandastack.Client
) -> None:
    stop = threading.Event()
    panda.on_create_retry = lambda _event: stop.set()
    fails_with(monkeypatch, tcp.server.engine, "create", InsufficientResources("no memory"))
    with pytest.raises(CreateCancelled):
        panda.sandboxes.create(template="base", cancel=stop)
    assert panda.sandboxes.list() == []


# ---- commands ----


def test_a_time_limit_is_a_sandbox_timeout_and_kills(tcp: Tcp, box: Sandbox) -> None:
    with pytest.raises(SandboxTimeout):
        box.exec("sleep 30", timeout_seconds=1)
    with pytest.raises(SandboxTimeout):
        box.exec_stream("sleep 30", timeout_seconds=1)
    states = [found.state for found in tcp.server.guest(box.id).execs.values()]
    assert states == ["exited", "exited"]


@pytest.mark.parametrize(
    "error",
    [
        GuestFailed(RUN_AGAIN_TEXT, hint=RUN_AGAIN_TEXT.title()),
        CommandLost(f"exec_1: {RUN_AGAIN_TEXT}"),
        GuestUnreachable("dial: Connect: Connection Refused, i/o timeout"),
    ],
)
def test_no_words_make_the_client_run_it_twice_or_see_a_time_limit(
    tcp: Tcp, box: Sandbox, monkeypatch: pytest.MonkeyPatch, error: TorporError
) -> None:
    guest = tcp.server.guest(box.id)
    calls = fails_with(monkeypatch, guest, "ping", error, error, error)
    for call in (
        lambda: box.exec("mark x"),
        lambda: box.exec_stream("mark x"),
        lambda: box.filesystem.write("/x", b"x"),
    ):
        with pytest.raises(ServerError) as caught:
            call()
        assert type(caught.value) is ServerError  # no SandboxTimeout: no command was at its limit
        assert not any(phrase in str(caught.value).lower() for phrase in RUN_AGAIN)
    assert len(calls) == 3


def test_a_failure_in_the_middle_of_a_stream_is_told(tcp: Tcp, box: Sandbox) -> None:
    seen: list[str] = []
    with pytest.raises(ServerError, match=r"known|lost") as caught:
        box.exec_stream("echo before; lost", on_stdout=seen.append)
    assert type(caught.value) is ServerError
    assert "".join(seen) == "before\n"


def test_streams_keep_characters_and_order(box: Sandbox) -> None:
    out, err = [], []
    code = box.exec_stream(
        "echo é; hex e28eac; err oh; exit 7", on_stdout=out.append, on_stderr=err.append
    )
    assert code == 7
    assert "".join(out) == "é\n⎬"
    assert "".join(err) == "oh\n"


def test_exit_is_the_last_event(tcp: Tcp, panda: pandastack.Client, box: Sandbox) -> None:
    reply = panda.session.post(
        f"{panda.api_url}/v1/sandboxes/{box.id}/exec/stream", json={"cmd": "echo a; err b"}
    )
    events = [line[7:] for line in reply.text.splitlines() if line.startswith("event: ")]
    assert events[-1] == "exit"
    assert events.count("exit") == 1
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_results_of_commands(box: Sandbox) -> None:
    found = box.exec("echo out; err bad; exit 3")
    assert (found.stdout, found.stderr, found.exit_code) == ("out\n", "bad\n", 3)
    assert found.duration_ms >= 0
    with pytest.raises(CommandFailed) as caught:
        box.exec("exit 3", check=True)
    assert caught.value.exit_code == 3
    assert box.commands.run("echo x", timeout=10).stdout == "x\n"
    with pytest.raises(BadRequestError):
        box.exec("true", timeout_seconds=-1)


def test_a_command_ends_with_its_client(tcp: Tcp, box: Sandbox, panda: pandastack.Client) -> None:
    with pytest.raises(requests.ReadTimeout):
        panda.session.post(
            f"{panda.api_url}/v1/sandboxes/{box.id}/exec", json={"cmd": "sleep 50"}, timeout=0.5
        )
    guest = tcp.server.guest(box.id)
    tcp.server.wait_until(lambda: all(found.state == "exited" for found in guest.execs.values()))


# ---- files ----


def test_files(box: Sandbox, tmp_path: Any) -> None:
    files = box.filesystem
    assert files.write("/d/a.bin", b"\0\xff" * 1000) == {"path": "/d/a.bin", "bytes": 2000}
    assert files.read("/d/a.bin") == b"\0\xff" * 1000
    files.write("/d/empty", b"")
    assert files.read("/d/empty") == b""
    files.write("/d/sub/ü n.txt", "text")
    found = files.stat("/d/a.bin")
    assert (found.name, found.is_dir, found.size) == ("a.bin", False, 2000)
    assert found.mtime > 0
    assert found.mode == "0644"
    assert files.stat("/d").is_dir
    assert [e.path for e in files.listdir("/d")] == ["/d/a.bin", "/d/empty", "/d/sub"]
    assert [(d, [f.name for f in fs]) for d, _, fs in files.walk("/d")] == [
        ("/d", ["a.bin", "empty"]),
        ("/d/sub", ["ü n.txt"]),
    ]
    (tmp_path / "up").write_bytes(b"x" * (33 << 20))  # more than PandaStack's own server takes
    files.upload(tmp_path / "up", "/d/big")
    assert files.stat("/d/big").size == 33 << 20


def test_a_missing_path_is_a_404_everywhere(box: Sandbox) -> None:
    assert box.filesystem.exists("/nope") is False
    for call in (box.filesystem.read, box.filesystem.stat, box.filesystem.listdir):
        with pytest.raises(NotFoundError):
            call("/nope")


def test_a_path_through_a_file_is_not_there(
    tcp: Tcp, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = InvalidRequest("'/etc/passwd/x': Not a directory")
    fails_with(monkeypatch, tcp.server.guest(box.id), "stat", wrong, wrong)
    assert box.filesystem.exists("/etc/passwd/x") is False


def test_an_empty_folder_has_a_list(panda: pandastack.Client, box: Sandbox) -> None:
    box.filesystem.write("/e/x", b"")
    url = f"{panda.api_url}/v1/sandboxes/{box.id}/fs"
    assert panda.session.delete(url, params={"path": "/e/x"}).status_code == 204
    assert panda.session.get(f"{url}/dir", params={"path": "/e"}).json() == {"entries": []}


# ---- logs ----


def test_logs_are_lines(tcp: Tcp, box: Sandbox, tokens: dict[Scope, str]) -> None:
    assert list(box.logs()) == ["booting", "login: é\ufffd"]
    assert list(box.logs(stream="stderr")) == []
    tcp.server.engine.sandboxes[box.id].console += b"half"
    found = []
    for line in box.logs(follow=True):
        found.append(line)
        if len(found) == 2:
            other = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.USE])
            with other.session:
                other.sandboxes.delete(box.id)
    assert found == ["booting", "login: é\ufffd", "half"]  # no line of ours at its end


def test_a_quiet_log_is_kept_alive(
    tcp: Tcp, box: Sandbox, tokens: dict[Scope, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.server.replies.KEEPALIVE_S", 0.2)
    hasty = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.USE], timeout=1.0)
    lines = []
    with hasty.session:
        began = time.monotonic()
        for line in hasty.sandboxes.get(box.id).logs(follow=True):
            lines.append(line)
            if len(lines) == 2:
                tcp.server.loop.call_soon_threadsafe(
                    tcp.server.loop.call_later,
                    2.5,
                    tcp.server.engine.sandboxes[box.id].console.extend,
                    b"late\n",
                )
            if line == "late":
                break
    assert time.monotonic() - began > 2


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


# ---- code contexts ----


def test_code_contexts(box: Sandbox) -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()
    with box.create_code_context("py") as context:
        assert context.language == "python"
        found = context.run_code(f"hello\nshow image/png {png}")
        assert (found.stdout, found.exit_code, found.error) == ("hello\n", 0, None)
        assert (found.png, found.text) == (png, "shown")
        raised = context.run_code("raise KeyError")
        assert raised.exit_code == 1
        assert raised.error
        assert "KeyError" in raised.error
    with pytest.raises(NotFoundError):
        context.run_code("x")
    with pytest.raises(BadRequestError, match="python or bash"):
        box.create_code_context("cobol")


def test_forms_are_text(box: Sandbox) -> None:
    ran = CodeRunWire(
        context_id="ctx_x",
        status="died",
        duration_ms=5,
        restarted=True,
        exit_code=None,
        execution_count=1,
        stdout_bytes=0,
        stderr_bytes=0,
        stdout="",
        stderr="",
        results=[CodeResultWire(data={"application/json": {"a": [1]}}, is_main=True, omitted={})],
        error=None,
    )
    found = Execution.from_dict(CodeTold.of(ran).model_dump())
    assert found.results[0].json == {"a": [1]}
    assert found.exit_code == 1
    assert found.error == "the interpreter ended; what had been set is gone"


# ---- tokens, volumes, and what is not offered ----


def test_tokens(tcp: Tcp, panda: pandastack.Client) -> None:
    made = panda.tokens.create("CI Token (2)", expires_in_days=1)
    assert made.token
    assert made.token.startswith(made.prefix)
    assert made.name == "ci-token-2"
    assert made.prefix in [t.prefix for t in panda.tokens.list()]
    client = pandastack.Client(api_url=tcp.url, api_key=made.token)
    with client.session:
        assert client.me()["scope"] == "use"
        panda.tokens.revoke(made.prefix)
        with pytest.raises(AuthError):
            client.me()
    with pytest.raises(NotFoundError):
        panda.tokens.revoke(made.prefix)
    with pytest.raises(BadRequestError):
        panda.tokens.create("!")


def test_volumes(panda: pandastack.Client) -> None:
    made = panda.volumes.create("data", 2048)
    assert (made["name"], made["size_mb"], made["size_bytes"]) == ("data", 2048, 2 << 30)
    with pytest.raises(BadRequestError):
        panda.volumes.create("data", 2048)
    box = panda.sandboxes.create(template="base", volumes=[{"name": "data"}])
    assert panda.volumes.get("data")["attached_to"] == [box.id]
    with pytest.raises(BadRequestError):
        panda.volumes.delete("data")
    box.kill()
    assert [v["name"] for v in panda.volumes.list()] == ["data"]
    with pytest.raises(NotFoundError):
        panda.sandboxes.create(template="base", volumes=[{"name": "nope"}])


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.functions.list(),
        lambda c: c.functions.get("f-1"),
        lambda c: c.apps.list(),
        lambda c: c.apps.get("app-1"),
        lambda c: c.schedules.list(),
        lambda c: c.schedules.delete("s-1"),
    ],
    ids=["functions", "function", "apps", "app", "schedules", "schedule"],
)
def test_what_is_not_offered_says_so(panda: pandastack.Client, call: Any) -> None:
    with pytest.raises(ServerError, match="this daemon does not offer"):
        call(panda)


def test_a_route_that_nobody_has_is_a_404(panda: pandastack.Client) -> None:
    reply = panda.session.get(f"{panda.api_url}/v1/orgs")
    assert reply.status_code == 404
    assert "/v1/orgs" in reply.json()["error"]
