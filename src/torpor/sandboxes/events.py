"""`EventLog`: the last changes of state, for those who follow them.

It is in memory and bounded: a reader is never waited for, has no queue of its own, and finds a gap where it was too
slow. Ids name the daemon's life too, so that a reader that comes back after a restart is told of a gap.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable

from torpor.base.clock import Clock, SystemClock
from torpor.model import SandboxId, SandboxInfo, SandboxState, SnapshotInfo
from torpor.model_events import StateEvent

KEPT = 10_000
"""Events that are kept."""

Detail = str | int | None


class EventLog:
    """Takes events from any thread, and hands them to readers in loops."""

    def __init__(self, clock: Clock | None = None, *, most: int = KEPT) -> None:
        self._clock = clock or SystemClock()
        self._life = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._last = 0
        self._events: deque[StateEvent] = deque(maxlen=most)
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._states: dict[SandboxId, tuple[SandboxState, int]] = {}

    # ---- what happens ----

    def record(
        self, kind: str, object_id: str, state: str, workspace: str | None, **details: Detail
    ) -> None:
        """Add an event. May be called from any thread."""
        with self._lock:
            self._last += 1
            self._events.append(
                StateEvent(
                    id=f"{self._life}-{self._last}",
                    kind=kind,
                    object_id=object_id,
                    state=state,
                    at=self._clock.now(),
                    workspace=workspace,
                    details=details,
                )
            )
            waiting = list(self._waiting)
        for loop, news in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

    def know(self, infos: Iterable[SandboxInfo]) -> None:
        """Note states that are no news."""
        with self._lock:
            self._states.update((i.id, (i.state, i.generation)) for i in infos)

    def sandbox(self, info: SandboxInfo) -> None:
        """Take a sandbox that was written down; it is an event if its state or generation changed."""
        now = (info.state, info.generation)
        with self._lock:
            if self._states.get(info.id) == now:
                return
            if info.state is SandboxState.DELETED:
                self._states.pop(info.id, None)
            else:
                self._states[info.id] = now
        self.record(
            "sandbox",
            info.id,
            info.state,
            info.workspace,
            template=info.template,
            generation=info.generation,
            snapshot_id=info.parent_snapshot,
        )

    def snapshot(self, info: SnapshotInfo, is_there: bool) -> None:
        """Take a snapshot that came to be, or is gone."""
        self.record(
            "snapshot",
            info.id,
            "created" if is_there else "deleted",
            None if info.reason == "template" else info.workspace,
            sandbox_id=info.sandbox_id,
            label=info.label,
            reason=info.reason,
            template=info.template,
        )

    # ---- who follows ----

    async def follow(self, after: str | None = None) -> AsyncIterator[StateEvent]:
        """Yield the events behind `after` (None: from now on), for ever. A `gap` stands where some are missing."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        place = (loop, news)
        with self._lock:
            self._waiting.add(place)
            at, is_gap = self._place(after)
        try:
            while True:
                news.clear()
                with self._lock:
                    begin = self._last - len(self._events)
                    is_gap = is_gap or at < begin
                    at = max(at, begin)
                    found = [self._events[n] for n in range(at - begin, len(self._events))]
                    at = self._last
                if is_gap:
                    is_gap = False
                    yield self._gap(found)
                for event in found:
                    yield event
                await news.wait()
        finally:
            with self._lock:
                self._waiting.discard(place)

    def _place(self, after: str | None) -> tuple[int, bool]:
        """Return behind which event to begin, and whether some are missing before it."""
        if after is None:
            return self._last, False
        life, _, number = after.partition("-")
        if life != self._life or not number.isdecimal() or int(number) > self._last:
            return self._last - len(self._events), True
        return int(number), False

    def _gap(self, found: list[StateEvent]) -> StateEvent:
        number = self._last - len(found)
        return StateEvent(
            id=f"{self._life}-{number}",
            kind="gap",
            object_id="",
            state="missed",
            at=self._clock.now(),
            workspace=None,
        )
