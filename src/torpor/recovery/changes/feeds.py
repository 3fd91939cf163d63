"""What happens to changes, for whoever looks on: the last events of each, in memory.

The row of a change is the truth; a feed only tells it sooner, and has the output of its command. It begins anew with
each daemon, and a reader that falls behind loses the oldest events, never the state: every state event has all of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from torpor.model_changes import ChangeEvent, ChangeId, ChangeInfo, EventName

_KEPT = 4000
OUTPUT_CHARS_MOST = 1 << 20
"""Of a command's output, that one feed remembers."""
_FEEDS_MOST = 50
"""Feeds of changes that are over are kept up to so many."""


class Feed:
    """The events of one change."""

    def __init__(self) -> None:
        self._events: deque[ChangeEvent] = deque()
        self._seq = self._chars = 0
        self._changed = asyncio.Event()
        self.is_over = False

    @property
    def last(self) -> int:
        """The number of the last event; 0 when there was none."""
        return self._seq

    def add(self, name: EventName, data: Mapping[str, Any]) -> None:
        """Note an event."""
        self._seq += 1
        self._events.append(ChangeEvent(seq=self._seq, name=name, data=data))
        self._chars += len(data.get("chunk", ""))
        while len(self._events) > _KEPT or self._chars > OUTPUT_CHARS_MOST:
            self._chars -= len(self._events.popleft().data.get("chunk", ""))
        self._wake()

    def end(self) -> None:
        """Note that nothing more comes."""
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, after: int = 0) -> AsyncGenerator[ChangeEvent, None]:
        """Yield the events behind number `after` that are still known, then what comes, until it is over."""
        while True:
            changed = self._changed
            for event in [event for event in self._events if event.seq > after]:
                after = event.seq
                yield event
            if self.is_over and after >= self._seq:
                return
            if changed is self._changed:
                await changed.wait()


class Feeds:
    """The feeds of all changes that this daemon has had to do with."""

    def __init__(self) -> None:
        self._feeds: dict[ChangeId, Feed] = {}

    def of(self, change_id: ChangeId) -> Feed:
        """Return the feed of a change, made if there is none."""
        if change_id not in self._feeds:
            over = [known for known, feed in self._feeds.items() if feed.is_over]
            for known in over[: max(0, len(self._feeds) - _FEEDS_MOST)]:
                del self._feeds[known]
            self._feeds[change_id] = Feed()
        return self._feeds[change_id]

    def state(self, info: ChangeInfo) -> None:
        """Tell what a change is now."""
        feed = self.of(info.id)
        feed.add("state", info.to_json())
        if not info.is_open:
            feed.end()
