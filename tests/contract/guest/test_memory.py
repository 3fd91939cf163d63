"""The memory socket of the real agent: programs in the machine on one side, the host on the other; and fuzz on both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torpor_guest
from tests.contract.guest.agent import Agent
from tests.contract.guest.test_lying_guest import Liar
from torpor.errors import GuestFailed, GuestUnreachable, InvalidRequest, TorporError
from torpor.guest.client import GuestClient, connect
from torpor_guest import memory, protocol
from torpor_guest.memory_client import Memory, MemoryRefused

pytestmark = pytest.mark.anyio
PROGRAM = Path(torpor_guest.__file__ or "").parent / "memory_client.py"


def short(path: Path) -> str:
    """Return a name for a socket that fits the kernel's limit."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    return f"/proc/self/fd/{folder}/{path.name}"


@pytest.fixture
def place(agent: Agent) -> str:
    return short(agent.root / "run/torpor/memory.sock")


async def echo(verb: str, params: dict[str, Any]) -> Any:
    if verb == "refuse":
        raise InvalidRequest("no", hint="do not ask")
    if verb == "large":
        return {"text": "x" * protocol.MAX_MESSAGE}
    return {"verb": verb, "params": params}


@pytest.fixture
async def served(client: GuestClient) -> AsyncIterator[GuestClient]:
    task = asyncio.create_task(client.serve_memory(echo))
    yield client
    task.cancel()
    await asyncio.wait({task})


async def ask(place: str, verb: str, **params: Any) -> Any:
    return await asyncio.to_thread(Memory(place, timeout_s=20).call, verb, **params)


async def test_a_request_and_its_answer(served: GuestClient, place: str) -> None:
    assert await ask(place, "recall", query="x") == {"verb": "recall", "params": {"query": "x"}}
    odd = {"text": "ü\n\u2028~}\udc80", "deep": [{"a": None}]}
    assert (await ask(place, "recall", **odd))["params"] == odd
    assert (
        len((await ask(place, "record", content="y" * (1 << 20)))["params"]["content"]) == 1 << 20
    )


async def test_many_at_once(served: GuestClient, place: str) -> None:
    found = await asyncio.gather(*(ask(place, "fact", n=n) for n in range(40)))
    assert [answer["params"]["n"] for answer in found] == list(range(40))


async def test_a_connection_asks_again_and_again(served: GuestClient, place: str) -> None:
    reader, writer = await asyncio.open_unix_connection(place)
    for number in ("one", 2, None, {"three": 3}):
        writer.write(json.dumps({"id": number, "verb": "x", "params": {}}).encode() + b"\n\n")
        assert json.loads(await reader.readline()) == {
            "id": number,
            "ok": {"verb": "x", "params": {}},
        }
    writer.write(b'{"verb": "x"}')  # without a line's end, then the end
    writer.write_eof()
    assert json.loads(await reader.readline())["ok"]["verb"] == "x"
    writer.close()


async def test_refusals(served: GuestClient, place: str) -> None:
    with pytest.raises(MemoryRefused, match="no \\(do not ask\\)") as caught:
        await ask(place, "refuse")
    assert caught.value.code == "request.invalid"
    with pytest.raises(MemoryRefused, match="ask for less"):
        await ask(place, "large")
    reader, writer = await asyncio.open_unix_connection(place)
    for wrong in (b"nonsense", b"[1]", b'{"verb": 5}', b'{"verb": "x", "params": []}', b"\xff\xfe"):
        writer.write(wrong + b"\n")
        assert json.loads(await reader.readline())["error"]["code"] == "memory.invalid"
    writer.write(b"x" * (memory.MAX_LINE_BYTES + 10))
    writer.write(b"\n")
    assert json.loads(await reader.readline())["error"]["code"] == "memory.limit"
    assert await reader.read() == b""
    writer.close()
    assert (await ask(place, "recall"))["verb"] == "recall"


