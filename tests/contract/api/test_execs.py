"""/v1/sandboxes/{id}/exec…"""

from __future__ import annotations

import asyncio
import base64
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contract.api.conftest import Rest, parse_sse
from tests.fakes.serving import ServerThread
from torpor.base.home import Home
from torpor.server import replies
from torpor.server.wire_exec import ExecListWire, ExecResultWire, ExecWire, ProcessListWire

EXEC_ID = "exec_0123456789abcdefghjk"


@pytest.fixture
def path(rest: Rest) -> str:
    return f"/v1/sandboxes/{rest.create(env={'A': '1', 'B': '1'})}"


def sandbox_id(path: str) -> str:
    return path.rpartition("/")[2]


def run(rest: Rest, path: str, cmd: str, **body: Any) -> Any:
    found = rest.ok("POST", f"{path}/exec", json={"cmd": cmd, **body})
    ExecResultWire.model_validate(found)
    return found


def test_exec_returns_output_and_exit_code(rest: Rest, path: str) -> None:
    found = run(rest, path, "echo out; err bad; exit 7")
    assert (found["stdout"], found["stderr"], found["exit_code"]) == ("out\n", "bad\n", 7)
    assert found["duration_ms"] >= 0
    assert found["stdout_b64"] is None
    assert not found["stdout_truncated"]


def test_exec_argv_cwd_user_env(rest: Rest, path: str) -> None:
    body = {"argv": ["echo", "a;b", "c d"]}
    assert rest.ok("POST", f"{path}/exec", json=body)["stdout"] == "a;b c d\n"
    assert run(rest, path, "pwd; whoami", cwd="/tmp", user="root")["stdout"] == "/tmp\nroot\n"
    assert "A=1\nB=2\nC=3\n" in run(rest, path, "env", env={"B": "2", "C": "3"})["stdout"]


def test_exec_takes_and_gives_any_bytes(rest: Rest, path: str) -> None:
    data = bytes(range(256)) * 1000
    found = run(rest, path, "cat", stdin_b64=base64.b64encode(data).decode())
    assert base64.b64decode(found["stdout_b64"]) == data
    assert run(rest, path, "cat", stdin="héllo")["stdout"] == "héllo"
    assert run(rest, path, "cat", stdin="")["stdout"] == ""
    reply = rest.http.post(
        f"{path}/exec",
        content=b'{"cmd":"echo x\\udcff"}',
        headers={"content-type": "application/json"},
    )
    assert base64.b64decode(reply.json()["stdout_b64"]) == b"x\xff\n"


def test_exec_cuts_output_with_a_mark(rest: Rest, path: str) -> None:
    found = run(rest, path, "spew 3000000")
    assert found["stdout_truncated"]
    assert found["stdout"].startswith(
        "x" * (1 << 20) + "\n[torpor: output truncated, 1048576 of 3000000"
    )
    assert found["stdout_path"] in found["stdout"]
    found = run(rest, path, "hex e282ace282ac", output_limit_bytes=4)
    assert found["stdout"].startswith("€\n[torpor: output truncated, 3 of 6 bytes")


def test_exec_timeout_kills_and_keeps_the_output(rest: Rest, path: str) -> None:
    body = rest.fails(
        "POST",
        f"{path}/exec",
        504,
        "operation.timeout",
        json={"cmd": "echo part; err oops; sleep 30", "timeout_seconds": 0.05},
    )
    assert "timeout" in body["error"]
    facts = body["facts"]
    assert (facts["stdout"], facts["stderr"]) == ("part\n", "oops\n")
    assert rest.ok("GET", f"{path}/execs/{facts['exec_id']}")["signal"] == 9


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"cmd": "true", "argv": ["true"]},
        {"argv": []},
        {"cmd": "true", "timeout_seconds": 0},
        {"cmd": "true", "exec_id": "mine"},
        {"cmd": "true", "stdin": "a", "stdin_b64": "YQ=="},
        {"cmd": "true", "stdin_b64": "%"},
        {"cmd": "true", "output_limit_bytes": 1 << 40},
        {"cmd": "true", "user": "nobody-here"},
        {"command": "true"},
    ],
)
def test_exec_refuses(rest: Rest, path: str, body: dict[str, Any]) -> None:
    rest.fails("POST", f"{path}/exec", 400, "request.invalid", json=body)
    assert rest.ok("GET", f"{path}/execs")["items"] == []


