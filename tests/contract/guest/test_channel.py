"""The channel itself against the real agent: epochs, stalls, large files, and hosts that break the rules."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.guest.agent import Agent, eventually
from tests.contract.guest.steps import (
    content,
    follow,
    fresh_id,
    names,
    run,
    slurp,
    stream,
)
from torpor.errors import Conflict, GuestUnreachable, LimitExceeded
from torpor.guest.client import GuestClient
from torpor.model import ExecId, ExecOutput, ExecSpec, ExecStarted
from torpor_guest import protocol
from torpor_guest.protocol import Decoder, Frame, encode, encode_message

pytestmark = pytest.mark.anyio

MIB = 1 << 20
BIG = 128 * MIB


class RawHost:
    """A host's end that sends what a test wants."""

    def __init__(self, agent: Agent) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(5)
        self.link.connect(str(agent.socket))
        self.decoder = Decoder()
        self.frames: list[Frame] = []

    def __enter__(self) -> RawHost:
        return self

    def __exit__(self, *exc: object) -> None:
        self.link.close()

    def hello(self, epoch: int, nonce: str = "n", **more: object) -> bytes:
        """A HELLO."""
        message = json.loads(protocol.hello(nonce, window=1 << 20)) | more
        return encode(protocol.HELLO, 0, epoch, 0, json.dumps(message).encode())

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.link.sendall(data)

    def get(self, type_: int) -> Frame:
        """The next frame of that kind."""
        while True:
            for index, frame in enumerate(self.frames):
                if frame.type == type_:
                    del self.frames[: index + 1]
                    return frame
            data = self.link.recv(1 << 16)
            assert data, "the agent hung up"
            self.frames += self.decoder.feed(data)

    def answer(self, type_: int) -> Any:  # JSON
        """The JSON in the next frame of that kind."""
        return json.loads(self.get(type_).payload)


def opening(epoch: int, number: int, method: str, **params: object) -> bytes:
    return encode_message(
        protocol.OPEN, epoch, number, {"method": method, "params": {"path": "/", **params}}
    )


async def test_half_a_frame_of_an_old_epoch_is_dropped(agent: Agent) -> None:
    with RawHost(agent) as host:
        host.send(host.hello(1))
        assert host.answer(protocol.HELLO)["refusal"] == ""
        half = opening(1, 7, "mkdir", path=f"{agent.folder}/never")[:-9]
        host.send(half + host.hello(2, "other"))
        host.get(protocol.HELLO)
        # The rest of the old frame, a whole old frame, then one of now.
        host.send(opening(1, 7, "mkdir", path=f"{agent.folder}/never")[-9:])
        host.send(opening(1, 8, "mkdir", path=f"{agent.folder}/never"))
        host.send(opening(2, 9, "stat"))
        frame = host.get(protocol.CLOSE)
        assert (frame.epoch, frame.stream) == (2, 9)
        assert "never" not in names(agent.folder)


async def test_a_repeated_hello_disturbs_nothing(agent: Agent) -> None:
    with RawHost(agent) as host:
        host.send(host.hello(1))
        host.get(protocol.HELLO)
        go = agent.folder / "go"
        command = f"until [ -e {go} ]; do sleep 0.05; done; echo hi"
        host.send(opening(1, 1, "exec.run", exec_id="e1", command=command))
        host.get(protocol.DATA)
        host.send(host.hello(1))
        host.get(protocol.HELLO)
        go.touch()
        assert host.get(protocol.DATA).payload == b"hi\n"


async def test_a_new_hello_ends_what_the_old_one_asked(agent: Agent) -> None:
    with RawHost(agent) as host:
        host.send(host.hello(1))
        host.get(protocol.HELLO)
        target = agent.folder / "f"
        host.send(opening(1, 1, "write", path=str(target)))
        host.send(encode(protocol.DATA, 0, 1, 1, b"half"))
        host.send(host.hello(2, "m"))
        host.get(protocol.HELLO)
        host.send(encode(protocol.END, 0, 1, 1) + opening(2, 1, "stat"))
        assert host.get(protocol.CLOSE).epoch == 2
        assert not [name for name in names(agent.folder) if name.startswith((".torpor", "f"))]