async def test_requests_wait_for_the_host(agent: Agent, client: GuestClient, place: str) -> None:
    early = asyncio.create_task(ask(place, "recall", query="early"))
    await asyncio.sleep(0.05)
    assert not early.done()
    task = asyncio.create_task(client.serve_memory(echo))
    assert (await early)["params"] == {"query": "early"}
    task.cancel()
    await asyncio.wait({task})


async def test_what_is_under_way_when_the_host_leaves_is_lost_and_said(
    agent: Agent, client: GuestClient, place: str
) -> None:
    reached = asyncio.Event()

    async def never(verb: str, params: dict[str, Any]) -> Any:
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.serve_memory(never))
    asked = asyncio.create_task(ask(place, "record", content="x"))
    await reached.wait()
    await client.aclose()
    with pytest.raises(GuestUnreachable):
        await task
    with pytest.raises(MemoryRefused, match="is not known") as caught:
        await asked
    assert (caught.value.code, caught.value.retryable) == ("memory.lost", True)
    again = await agent.connect()
    serving = asyncio.create_task(again.serve_memory(echo))
    assert (await ask(place, "record", content="x"))["verb"] == "record"
    serving.cancel()
    await asyncio.wait({serving})


async def test_one_host_serves_at_a_time(served: GuestClient, place: str) -> None:
    await ask(place, "x")
    with pytest.raises(TorporError, match="served already"):
        await served.serve_memory(echo)
    assert (await ask(place, "x"))["verb"] == "x"


async def test_a_stream_that_only_waits_is_not_watched(agent: Agent) -> None:
    client = await agent.connect(silence_limit_s=0.15)
    task = asyncio.create_task(client.serve_memory(echo))
    await client.ping()
    os.kill(agent.pid, 19)  # SIGSTOP: as a machine that is captured
    await asyncio.sleep(0.6)
    assert not client.closed
    os.kill(agent.pid, 18)
    await client.ping()
    task.cancel()
    await asyncio.wait({task})
    await client.aclose()


async def test_too_many_programs_are_refused(served: GuestClient, place: str) -> None:
    held = [await asyncio.open_unix_connection(place) for _ in range(memory.MAX_CLIENTS)]
    await asyncio.sleep(0.05)
    reader, writer = await asyncio.open_unix_connection(place)
    assert json.loads(await reader.readline())["error"]["code"] == "memory.limit"
    for _, each in (*held, (reader, writer)):
        each.close()
    await asyncio.sleep(0.05)
    assert (await ask(place, "x"))["verb"] == "x"


async def test_a_program_that_stops_reading_holds_up_no_other(
    served: GuestClient, place: str
) -> None:
    slow = socket.socket(socket.AF_UNIX)
    slow.connect(place)
    big = json.dumps({"id": 1, "verb": "x", "params": {"a": "z" * (1 << 20)}}).encode() + b"\n"
    await asyncio.to_thread(slow.sendall, big)  # and never reads the answer
    assert (await ask(place, "y"))["verb"] == "y"
    slow.close()


async def test_the_socket_is_for_every_user_and_survives_the_agent(agent: Agent) -> None:
    path = agent.root / "run/torpor/memory.sock"
    assert path.stat().st_mode & 0o777 == 0o666
    agent.kill()
    agent.start()
    client = await agent.connect()
    task = asyncio.create_task(client.serve_memory(echo))
    assert (await ask(short(path), "x"))["verb"] == "x"
    task.cancel()
    await asyncio.wait({task})
    await client.aclose()


def torpor_memory(place: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    folder = int(place.split("/")[4])
    return subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        env={"TORPOR_MEMORY_SOCKET": place},
        pass_fds=[folder],
        check=False,
    )


