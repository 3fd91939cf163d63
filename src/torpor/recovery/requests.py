"""Checks and profiles that somebody hands in: refused before anything is looked up or begun."""

from __future__ import annotations

from torpor.errors import InvalidRequest

CHECKS_MOST = 1 << 20


def check_checks(text: str | None, source: str) -> None:
    """Raise `InvalidRequest`, with line and column, for checks that cannot be read."""
    if text is None:
        return
    if len(text) > CHECKS_MOST:
        raise InvalidRequest(f"{source[:200]} is over {CHECKS_MOST} bytes")
    from torpor.recovery.checks import parse_checks

    parse_checks(text, source=source)


def check_profile(text: str | None) -> None:
    """Raise `InvalidRequest` or `NotFound` for a profile that cannot be read."""
    if text is None:
        return
    from torpor.recovery.profiles import parse_profile, shipped

    if "\n" in text or ":" in text:
        parse_profile(text, source="profile")
    else:
        shipped(text)
