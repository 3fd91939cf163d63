"""Output becomes text without losing or splitting anything, however the bytes come."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from torpor.model import ExecEnded, ExecId, ExecInfo, ExecOutput
from torpor.server.exec_output import Collected, SseEncoder, incomplete_tail

DATA = st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode))


def info(stdout_bytes: int) -> ExecInfo:
    return ExecInfo(
        exec_id=ExecId("exec_0"),
        command="x",
        state="exited",
        pid=1,
        user="agent",
        cwd="/",
        background=False,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        exit_code=0,
        duration_ms=1,
        stdout_bytes=stdout_bytes,
        stdout_path="/out",
    )


def frames(
    data: bytes, cuts: list[int], encoder: SseEncoder, offset: int = 0
) -> list[dict[str, object]]:
    found: list[bytes] = []
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(places):
        found += encoder.encode(ExecOutput("stdout", offset + begin, data[begin:end]))
    found += encoder.encode(ExecEnded(info(len(data))))
    assert found.pop().startswith(b"event: exit\n")
    return [json.loads(frame.split(b"data: ", 1)[1]) for frame in found]


def content(frame: dict[str, object]) -> bytes:
    return base64.b64decode(str(frame["b64"])) if "b64" in frame else str(frame["chunk"]).encode()


@given(DATA, st.lists(st.integers(0, 100)), st.integers(0, 1000))
def test_every_byte_once_and_in_order(data: bytes, cuts: list[int], offset: int) -> None:
    encoder = SseEncoder(limit_bytes=None, streams=frozenset({"stdout"}))
    found = frames(data, cuts, encoder, offset)
    assert b"".join(map(content, found)) == data
    place = offset
    for frame in found:
        assert frame["offset"] == place
        place += len(content(frame))
        assert frame["next_offset"] == place


@given(st.text(max_size=30), st.lists(st.integers(0, 100)))
def test_text_never_needs_base64(text: str, cuts: list[int]) -> None:
    encoder = SseEncoder(limit_bytes=None, streams=frozenset({"stdout"}))
    found = frames(text.encode(), cuts, encoder)
    assert all("b64" not in frame for frame in found)
    assert "".join(str(frame["chunk"]) for frame in found) == text


@given(DATA, st.lists(st.integers(0, 100)), st.integers(0, 60))
def test_the_limit_is_exact(data: bytes, cuts: list[int], limit: int) -> None:
    encoder = SseEncoder(limit_bytes=limit, streams=frozenset({"stdout"}))
    assert b"".join(map(content, frames(data, cuts, encoder))) == data[:limit]


@given(st.text(max_size=10), st.binary(max_size=4))
def test_incomplete_tail_is_short_and_could_go_on(text: str, tail: bytes) -> None:
    data = text.encode()
    assert incomplete_tail(data) == 0
    assert 0 <= incomplete_tail(data + tail) <= 3
    for char in ("é", "€", "😀"):
        whole = char.encode()
        for cut in range(1, len(whole)):
            assert incomplete_tail(data + whole[:cut]) == cut


@given(DATA, st.integers(0, 60))
def test_a_collected_result_is_cut_at_a_character(data: bytes, limit: int) -> None:
    collected = Collected(limit)
    collected.add(ExecOutput("stdout", 0, data))
    result = collected.result(info(len(data)))
    assert result.stdout_truncated == (len(data) > limit)
    kept = data[:limit]
    if not result.stdout_truncated:
        assert result.stdout == kept.decode("utf-8", "replace")
    else:
        assert f"of {len(data)} bytes shown; the whole is in /out]" in result.stdout
    if result.stdout_b64 is not None:
        assert kept.startswith(base64.b64decode(result.stdout_b64))


def test_streams_that_are_not_wanted_are_left_out() -> None:
    encoder = SseEncoder(limit_bytes=None, streams=frozenset({"stderr"}))
    assert list(encoder.encode(ExecOutput("stdout", 0, b"x"))) == []
    assert len(list(encoder.encode(ExecOutput("stderr", 0, b"x")))) == 1
