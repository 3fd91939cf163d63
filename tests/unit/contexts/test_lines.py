"""What a context's program answers is believed in its shape only."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from torpor.base.aio import closing
from torpor.contexts import lines as module
from torpor.contexts.lines import Lines, event_of
from torpor.contexts.running import Ran
from torpor.errors import Busy, GuestFailed
from torpor.model import ExecId, ExecInfo
from torpor.model_contexts import (
    CONTEXTS_FOLDER,
    CodeEnded,
    CodeError,
    CodeOutput,
    CodeResult,
    CodeStarted,
    context_of,
)

pytestmark = pytest.mark.anyio

SERVE = f"{CONTEXTS_FOLDER}-0123456789abcdef/serve.py"


async def fed(lines: Lines, data: bytes) -> list[dict[str, Any]]:
    async with closing(lines.feed(data)) as objects:
        return [said async for said in objects]


def event(**said: Any) -> object:
    return event_of(said, duration_ms=5)


async def test_lines_come_however_they_are_cut() -> None:
    data = b'{"a": 1}\n\n{"b": "\xc3\xa9"}\n'
    for size in range(1, len(data) + 1):
        lines, found = Lines(), []
        for begin in range(0, len(data), size):
            found += await fed(lines, data[begin : begin + size])
        assert found == [{"a": 1}, {"b": "é"}]


@pytest.mark.parametrize(
    "line", [b"[]", b"1", b'"x"', b"{", b"\xff", b"null", b"[" * 100_000 + b"\n"]
)
async def test_a_line_that_is_no_object(line: bytes) -> None:
    with pytest.raises(GuestFailed, match="makes no sense"):
        await fed(Lines(), line + b"\n")


async def test_numbers_that_json_has_not_are_nothing() -> None:
    said = b'{"a": NaN, "b": [Infinity, 1e999, -1e999, 1.5]}\n'
    assert await fed(Lines(), said) == [{"a": None, "b": [None, None, None, 1.5]}]


def test_output_in_a_million_pieces_is_not_copied_a_million_times() -> None:
    ran, piece = Ran(), CodeOutput("stdout", "x")
    begun_s = time.process_time()
    for _ in range(1 << 20):
        ran.add(piece)
    assert ran.stdout == "x" * (1 << 20)
    assert time.process_time() - begun_s < 10, "one by one it takes half a minute"


async def test_a_line_and_a_run_have_limits() -> None:
    for data in (b"x" * 101, b'{"a": "' + b"x" * 100 + b'"}\n'):
        with pytest.raises(GuestFailed, match="more than is believed"):
            await fed(Lines(line_bytes=100), data)
    lines = Lines(total_bytes=100)
    assert await fed(lines, b'{"a": 1}\n' * 10)
    with pytest.raises(GuestFailed, match="more than is believed"):
        await fed(lines, b'{"a": 1}\n' * 10)


async def test_the_values_of_a_line_and_of_a_run_have_limits() -> None:
    many = b'{"a": [' + b"[]," * 2000 + b"0]}\n"
    with pytest.raises(GuestFailed, match="more values than are believed"):
        await fed(Lines(line_values=4000), many)
    lines = Lines(line_values=4010, total_values=8100)
    for _ in range(2):
        assert len((await fed(lines, many))[0]["a"]) == 2001
    with pytest.raises(GuestFailed, match="more values than are believed"):
        await fed(lines, many)
    assert await fed(lines, b'{"a": "short lines are as before"}\n')


async def test_marks_inside_texts_are_no_values() -> None:
    for text in ("[{,\\" * 3000 + '"', '\\"' * 9000, '"]},"' * 5000):
        line = json.dumps({"a": text}).encode() + b"\n"
        assert await fed(Lines(line_values=5), line) == [{"a": text}]
    with pytest.raises(GuestFailed, match="no JSON object"):  # a text without an end, told at once
        await fed(Lines(), b'{"a": "' + b'\\",' * 200_000 + b"\n")


async def test_while_a_long_line_is_read_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, goes_on, read = asyncio.Event(), threading.Event(), module._object
    loop = asyncio.get_running_loop()

    def slow(line: bytes) -> dict[str, Any]:
        loop.call_soon_threadsafe(has_begun.set)
        assert goes_on.wait(30), "nothing but the reading went on"
        return read(line)

    async def beside() -> None:
        await has_begun.wait()
        goes_on.set()

    monkeypatch.setattr(module, "_object", slow)
    line = json.dumps({"a": "x" * 100_000}).encode() + b"\n"
    _, found = await asyncio.gather(beside(), fed(Lines(), line))
    assert len(found[0]["a"]) == 100_000


def test_events() -> None:
    assert event(kind="started") == CodeStarted()
    assert event(kind="stderr", text="x") == CodeOutput("stderr", "x")
    assert event(kind="error", name="E" * 999, value="v", traceback="t") == CodeError(
        name="E" * 200, value="v", traceback="t"
    )
    assert event(kind="of a newer program") is None
    data = {"text/plain": "x", "application/json": {"a": [1]}, "no mime": "x", "a/\nb": "x"}
    omitted = {"image/png": 7, "image/gif": -1, "x": 1, "image/bmp": True}
    assert event(kind="result", data=data, main=1, omitted=omitted) == CodeResult(
        data={"text/plain": "x", "application/json": {"a": [1]}},
        is_main=False,
        omitted={"image/png": 7},
    )
    done = event(kind="done", status="ok", exit_code=256, execution_count="1", stdout_bytes=-1)
    assert done == CodeEnded(status="ok", duration_ms=5)
    full = event(kind="done", status="timeout", restarted=True, exit_code=7, stderr_bytes=9)
    assert full == CodeEnded(
        status="timeout", duration_ms=5, restarted=True, exit_code=7, stderr_bytes=9
    )


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "stdout"},
        {"kind": "stdout", "text": 1},
        {"kind": "error", "name": None, "value": "", "traceback": ""},
        {"kind": "result", "data": []},
        {"kind": "result", "data": {}, "omitted": [1]},
        {"kind": "done"},
        {"kind": "done", "status": "fine"},
        {"kind": "refused", "why": "failed", "message": "no\nroom"},
    ],
)
def test_events_that_make_no_sense(said: dict[str, Any]) -> None:
    with pytest.raises(GuestFailed):
        event(**said)


def test_a_refusal() -> None:
    with pytest.raises(Busy, match="16 runs wait already"):
        event(kind="refused", why="busy", message="16 runs wait already")


def info(exec_id: str, *command: str, **facts: Any) -> ExecInfo:
    return ExecInfo(
        **{
            "exec_id": ExecId(exec_id),
            "command": command,
            "state": "running",
            "pid": 7,
            "user": "root",
            "cwd": "/",
            "background": True,
            "started_at": datetime(2026, 1, 1, tzinfo=UTC),
            **facts,
        }
    )


def test_which_execs_are_contexts() -> None:
    words = ("python3", "-I", SERVE, f"{CONTEXTS_FOLDER}/ctx_a", "bash")
    found = context_of(info("ctx_a", *words, state="exited"))
    assert found is not None
    assert (found.id, found.language, found.state) == ("ctx_a", "bash", "ended")
    assert found.program == SERVE.removesuffix("/serve.py")
    for wrong in (
        info("exec_a", *words),
        info("ctx_a", *words[:4], "perl"),
        info("ctx_a", *words[:4]),
        info("ctx_a", "python3", "-I", "/tmp/serve.py", *words[3:]),
        info("ctx_a", "python3", "-I", f"{CONTEXTS_FOLDER}-../../serve.py", *words[3:]),
        info("ctx_a", command="sleep 5"),
    ):
        assert context_of(wrong) is None
