"""Feeds of changes: what is remembered is bounded, whatever a command writes."""

from __future__ import annotations

import asyncio

from torpor.model_changes import ChangeEvent
from torpor.recovery.changes.feeds import OUTPUT_CHARS_MOST, Feed


def test_a_command_that_writes_without_end_takes_bounded_memory() -> None:
    feed = Feed()
    chunk = "x" * (32 << 10)
    for number in range(1000):
        feed.add("output", {"stream": "stdout", "offset": number * len(chunk), "chunk": chunk})
    feed.add("state", {"state": "kept"})
    feed.end()

    async def all_of() -> list[ChangeEvent]:
        return [event async for event in feed.follow()]

    found = asyncio.run(all_of())
    assert found[-1].name == "state"
    assert [event.seq for event in found] == list(range(1002 - len(found), 1002))
    kept = sum(len(event.data.get("chunk", "")) for event in found)
    assert OUTPUT_CHARS_MOST - len(chunk) <= kept <= OUTPUT_CHARS_MOST
