"""A guest that lies, floods, breaks the rules or falls silent: the host stays whole, in bounded memory and time."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.guest.agent import eventually
from tests.contract.guest.steps import run, slurp, stream
from torpor.errors import (
    GuestFailed,
    GuestUnreachable,
    HostNotReady,
    LimitExceeded,
    NotFound,
    TorporError,
)
from torpor.guest.channel import WINDOW
from torpor.guest.client import GuestClient, connect
from torpor.model import ExecId
from torpor_guest import protocol
from torpor_guest.protocol import Decoder, Frame, encode, encode_message, pack_json

pytestmark = pytest.mark.anyio

Answer = Callable[["Liar", Frame, dict[str, Any]], Awaitable[None]]


class Liar:
    """The guest's end, in a test's hands; greets as an honest agent does unless told otherwise."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer
        self.hello: dict[str, Any] = {}
        self.epoch = 0
        self.greets = True
        self.frames: list[Frame] = []
        self.writer: asyncio.StreamWriter | None = None
        self.is_gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.writer = writer
        decoder = Decoder()
        tasks = []
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for frame in decoder.feed(data):
                    self.frames.append(frame)
                    if frame.type == protocol.HELLO:
                        await self.greet(frame)
                    elif frame.type == protocol.OPEN and self.answer:
                        message = json.loads(frame.payload)
                        task = asyncio.get_running_loop().create_task(
                            self.reply(self.answer, frame, message)
                        )
                        tasks.append(task)
        for task in tasks:
            task.cancel()
        self.is_gone.set()
        writer.close()

    async def reply(self, answer: Answer, frame: Frame, message: dict[str, Any]) -> None:
        """Answer, as long as somebody listens."""
        with contextlib.suppress(ConnectionError):
            await answer(self, frame, message)

    async def greet(self, frame: Frame) -> None:
        """Answer a HELLO."""
        self.epoch = frame.epoch
        if self.greets:
            nonce = json.loads(frame.payload)["nonce"]
            honest = {
                "nonce": nonce,
                "protocol": 1,
                "oldest": 1,
                "window": 1 << 18,
                "capabilities": [],
                "agent_version": "liar",
                "instance": "i",
                "pid": 1,
            }
            await self.send(protocol.HELLO, 0, pack_json({**honest, **self.hello}))

    async def send(self, type_: int, stream_number: int, payload: bytes, *, flags: int = 0) -> None:
        """Send a frame."""
        await self.raw(encode(type_, flags, self.epoch, stream_number, payload))

    async def close(self, stream_number: int, value: object) -> None:
        """Send a CLOSE."""
        await self.raw(encode_message(protocol.CLOSE, self.epoch, stream_number, value))

    async def raw(self, data: bytes) -> None:
        """Send bytes."""
        assert self.writer
        self.writer.write(data)
        await self.writer.drain()


@pytest.fixture
async def liar(tmp_path: Path) -> AsyncIterator[Liar]:
    found = Liar()
    server = await asyncio.start_unix_server(found.serve, tmp_path / "liar.sock")
    yield found
    server.close()
    if found.writer:
        found.writer.close()
        async with asyncio.timeout(5):
            await found.is_gone.wait()


@pytest.fixture
async def client(liar: Liar, tmp_path: Path) -> AsyncIterator[GuestClient]:
    found = await connect(tmp_path / "liar.sock", epoch=5, timeout_s=5, silence_limit_s=0.6)
    yield found
    await found.aclose()


async def refused(tmp_path: Path, error: type[TorporError], match: str) -> TorporError:
    """Connect, which must fail."""
    with pytest.raises(error, match=match) as caught:
        await connect(tmp_path / "liar.sock", epoch=5, timeout_s=0.5)
    return caught.value


async def test_a_protocol_skew_is_refused_in_words(liar: Liar, tmp_path: Path) -> None:
    liar.hello = {"protocol": 9, "oldest": 7}
    error = await refused(
        tmp_path, GuestFailed, "this end speaks guest protocol version 1, .* versions 7 to 9"
    )
    assert error.facts == {"host_protocol": [1, 1], "guest_protocol": [7, 9]}
    assert not error.retryable
    assert error.hint


@pytest.mark.parametrize(
    "hello",
    [
        {"protocol": "x"},
        {"protocol": True, "oldest": []},
        {"pid": -1},
        {"agent_version": "x" * 10_000},
        {"instance": None},
        {"refusal": "I will not"},
    ],
)
async def test_a_senseless_greeting_is_refused(
    liar: Liar, tmp_path: Path, hello: dict[str, object]
) -> None:
    liar.hello = hello
    await refused(tmp_path, GuestFailed, "no sense|refused")


