"""Events are the same however their bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.errors import TorporError
from torpor.sdk.sse import SseEvent, sse_events
from torpor.server.replies import sse

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


async def _split(data: bytes, cuts: list[int]) -> AsyncIterator[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(places):
        yield data[begin:end]


def parse(data: bytes, cuts: list[int]) -> list[SseEvent]:
    async def work() -> list[SseEvent]:
        return [event async for event in sse_events(_split(data, cuts))]

    return asyncio.run(work())


@given(
    st.lists(st.tuples(st.sampled_from([None, "stdout", "exit"]), VALUES), max_size=4),
    st.lists(st.integers(0, 1000), max_size=10),
)
def test_what_the_server_writes_is_read_back(
    events: list[tuple[str | None, object]], cuts: list[int]
) -> None:
    data = b": hello\n\n" + b": keepalive\n\n".join(sse(name, value) for name, value in events)
    assert parse(data, cuts) == [SseEvent(name or "message", value) for name, value in events]


def test_an_event_that_was_cut_off_is_dropped() -> None:
    assert parse(sse("exit", {"code": 1})[:-1], []) == []


def test_data_that_is_not_json() -> None:
    with pytest.raises(TorporError, match="not JSON"):
        parse(b"data: {\n\n", [])


def test_an_endless_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.sdk.sse.EVENT_LIMIT_BYTES", 100)
    with pytest.raises(TorporError, match="over 100 bytes"):
        parse(b"data: " + b"x" * 200, [50])
