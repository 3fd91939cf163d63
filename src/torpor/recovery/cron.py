"""Cron expressions: five fields, in UTC. What they mean is croniter's to say."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from croniter import CroniterError, croniter

from torpor.errors import InvalidRequest

_LONGEST = 200
_FIELDS = 5
_DRAWN = re.compile(r"(?i)(?:^|[ ,])[rh](?:[ ,/(]|$)")
"""croniter's own: fields that it fills in."""


def check_schedule(text: str, *, now: datetime) -> str:
    """Return a cron expression without needless blanks. Raises `InvalidRequest` when it is none, or never comes."""
    found = " ".join(text.split())
    if len(found) > _LONGEST or (not found.startswith("@") and len(found.split()) != _FIELDS):
        raise _wrong(found, "five fields are wanted")
    if _DRAWN.search(found):
        raise _wrong(found, "a time that is drawn at random (R) would be drawn again and again")
    next_time(found, now)
    return found


def next_time(text: str, after: datetime) -> datetime:
    """Return the first time of a schedule behind `after`. Raises `InvalidRequest`."""
    try:
        found: datetime = croniter(text, after.astimezone(UTC)).get_next(datetime)
    except (CroniterError, ValueError, KeyError, AttributeError) as exc:
        raise _wrong(text, str(exc)) from exc
    return found


def _wrong(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{text[:80]!r} is no schedule: {why}",
        hint="minute, hour, day of the month, month, day of the week, in UTC: '0 4 * * 1' is Mondays at four",
    )