async def test_no_answer_no_socket_no_listener(liar: Liar, tmp_path: Path) -> None:
    liar.greets = False
    await refused(tmp_path, GuestUnreachable, r"did not answer within 0\.5 s")
    with pytest.raises(GuestUnreachable, match="cannot be opened"):
        await connect(tmp_path / "nothing.sock", epoch=1, timeout_s=1)


async def test_another_ones_greeting_is_not_ours(liar: Liar, tmp_path: Path) -> None:
    liar.hello = {"nonce": "of somebody else"}
    await refused(tmp_path, GuestUnreachable, "did not answer")


async def test_an_agent_that_starts_late_is_greeted_at_once(liar: Liar, tmp_path: Path) -> None:
    liar.greets = False

    async def start_late() -> None:
        await eventually(lambda: liar.frames)
        await asyncio.sleep(0.6)  # by now HELLO is repeated seldom
        liar.greets = True
        await liar.raw(b"half a frame of before~" + encode(protocol.ANNOUNCE, 0, 0, 0, b"{}"))

    async with asyncio.TaskGroup() as group:
        group.create_task(start_late())
        begun = time.monotonic()
        found = await connect(tmp_path / "liar.sock", epoch=5, timeout_s=5)
        assert time.monotonic() - begun < 0.8
    await found.aclose()