async def test_the_agent_refuses_a_skew_in_words(agent: Agent) -> None:
    with RawHost(agent) as host:
        host.send(host.hello(1, protocol=9, oldest=7))
        answer = host.answer(protocol.HELLO)
        assert "versions 7 to 9" in answer["refusal"]
        host.send(opening(1, 1, "stat") + host.hello(2, "m"))
        assert host.answer(protocol.HELLO)["refusal"] == ""


async def test_garbage_and_broken_rules_harm_one_stream_only(agent: Agent) -> None:
    with RawHost(agent) as host:
        host.send(b"\0" * 300_000 + b"~}}~}~" + host.hello(1))
        host.get(protocol.HELLO)
        host.send(opening(1, 1, "exec.run", exec_id="e1", command="sleep 0.5; echo fine"))
        host.send(encode(protocol.OPEN, 0, 1, 2, b"no json"))
        assert host.answer(protocol.CLOSE)["error"]["code"] == "invalid"
        host.send(opening(1, 3, "no.such.method"))
        assert "no method" in host.answer(protocol.CLOSE)["error"]["message"]
        host.send(encode(protocol.OPEN, 0, 1, 4, b'{"method": 5}'))
        assert host.answer(protocol.CLOSE)["error"]["code"] == "invalid"
        host.send(encode(protocol.OPEN, 0, 1, 5, b'{"method": "stat", "params": [' + b"[" * 50_000))
        assert host.answer(protocol.CLOSE)["error"]["code"] == "invalid"
        host.send(opening(1, 6, "exec.stdin", exec_id="e1"))  # takes no stdin: closed at once
        assert host.answer(protocol.CLOSE)["error"]["code"] == "conflict"
        host.send(opening(1, 8, "exec.run", exec_id="e2", command="sleep 30", stdin=True))
        host.get(protocol.DATA)  # it runs, and reads nothing
        host.send(opening(1, 7, "exec.stdin", exec_id="e2"))
        host.send(encode(protocol.DATA, 0, 1, 7, bytes(65536)) * 40)  # beyond any credit
        host.send(encode(protocol.CREDIT, 0, 1, 1, b"xx"))
        found = [host.get(protocol.CLOSE) for _ in range(2)]
        messages = [json.loads(frame.payload)["error"]["message"] for frame in found]
        assert any("credit" in message for message in messages)
    again = await agent.connect()
    assert [found.exec_id for found in await again.exec_list()] == ["e1", "e2"]
    await again.exec_signal(ExecId("e2"), 9)
    await again.aclose()


async def test_too_many_streams_are_refused(agent: Agent) -> None:
    with RawHost(agent) as host:
        host.send(host.hello(1))
        host.get(protocol.HELLO)
        begin = opening(1, 1, "exec.run", exec_id="e1", command="sleep 30")
        host.send(begin)
        host.get(protocol.DATA)
        host.send(b"".join(opening(1, n, "exec.attach", exec_id="e1") for n in range(2, 1026)))
        error = host.answer(protocol.CLOSE)["error"]
        assert (error["code"], "streams" in error["message"]) == ("limit", True)


async def test_a_command_goes_on_while_the_host_stalls(agent: Agent) -> None:
    done = agent.folder / "done"
    with RawHost(agent) as host:
        host.send(host.hello(1, window=16 * MIB))
        host.get(protocol.HELLO)
        command = f"head -c {40 * MIB} /dev/zero; touch {done}"
        host.send(opening(1, 1, "exec.run", exec_id="e1", command=command))
        await eventually(done.exists, within_s=20)  # nothing is read here meanwhile
        assert agent.rss_bytes(peak=True) < 80 * MIB
    client = await agent.connect()
    ran = await follow(client, (await client.exec_list())[0].exec_id)
    assert len(ran.stdout) == 40 * MIB
    await client.aclose()


