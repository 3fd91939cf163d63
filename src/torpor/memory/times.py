"""Between aware datetimes, which callers use, and UTC microseconds, which rows hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from torpor.errors import InvalidRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Return microseconds since 1970, UTC.

    Raises:
        InvalidRequest: `moment` has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidRequest(
            f"{moment.isoformat()} has no time zone", hint="use datetime(..., tzinfo=UTC)"
        )
    return (moment - _EPOCH) // _US


def to_time(us: int) -> datetime:
    """Return the aware UTC datetime of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=us)


def to_time_or_none(us: int | None) -> datetime | None:
    """Return the datetime, or None for None."""
    return None if us is None else to_time(us)


def days_between(earlier_us: int, later_us: int) -> int:
    """Return whole days from one moment to another, never negative."""
    return max(0, (later_us - earlier_us) // 86_400_000_000)
