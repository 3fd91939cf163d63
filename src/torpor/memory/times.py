"""Between aware datetimes, which callers use, and UTC microseconds, which rows hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from torpor.errors import DataDamaged, InvalidRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
EARLIEST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _US
LATEST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _US


def to_us(moment: datetime) -> int:
    """Return microseconds since 1970, UTC.

    Raises:
        InvalidRequest: `moment` is no time, has no time zone, or is in UTC not within the years 1 to 9999:
            it could be written and never be read.
    """
    if not isinstance(moment, datetime):
        raise InvalidRequest(f"{moment!r:.80} is no time", hint="use datetime(..., tzinfo=UTC)")
    if moment.tzinfo is None:
        raise InvalidRequest(
            f"{moment.isoformat()} has no time zone", hint="use datetime(..., tzinfo=UTC)"
        )
    found = (moment - _EPOCH) // _US
    if not EARLIEST_US <= found <= LATEST_US:
        raise InvalidRequest(f"{moment.isoformat()} is in UTC not within the years 1 to 9999")
    return found


def to_time(us: int) -> datetime:
    """Return the aware UTC datetime of microseconds since 1970. Raises `DataDamaged` if there is none."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError as exc:
        raise DataDamaged(f"{us} is no time", hint="compare the memory with its chain") from exc


def to_time_or_none(us: int | None) -> datetime | None:
    """Return the datetime, or None for None."""
    return None if us is None else to_time(us)


def days_between(earlier_us: int, later_us: int) -> int:
    """Return whole days from one moment to another, never negative."""
    return max(0, (later_us - earlier_us) // 86_400_000_000)
