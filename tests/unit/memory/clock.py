"""A clock that tests set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Stands still until told."""

    def __init__(self, now: datetime = START) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def monotonic_s(self) -> float:
        return (self._now - START).total_seconds()

    def advance(self, **amount: float) -> datetime:
        self._now += timedelta(**amount)
        return self._now


def day(n: float) -> datetime:
    """Return the moment `n` days after the start."""
    return START + timedelta(days=n)