def test_a_surrogate_that_is_no_byte_is_refused(rest: Rest, path: str) -> None:
    rest.fails(
        "POST",
        f"{path}/exec",
        400,
        "request.invalid",
        content=b'{"cmd":"echo \\ud800"}',
        headers={"content-type": "application/json"},
    )


def test_exec_in_a_paused_sandbox(rest: Rest, path: str) -> None:
    rest.ok("POST", f"{path}/pause", status=204)
    rest.fails("POST", f"{path}/exec", 409, "object.wrong_state", json={"cmd": "true"})
    rest.fails("POST", f"{path}/exec/stream", 409, "object.wrong_state", json={"cmd": "true"})


def test_an_end_that_cannot_be_known(rest: Rest, path: str) -> None:
    rest.fails("POST", f"{path}/exec", 502, "command.lost", json={"cmd": "lost"})
    events = rest.events("POST", f"{path}/exec/stream", json={"cmd": "lost"})
    assert [name for name, _ in events] == ["started", "error"]
    assert events[-1][1]["code"] == "command.lost"


def test_the_same_exec_id_starts_once(rest: Rest, path: str, server: ServerThread) -> None:
    body = {"cmd": "mark ran; cat", "exec_id": EXEC_ID, "stdin": "in"}
    for _ in range(3):
        assert rest.ok("POST", f"{path}/exec", json=body)["stdout"] == "in"
    assert server.guest(sandbox_id(path)).marks["ran"] == 1


