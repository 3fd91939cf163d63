"""What the helpers that keep stores quiet have in common."""

from __future__ import annotations

import time


class KeeperFailed(Exception):
    """Raised when a store could not be quieted, or did not stay so."""


class Nothing(Exception):
    """Raised when there is no such store in the machine, and none was named."""


def left_s(deadline: float) -> float:
    """Return the seconds left until `deadline`, at least a little."""
    return max(0.01, deadline - time.monotonic())


def plain(text: str, most: int = 300) -> str:
    """Return `text` in one line without control characters or odd bytes, cut."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"