async def test_the_program(client: GuestClient, place: str) -> None:
    async def answer(verb: str, params: dict[str, Any]) -> Any:
        if verb == "refuse":
            raise InvalidRequest("no")
        if verb == "recall":
            items = [{"text": "curl is there", "note": "a tool saw it"}]
            return {
                "items": items if params["query"] == "curl" else [],
                "abstained": "nothing near",
            }
        if verb == "facts":
            return {"items": [{"subject": "machine", "attribute": "package", "value": "curl"}]}
        if verb.startswith("files."):
            return {"text": "     1\tx"}
        return {"verb": verb, **params}

    task = asyncio.create_task(client.serve_memory(answer))

    async def run(*words: str, code: int = 0, stdin: str = "") -> str:
        done = await asyncio.to_thread(torpor_memory, place, *words, stdin=stdin)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    made = json.loads(await run("record", "-", "--from", "tool", stdin="seen\n"))
    assert (made["content"], made["source_kind"]) == ("seen\n", "tool")
    made = json.loads(
        await run("remember", "machine", "package", "curl", "--scope", "machine", "--many")
    )
    assert (made["scope"], made["cardinality"]) == ("machine", "many")
    assert await run("recall", "curl") == "curl is there  (a tool saw it)\n"
    assert await run("recall", "else") == "nothing: nothing near\n"
    assert await run("facts") == 'machine  package  "curl"\n'
    assert json.loads(await run("facts", "--json"))["items"]
    assert await run("view", "/memories/x") == "     1\tx\n"
    assert await run("write", "/memories/x", "text") == "     1\tx\n"
    assert json.loads(await run("call", "pin", '{"fact_id": "f"}'))["fact_id"] == "f"
    assert await run("call", "refuse", code=1) == "torpor-memory: no\n"
    task.cancel()
    await asyncio.wait({task})
    gone = subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), "facts"],
        capture_output=True,
        text=True,
        timeout=30,
        env={"TORPOR_MEMORY_SOCKET": "/nowhere"},
        check=False,
    )
    assert (gone.returncode, "has no memory" in gone.stderr) == (2, True)


# --- the host's end, in the hands of a guest that lies ---------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
REQUESTS = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode() + b"\n"),
    st.fixed_dictionaries(
        {}, optional={"id": JSON, "verb": st.sampled_from(["x", "boom"]) | JSON, "params": JSON}
    ).map(lambda value: json.dumps(value).encode() + b"\n"),
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(pieces=st.lists(REQUESTS, max_size=6), cuts=st.lists(st.integers(1, 40), max_size=6))
def test_whatever_a_guest_sends_the_host_answers_or_cuts(
    tmp_path: Path, pieces: list[bytes], cuts: list[int]
) -> None:
    asked: list[tuple[object, object]] = []

    async def answer(verb: str, params: dict[str, Any]) -> Any:
        asked.append((verb, params))
        if verb == "boom":
            raise InvalidRequest("boom")
        return {"n": len(asked)}

    async def work() -> None:
        done = asyncio.Event()

        async def lie(liar: Liar, frame: protocol.Frame, message: dict[str, Any]) -> None:
            data, at = b"".join(pieces), 0
            for cut in (*cuts, len(data)):
                piece = data[at : at + cut]
                await liar.send(protocol.DATA, frame.stream, piece, flags=protocol.CHANNEL_ITEMS)
                at += cut
                if at >= len(data):
                    break
            await liar.close(frame.stream, {"ok": {}})
            done.set()

        path = tmp_path / "liar.sock"
        path.unlink(missing_ok=True)
        liar = Liar(lie)
        server = await asyncio.start_unix_server(liar.serve, path)
        client = await connect(path, epoch=1, timeout_s=10)
        async with asyncio.timeout(20):
            with contextlib.suppress(GuestFailed):
                await client.serve_memory(answer)
            await done.wait()
        await client.aclose()
        async with asyncio.timeout(20):
            await liar.is_gone.wait()
        server.close()
        await asyncio.sleep(0.01)  # so that asyncio closes what was closed

    asyncio.run(work())
    for verb, params in asked:
        assert isinstance(verb, str)
        assert isinstance(params, dict)