def test_input_that_nobody_reads_takes_no_memory_without_end(
    rest: Rest, path: str, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.server.execs.INPUT_MOST_BYTES", 5 << 20)
    guest, is_read = server.guest(sandbox_id(path)), asyncio.Event()
    take = guest.exec_stdin

    async def take_late(*args: Any, **kwargs: Any) -> None:
        await is_read.wait()
        await take(*args, **kwargs)

    guest.exec_stdin = take_late
    body = {"cmd": "cat", "background": True, "stdin": "x" * (2 << 20)}
    ids = [rest.ok("POST", f"{path}/exec", json=body, status=202)["exec_id"] for _ in range(2)]
    found = rest.fails("POST", f"{path}/exec", 429, "request.rate_limited", json=body)
    assert found["facts"]["retry_after_seconds"] == 5
    assert rest.http.post(f"{path}/exec/stream", json=body).status_code == 429
    assert len(rest.ok("GET", f"{path}/execs")["items"]) == 2, "it was not started"
    assert run(rest, path, "echo on")["stdout"] == "on\n"
    server.loop.call_soon_threadsafe(is_read.set)
    for exec_id in ids:
        rest.events("GET", f"{path}/execs/{exec_id}/stream")
    assert run(rest, path, "cat", stdin="x" * (4 << 20))["stdout_bytes"] == 4 << 20


def test_answers_with_much_output_have_a_limit_together(
    rest: Rest, path: str, home: Home, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.server.execs.ANSWERS_MOST_BYTES", 10 << 20)
    body = {"cmd": "sleep 30", "output_limit_bytes": 5 << 20, "exec_id": EXEC_ID}
    transport = httpx.HTTPTransport(uds=str(home.socket))
    with (
        ThreadPoolExecutor(1) as pool,
        httpx.Client(transport=transport, base_url="http://torpor", timeout=30) as other,
    ):
        first = pool.submit(other.post, f"{path}/exec", json=body)
        one = f"{path}/execs/{EXEC_ID}"
        server.wait_until(lambda: rest.http.get(one).status_code == 200)
        again = {"cmd": "echo on", "output_limit_bytes": 5 << 20}
        rest.fails("POST", f"{path}/exec", 429, "request.rate_limited", json=again)
        assert run(rest, path, "echo on")["stdout"] == "on\n"
        rest.ok("POST", f"{one}/signal", json={"signal": "KILL"}, status=204)
        assert first.result(30).json()["exit_code"] != 0
    assert run(rest, path, "echo on", output_limit_bytes=5 << 20)["stdout"] == "on\n"


def test_background_stdin_signal_list(rest: Rest, path: str) -> None:
    body = {"cmd": "cat; exit 3", "background": True, "stdin_open": True}
    info = rest.ok("POST", f"{path}/exec", json=body, status=202)
    ExecWire.model_validate(info)
    assert (info["state"], info["background"]) == ("running", True)
    one = f"{path}/execs/{info['exec_id']}"
    rest.ok("POST", f"{one}/stdin", json={"data": "one "}, status=204)
    rest.ok("POST", f"{one}/stdin", json={"data_b64": "dHdv", "eof": True}, status=204)
    events = rest.events("GET", f"{one}/stream")
    assert "".join(data["chunk"] for name, data in events if name == "stdout") == "one two"
    assert events[-1][0] == "exit"
    assert events[-1][1]["exit_code"] == 3
    sleeper = rest.ok(
        "POST", f"{path}/exec", json={"cmd": "sleep 60", "background": True}, status=202
    )
    processes = rest.ok("GET", f"{path}/processes")
    ProcessListWire.model_validate(processes)
    assert sleeper["exec_id"] in [p["exec_id"] for p in processes["items"]]
    other = f"{path}/execs/{sleeper['exec_id']}"
    rest.ok("POST", f"{other}/signal", json={"signal": "TERM"}, status=204)
    assert rest.ok("GET", other)["exit_code"] == 143
    rest.ok("POST", f"{other}/signal", json={"signal": 9}, status=204)
    found = rest.ok("GET", f"{path}/execs")
    ExecListWire.model_validate(found)
    assert [e["exec_id"] for e in found["items"]] == [info["exec_id"], sleeper["exec_id"]]


@pytest.mark.parametrize("signal", ["NOPE", "SIG_DFL", 0, 65, "70", ""])
def test_signals_that_are_none(rest: Rest, path: str, signal: object) -> None:
    info = rest.ok("POST", f"{path}/exec", json={"cmd": "true", "background": True}, status=202)
    rest.fails(
        "POST",
        f"{path}/execs/{info['exec_id']}/signal",
        400,
        "request.invalid",
        json={"signal": signal},
    )


@pytest.mark.parametrize("what", ["", "/stream"])
def test_an_unknown_exec(rest: Rest, path: str, what: str) -> None:
    rest.fails("GET", f"{path}/execs/{EXEC_ID}{what}", 404, "object.not_found")
    rest.fails("POST", f"{path}/execs/{EXEC_ID}/stdin", 404, "object.not_found", json={})


def test_stream_events_in_order(rest: Rest, path: str) -> None:
    body = {"cmd": "echo a; err b; exit 2", "exec_id": EXEC_ID}
    events = rest.events("POST", f"{path}/exec/stream", json=body)
    assert events[0] == (
        "started",
        {"exec_id": EXEC_ID, "pid": events[0][1]["pid"], "stdin_done": None, "generation": 1},
    )
    assert ("stdout", {"chunk": "a\n", "offset": 0, "next_offset": 2}) in events
    assert ("stderr", {"chunk": "b\n", "offset": 0, "next_offset": 2}) in events
    assert events[-1][0] == "exit"
    ExecWire.model_validate(events[-1][1])
    assert events[-1][1]["exit_code"] == 2


def test_stream_never_splits_a_character(rest: Rest, path: str) -> None:
    cmd = "hex e2; sleep 0.02; hex 82; sleep 0.02; hex acf0; sleep 0.02; hex 9f9880ff41; hex c3"
    events = [
        e for e in rest.events("POST", f"{path}/exec/stream", json={"cmd": cmd}) if e[0] == "stdout"
    ]
    assert events[0][1] == {"chunk": "€", "offset": 0, "next_offset": 3}
    assert b"".join(
        base64.b64decode(data["b64"]) if "b64" in data else data["chunk"].encode()
        for _, data in events
    ) == bytes.fromhex("e282acf09f9880ff41c3")
    assert [data["offset"] for _, data in events[1:]] == [d["next_offset"] for _, d in events[:-1]]


def test_stream_timeout_is_an_error_event_and_last(rest: Rest, path: str) -> None:
    body = {"cmd": "echo part; sleep 30", "timeout_seconds": 0.05}
    events = rest.events("POST", f"{path}/exec/stream", json=body)
    assert [name for name, _ in events] == ["started", "stdout", "error"]
    assert events[-1][1]["code"] == "operation.timeout"
    assert "timeout" in events[-1][1]["error"]


def test_stream_limit_leaves_out_the_rest(rest: Rest, path: str) -> None:
    body = {"cmd": "spew 500000; err tail", "output_limit_bytes": 100000}
    events = rest.events("POST", f"{path}/exec/stream", json=body)
    assert sum(len(data["chunk"]) for name, data in events if name == "stdout") == 100000
    assert events[-1][1]["stdout_bytes"] == 500000


def test_attach_from_offsets_and_streams(rest: Rest, path: str) -> None:
    run(rest, path, "echo hello; err world", exec_id=EXEC_ID)
    stream = f"{path}/execs/{EXEC_ID}/stream"
    events = rest.events("GET", f"{stream}?stdout_offset=2&stderr_offset=6")
    assert [(n, d.get("chunk")) for n, d in events[1:-1]] == [("stdout", "llo\n")]
    events = rest.events("GET", f"{stream}?streams=stderr")
    assert [(n, d.get("chunk")) for n, d in events[1:-1]] == [("stderr", "world\n")]
    rest.fails("GET", f"{stream}?stdout_offset=99", 400, "request.invalid")
    rest.fails("GET", f"{stream}?streams=stdin", 400, "request.invalid")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_only_detaches(
    rest: Rest, path: str, server: ServerThread, streamed: bool
) -> None:
    guest = server.guest(sandbox_id(path))
    body = {"cmd": "echo a; cat; mark end", "exec_id": EXEC_ID, "stdin_open": True}
    if streamed:
        with rest.http.stream("POST", f"{path}/exec/stream", json=body) as reply:
            chunks = reply.iter_raw()  # kept: it closes the stream when it is dropped
            next(chunks)
            assert guest.attached == 1
    else:
        with pytest.raises(httpx.ReadTimeout):
            rest.http.post(f"{path}/exec", json=body, timeout=0.2)
    server.wait_until(lambda: guest.attached == 0)
    assert guest.execs[EXEC_ID].state == "running"
    rest.ok("POST", f"{path}/execs/{EXEC_ID}/stdin", json={"eof": True}, status=204)
    server.wait_until(lambda: guest.marks["end"] == 1)


def test_kill_on_disconnect(rest: Rest, path: str, server: ServerThread) -> None:
    guest = server.guest(sandbox_id(path))
    body = {"cmd": "echo a; sleep 30", "exec_id": EXEC_ID, "kill_on_disconnect": True}
    with rest.http.stream("POST", f"{path}/exec/stream", json=body) as reply:
        next(reply.iter_raw())
    server.wait_until(lambda: guest.execs[EXEC_ID].signal == 9)
    with pytest.raises(httpx.ReadTimeout):
        rest.http.post(
            f"{path}/exec", json={"cmd": "sleep 30", "kill_on_disconnect": True}, timeout=0.1
        )
    server.wait_until(lambda: all(e.signal == 9 for e in guest.execs.values()))


def test_two_readers_of_which_one_stalls(rest: Rest, path: str, server: ServerThread) -> None:
    body = {"cmd": "spew 20000000", "exec_id": EXEC_ID}
    with rest.http.stream("POST", f"{path}/exec/stream", json=body) as stalled:
        chunks = stalled.iter_raw()
        next(chunks)
        began = time.monotonic()
        events = rest.events("GET", f"{path}/execs/{EXEC_ID}/stream")
        assert sum(len(d["chunk"]) for n, d in events if n == "stdout") == 20000000
        assert time.monotonic() - began < 20


def test_a_silent_stream_sends_comments(
    rest: Rest, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "KEEPALIVE_S", 0.05)
    with rest.http.stream("POST", f"{path}/exec/stream", json={"cmd": "sleep 0.3"}) as reply:
        data = reply.read()
    assert data.count(b": keepalive\n\n") >= 3
    assert [name for name, _ in parse_sse(data)] == ["started", "exit"]


def test_twenty_execs_at_once(rest: Rest, path: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(20) as pool:
        found = list(
            pool.map(lambda n: run(rest, path, f"sleep 0.05; echo {n}")["stdout"], range(20))
        )
    assert found == [f"{n}\n" for n in range(20)]


def test_an_unreachable_guest(rest: Rest, path: str, server: ServerThread) -> None:
    server.guest(sandbox_id(path)).reachable = False
    rest.fails("POST", f"{path}/exec", 502, "guest.unreachable", json={"cmd": "true"})
