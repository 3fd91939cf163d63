"""Time as a value that is handed in, so that tests decide what time it is."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time of day and the time that passed."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never go back; only differences mean something."""
        ...


class SystemClock:
    """The host's own clocks."""

    def now(self) -> datetime:
        """Return the host's time of day in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return the host's monotonic clock in seconds."""
        return time.monotonic()
