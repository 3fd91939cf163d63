"""When a sentence says that something began, resolved against the time it was said."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_MONTHS = {
    name: n
    for n, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul",
            "august aug", "september sep sept", "october oct", "november nov", "december dec",
        ),
        start=1,
    )
    for name in names.split()
}  # fmt: skip

_ISO = re.compile(r"\b(?:since|from|as of|on) (\d{4})-(\d{2})-(\d{2})\b", re.IGNORECASE)
_MONTH = re.compile(r"\b(?:since|in|from|as of) ([a-z]{3,9})\.? (\d{4})\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(?:since|in|as of) (\d{4})\b", re.IGNORECASE)
_RELATIVE = re.compile(r"\b(yesterday|today|last (week|month|year))\b", re.IGNORECASE)
_AGO = re.compile(r"\b(\d{1,3}) (day|week|month|year)s? ago\b", re.IGNORECASE)

_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}


def since(sentence: str, said: datetime) -> tuple[datetime | None, str]:
    """Return the moment that a sentence names and its precision; None if it names none or a later one."""
    try:
        found, precision = _named(sentence, said)
    except OverflowError:  # 900 years before the year 200
        return None, "instant"
    if found is None or found > said:
        return None, "instant"
    return found, precision


def _named(sentence: str, said: datetime) -> tuple[datetime | None, str]:
    if m := _ISO.search(sentence):
        return _date(int(m[1]), int(m[2]), int(m[3])), "day"
    if (m := _MONTH.search(sentence)) and m[1].casefold() in _MONTHS:
        return _date(int(m[2]), _MONTHS[m[1].casefold()], 1), "month"
    if m := _YEAR.search(sentence):
        return _date(int(m[1]), 1, 1), "year"
    if m := _AGO.search(sentence):
        return said - timedelta(days=int(m[1]) * _DAYS[m[2].casefold()]), m[2].casefold().replace(
            "week", "day"
        )
    if m := _RELATIVE.search(sentence):
        word = m[1].casefold()
        if word == "today":
            return said.replace(hour=0, minute=0, second=0, microsecond=0), "day"
        if word == "yesterday":
            return said - timedelta(days=1), "day"
        return said - timedelta(days=_DAYS[m[2].casefold()]), "month" if m[2] != "week" else "day"
    return None, "instant"


def _date(year: int, month: int, day: int) -> datetime | None:
    try:
        return datetime(year, month, day, tzinfo=UTC)
    except ValueError:
        return None