async def test_garbage_between_frames_is_skipped(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        await liar.raw(b"\xff" * 300_000 + b"~~~}}}~" + b"half")
        await liar.raw(encode(protocol.CLOSE, 0, liar.epoch - 1, frame.stream, b'{"ok": {}}'))
        await liar.close(frame.stream, {"error": {"code": "not_found", "message": "gone"}})

    liar.answer = answer
    with pytest.raises(NotFound, match="gone"):
        await client.stat("/x")


async def test_a_flood_without_meaning_cuts_the_channel(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        while True:
            await liar.raw(b"\0" * (1 << 20))

    liar.answer = answer
    with pytest.raises(GuestUnreachable, match="no meaning"):
        await client.stat("/x")
    with pytest.raises(GuestUnreachable):
        await client.ping()


@pytest.mark.parametrize("size", [1, 64 << 10])
async def test_more_than_the_window_cuts_the_channel(
    liar: Liar, client: GuestClient, size: int
) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        data = encode(protocol.DATA, 0, liar.epoch, frame.stream, b"x" * size)
        while True:
            await liar.raw(data * max(1, 65536 // len(data)))

    liar.answer = answer
    chunks = client.read("/x")
    await anext(chunks)  # from here on nobody reads
    await asyncio.sleep(0.3)
    with pytest.raises(GuestUnreachable, match="broke the channel's rules"):
        await slurp(chunks)


async def test_an_endless_answer_cuts_the_channel(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        while True:
            await liar.send(protocol.CLOSE, frame.stream, b" " * 65536, flags=protocol.MORE)

    liar.answer = answer
    with pytest.raises(GuestUnreachable, match="over the limit"):
        await client.stat("/x")


async def test_more_bytes_than_asked_for(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        await liar.send(protocol.DATA, frame.stream, b"x" * 11)
        await liar.close(frame.stream, {"ok": {}})

    liar.answer = answer
    with pytest.raises(GuestFailed, match="more than 10 bytes"):
        await slurp(client.read("/x", limit_bytes=10))


async def test_a_silent_guest_is_unreachable(liar: Liar, client: GuestClient) -> None:
    begun = time.monotonic()
    with pytest.raises(GuestUnreachable, match="silent"):
        await run(client, "true")
    assert time.monotonic() - begun < 3
    assert any(frame.type == protocol.PING for frame in liar.frames)


async def test_an_idle_channel_sends_nothing(liar: Liar, client: GuestClient) -> None:
    count = len(liar.frames)
    await asyncio.sleep(1)
    assert len(liar.frames) == count


async def test_a_new_agent_cuts_the_channel(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        await liar.raw(encode(protocol.ANNOUNCE, 0, 0, 0, b"{}"))

    liar.answer = answer
    with pytest.raises(GuestUnreachable, match="started anew"):
        await run(client, "true")


async def test_a_guest_that_hangs_up(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        assert liar.writer
        liar.writer.close()

    liar.answer = answer
    with pytest.raises(GuestUnreachable, match="cut"):
        await run(client, "true")


async def test_a_guest_that_takes_no_upload_gets_its_window_and_no_more(
    liar: Liar, client: GuestClient
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield bytes(65536)

    with pytest.raises(GuestUnreachable):
        await client.write("/x", endless())
    assert sent <= 1 << 20


GOOD_EXEC = {
    "exec_id": "exec_1",
    "command": "true",
    "state": "exited",
    "pid": 1,
    "user": "root",
    "cwd": "/",
    "background": False,
    "started_at": 1.5,
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "oom_killed": False,
    "duration_ms": 1,
    "stdout_bytes": 0,
    "stderr_bytes": 0,
    "stdout_path": "/o",
    "stderr_path": "/e",
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"state": "exploded"},
        {"exit_code": 256},
        {"exit_code": -1},
        {"exit_code": None},
        {"state": "running"},
        {"exec_id": "exec_2"},
        {"stdout_bytes": -5},
        {"stdout_bytes": 1 << 70},
        {"user": 7},
        {"command": {"a": 1}},
        {"started_at": "now"},
        {"started_at": float("nan")},
    ],
)
async def test_senseless_facts_about_an_exec(
    liar: Liar, client: GuestClient, change: dict[str, object]
) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        await liar.close(frame.stream, {"ok": {"exec": {**GOOD_EXEC, **change}}})

    liar.answer = answer
    if not change:
        assert (await client.exec_get(ExecId("exec_1"))).exit_code == 0
        return
    with pytest.raises(GuestFailed, match="no sense"):
        await client.exec_get(ExecId("exec_1"))


def fresh_id_of(text: str) -> Any:  # an ExecId that is not random
    return text


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/etc/passwd"},
        {"path": "/home/x/../../etc", "name": "etc"},
        {"path": "/home/x/deep", "name": "deep"},
        {"name": "y"},
        {"path": "home/x"},
        {"path": "/home/x\0", "name": "x\0"},
        {"kind": "dragon"},
        {"size": "big"},
        {"mode": None},
        {"mtime_ns": 1.5},
    ],
)
async def test_names_outside_the_folder(
    liar: Liar, client: GuestClient, change: dict[str, object]
) -> None:
    entry = {
        "name": "x",
        "path": "/home/x",
        "kind": "file",
        "size": 1,
        "mode": 0o644,
        "user": "u",
        "group": "g",
        "mtime_ns": 1 << 62,
        "target": None,
    }

    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        lines = pack_json(entry) + b"\n" + pack_json({**entry, **change}) + b"\n"
        await liar.send(protocol.DATA, frame.stream, lines, flags=protocol.CHANNEL_ITEMS)
        await liar.close(frame.stream, {"ok": {}})

    liar.answer = answer
    with pytest.raises(GuestFailed, match="no sense"):
        await client.list_dir("/home")


async def test_items_that_are_none(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        await liar.send(protocol.DATA, frame.stream, b"{{{\n", flags=protocol.CHANNEL_ITEMS)
        await liar.close(frame.stream, {"ok": {}})

    liar.answer = answer
    with pytest.raises(GuestFailed, match="no sense"):
        await client.list_dir("/home")
    with pytest.raises(GuestFailed, match="no sense"):
        await run(client, "true")


async def test_items_that_are_too_long_together(
    liar: Liar, client: GuestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.guest.calls._ITEMS_BYTES", 10 << 20)
    item = pack_json({**GOOD_EXEC, "command": "x" * (1 << 20)}) + b"\n"
    sent = 0

    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        nonlocal sent
        for number in range(64):
            for at in range(0, len(item), 60_000):
                while sent - granted(liar, frame.stream) > WINDOW - 70_000:
                    await asyncio.sleep(0.001)
                piece = item[at : at + 60_000]
                await liar.send(protocol.DATA, frame.stream, piece, flags=protocol.CHANNEL_ITEMS)
                sent += len(piece) + protocol.FRAME_COST
            assert number < 20, "nobody stops it"
        await liar.close(frame.stream, {"ok": {}})

    liar.answer = answer
    with pytest.raises(GuestFailed, match="sent more than 10485760 bytes"):
        await client.exec_list()


def granted(liar: Liar, stream_number: int) -> int:
    """Return how much the host let the guest send, beyond the window."""
    mine = [f for f in liar.frames if f.type == protocol.CREDIT and f.stream == stream_number]
    return sum(int.from_bytes(f.payload, "big") for f in mine)


async def test_more_skips_than_python_has_stack(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        started = {"started": {**GOOD_EXEC, "exec_id": message["params"]["exec_id"]}}
        skip = encode(
            protocol.DATA, protocol.CHANNEL_ITEMS, liar.epoch, frame.stream, b'{"skipped_to": 1}\n'
        )
        data = pack_json({**started, "stdout_offset": 0}) + b"\n"
        await liar.send(protocol.DATA, frame.stream, data, flags=protocol.CHANNEL_ITEMS)
        await liar.raw(skip * 2000)
        await liar.close(frame.stream, {"ok": {"exec": started["started"]}})

    liar.answer = answer
    assert (await run(client, "true")).info.exit_code == 0


@pytest.mark.parametrize(
    "item",
    [
        {"name": "/etc/passwd", "kind": "write"},
        {"name": "a/../../b", "kind": "write"},
        {"name": "", "kind": "write"},
        {"name": "a\0", "kind": "write"},
        {"name": "x" * 5000, "kind": "write"},
        {"name": 5, "kind": "write"},
        {"name": "a", "kind": "missed"},
        {"name": "a", "kind": ["write"]},
        {"name": "a", "kind": "exploded"},
        {},
    ],
)
async def test_what_happens_in_a_folder_and_cannot(
    liar: Liar, tmp_path: Path, item: dict[str, object]
) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        said = ({"following": 1}, {"name": "a", "kind": "write"}, item)
        lines = b"".join(pack_json(each) + b"\n" for each in said)
        await liar.send(protocol.DATA, frame.stream, lines, flags=protocol.CHANNEL_ITEMS)

    liar.hello, liar.answer = {"capabilities": ["follow_dir"]}, answer
    client = await connect(tmp_path / "liar.sock", epoch=5, timeout_s=5)
    async with client.follow_dir("/x") as events:
        assert (await anext(events)).name == "a"
        with pytest.raises(GuestFailed, match="no sense"):
            await anext(events)
    await client.aclose()


async def test_an_agent_that_is_too_old_follows_no_folder(client: GuestClient) -> None:
    with pytest.raises(HostNotReady, match="too old"):
        async with client.follow_dir("/x"):
            pass


@pytest.mark.parametrize(
    "close",
    [
        {},
        {"error": 5},
        {"error": {"code": ["x"]}},
        {"ok": 5},
        {"error": {"code": "failed", "message": "m" * 100_000, "facts": {"message": 1, "a": {}}}},
    ],
)
async def test_senseless_ends(liar: Liar, client: GuestClient, close: dict[str, object]) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        await liar.close(frame.stream, close)

    liar.answer = answer
    with pytest.raises(GuestFailed) as caught:
        await client.stat("/x")
    assert len(str(caught.value)) < 5000


async def test_facts_that_only_the_daemon_says(liar: Liar, client: GuestClient) -> None:
    facts = {"retry_after_seconds": "soon\u20ac", "path": "/x"}

    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        error = {"code": "limit", "message": "too much", "facts": facts}
        await liar.close(frame.stream, {"error": error})

    liar.answer = answer
    with pytest.raises(LimitExceeded) as caught:
        await client.stat("/x")
    assert caught.value.facts == {"path": "/x"}, "it would be a header of the daemon's answer"


def packed(*members: tuple[str, bytes, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return buffer.getvalue()


FILE, DIR, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "members",
    [
        [("/etc/x", FILE, "")],
        [("../x", FILE, "")],
        [("a/x", FILE, "")],
        [("a", LINK, "/etc"), ("a/x", FILE, "")],
        [("a", LINK, "/etc"), ("a", DIR, ""), ("a/x", FILE, "")],
        [("a", DIR, ""), ("a/x", FILE, ""), ("a/x", LINK, "/etc/x")],
        [("h", HARD, "a")],
        [("d", tarfile.CHRTYPE, "")],
        [(".", DIR, "")],
    ],
)
async def test_a_hostile_archive_never_reaches_the_caller(
    liar: Liar, client: GuestClient, members: list[tuple[str, bytes, str]]
) -> None:
    data = packed(("A", FILE, ""), *members)

    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        for at in range(0, len(data), 700):
            await liar.send(protocol.DATA, frame.stream, data[at : at + 700])
        await liar.close(frame.stream, {"ok": {}})

    liar.answer = answer
    with pytest.raises(GuestFailed, match="must not be unpacked"):
        await slurp(client.pack("/x"))


async def test_an_archive_cut_short(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        await liar.send(protocol.DATA, frame.stream, packed(("A", FILE, ""))[:512])
        await liar.close(frame.stream, {"ok": {}})

    liar.answer = answer
    with pytest.raises(GuestFailed, match="not whole"):
        await slurp(client.pack("/x"))


async def test_an_early_error_stops_the_upload(liar: Liar, client: GuestClient) -> None:
    async def answer(liar: Liar, frame: Frame, message: dict[str, Any]) -> None:
        await liar.close(frame.stream, {"error": {"code": "failed", "message": "disk full"}})

    liar.answer = answer
    with pytest.raises(GuestFailed, match="disk full"):
        await client.write("/x", stream([bytes(65536)] * 1000))
