"""Commands, code and files through PandaStack's own client; the machine is a fake one."""

from __future__ import annotations

import base64
import time
from typing import Any

import pandastack
import pytest
import requests
from pandastack import Execution, Sandbox
from pandastack.exceptions import (
    BadRequestError,
    CommandFailed,
    NotFoundError,
    SandboxTimeout,
    ServerError,
)

from tests.compat.failing import fails_with
from tests.fakes.serving import Tcp
from torpor.errors import (
    CommandLost,
    GuestFailed,
    GuestUnreachable,
    InvalidRequest,
    TorporError,
)
from torpor.model_access import Scope
from torpor.server.compat.contexts import CodeTold
from torpor.server.compat.words import RUN_AGAIN
from torpor.server.wire_contexts import CodeResultWire, CodeRunWire

RUN_AGAIN_TEXT = "; ".join(RUN_AGAIN)


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