async def test_large_files_in_bounded_memory(
    agent: Agent, client: GuestClient, tmp_path: Path
) -> None:
    block = bytes(range(256)) * 256

    async def upload() -> AsyncIterator[bytes]:
        for _ in range(BIG // len(block)):
            yield block

    await client.write(f"{tmp_path}/small", stream([block]))
    before = agent.rss_bytes()
    tracemalloc.start()
    try:
        assert (await client.write(f"{tmp_path}/big", upload())).size_bytes == BIG
        size, is_right = 0, True
        async for chunk in client.read(f"{tmp_path}/big"):
            start = size % len(block)
            is_right = is_right and (block + block)[start : start + len(chunk)] == chunk
            size += len(chunk)
        host_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (size, is_right) == (BIG, True)
    assert host_peak < 8 * MIB
    assert agent.rss_bytes(peak=True) - before < 16 * MIB


async def test_a_cancelled_upload_leaves_the_old_file(
    agent: Agent, client: GuestClient, tmp_path: Path
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "f").write_text("old")
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(client.write(f"{folder}/f", endless()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.ping()
    await client.exec_list()
    assert (names(folder), content(f"{folder}/f")) == (["f"], b"old")


async def test_a_cut_upload_leaves_the_old_file(
    agent: Agent, client: GuestClient, tmp_path: Path
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "f").write_text("old")

    async def cut() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        await client.aclose()
        yield b"never"

    with pytest.raises(GuestUnreachable):
        await client.write(f"{folder}/f", cut())
    again = await agent.connect()
    await again.ping()
    assert (names(folder), content(f"{folder}/f")) == (["f"], b"old")


async def test_a_killed_agent_leaves_no_temporary_file(
    agent: Agent, client: GuestClient, tmp_path: Path
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()

    async def kill() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        await client.exec_list()
        await asyncio.to_thread(agent.kill)
        yield bytes(MIB)

    with pytest.raises(GuestUnreachable):
        await client.write(f"{folder}/f", kill())
    assert names(folder) == []


async def test_twenty_stalled_readers_and_one_that_reads(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    size = 8 * MIB
    async with contextlib.AsyncExitStack() as stack:
        await client.exec_start(exec_id, ExecSpec(command=f"head -c {size} /dev/zero"))
        for _ in range(20):
            events = await stack.enter_async_context(client.exec_attach(exec_id))
            assert isinstance(await anext(events), ExecStarted)
        assert len((await follow(client, exec_id)).stdout) == size
        assert (await run(client, "echo quick")).stdout == b"quick\n"
    assert agent.rss_bytes(peak=True) < 80 * MIB


async def test_leaving_early_detaches_and_frees_the_stream(
    agent: Agent, client: GuestClient
) -> None:
    exec_id = fresh_id()
    await client.exec_start(exec_id, ExecSpec(command="yes | head -c 100000000; sleep 60"))
    for _ in range(50):
        async with client.exec_attach(exec_id) as events:
            async for event in events:
                if isinstance(event, ExecOutput):
                    break
    assert client._channel._mux.streams == {}
    assert (await client.exec_get(exec_id)).state == "running"
    await client.exec_signal(exec_id, 9)
    ran = await follow(client, exec_id)
    assert (ran.info.signal, len(ran.stdout)) == (9, ran.info.stdout_bytes)


async def test_stdin_that_is_not_read_waits_and_can_be_given_up(
    agent: Agent, client: GuestClient
) -> None:
    exec_id = fresh_id()
    await client.exec_start(exec_id, ExecSpec(command="sleep 60", stdin=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await client.exec_stdin(exec_id, bytes(4 * MIB))
    assert (await run(client, "echo other")).stdout == b"other\n"
    await client.exec_signal(exec_id, 9)
    await follow(client, exec_id)
    with pytest.raises(Conflict):
        await client.exec_stdin(exec_id, b"x")


async def test_what_is_too_long_for_a_message(agent: Agent, client: GuestClient) -> None:
    with pytest.raises(LimitExceeded):
        await client.exec_start(fresh_id(), ExecSpec(command="x" * (3 * MIB)))
    with pytest.raises(LimitExceeded):
        await client.exec_start(fresh_id(), ExecSpec(command="x" * MIB))  # over the kernel's limit
    await client.ping()


async def test_a_stopped_agent_is_found_silent(agent: Agent) -> None:
    client = await agent.connect(silence_limit_s=0.9)
    begun = time.monotonic()
    os.kill(agent.pid, signal.SIGSTOP)
    with pytest.raises(GuestUnreachable, match="silent"):
        await client.exec_list()
    assert time.monotonic() - begun < 5
    with pytest.raises(GuestUnreachable, match="did not answer"):
        await agent.connect(timeout_s=0.3)
    os.kill(agent.pid, signal.SIGCONT)
    again = await agent.connect()
    assert await again.exec_list() == []
    assert await slurp(again.read("/proc/self/cmdline"))
    await again.aclose()
    await client.aclose()


async def test_one_after_the_other(agent: Agent) -> None:
    for _ in range(20):
        client = await agent.connect()
        assert (await run(client, "echo x")).stdout == b"x\n"
        await client.aclose()
