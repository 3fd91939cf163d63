"""Does what is due, one thing after the other, and sleeps until the next time; news wake it sooner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from torpor.base.clock import Clock

log = logging.getLogger(__name__)

_LONGEST_S = 300.0
"""The clock of the host may be set meanwhile; so often it is looked at anew."""
_AFTER_A_FAILURE_S = 30.0


class Timetable:
    """A loop over things that are due at some time."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        next_at: Callable[[], datetime | None],
        do_due: Callable[[datetime], Awaitable[None]],
        set_back: Callable[[datetime], Awaitable[None]],
    ) -> None:
        """Make one.

        Args:
            name: what it is for, in the log.
            clock: the time of day.
            next_at: returns when the next thing is due; None: nothing is.
            do_due: does all that is due at a time, and sees to it that `next_at` moves on.
            set_back: takes back what was reckoned by a clock that was ahead; called when the clock has been set
                back, and when this begins, as that may have been while no daemon ran.
        """
        self._name = name
        self._clock = clock
        self._next_at = next_at
        self._do_due = do_due
        self._set_back = set_back
        self._seen: datetime | None = None
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Look again at what comes next."""
        self._news.set()

    async def run(self) -> None:
        """Go on for ever. What was missed while no daemon ran is due at once, once."""
        while True:
            self._news.clear()
            pause_s = _LONGEST_S
            now = self._clock.now()
            try:
                if self._seen is None or now < self._seen:
                    await self._set_back(now)
                self._seen = now
                next_at = self._next_at()
                if next_at is not None and next_at <= now:
                    await self._do_due(now)
                    continue
                if next_at is not None:
                    pause_s = min(pause_s, (next_at - now).total_seconds())
            except Exception:
                log.exception("%s: what is due could not be done", self._name)
                pause_s = _AFTER_A_FAILURE_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
            except TimeoutError:
                pass
