"""Signals by name and number."""

from __future__ import annotations

import signal as signals

from torpor.errors import InvalidRequest


def signal_number(signal: str | int) -> int:
    """Return the number of a signal given by name or number.

    Raises:
        InvalidRequest: there is no such signal.
    """
    text = str(signal)
    if isinstance(signal, str) and not text.isdecimal():
        name = text.upper()
        found = getattr(signals, name if name.startswith("SIG") else f"SIG{name}", None)
        if isinstance(found, signals.Signals):
            return int(found)
    elif len(text) <= 2 and text.isdecimal() and 1 <= int(text) <= 64:
        return int(text)
    raise InvalidRequest(
        f"there is no signal {text[:50]!r}", hint="for example TERM, INT, KILL or 15"
    )
