"""What one inventory may cost, and what it had to leave out."""

from __future__ import annotations

import re
import time

ENTRIES_MOST = 20_000
NAMES_MOST = 50_000
"""Names looked at in all folders together."""
HASHED_MOST = 256 << 20
"""Bytes read for digests that were not in the cache."""
NOTES_MOST = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class OutOfTime(Exception):
    """Raised when the deadline has passed."""


class Budget:
    """Counts what is spent. `deadline` is on the clock of `time.monotonic`."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.names_left = NAMES_MOST
        self.entries_left = ENTRIES_MOST
        self.bytes_left = HASHED_MOST

    @property
    def seconds_left(self) -> float:
        """How long it may still take; never below 0."""
        return max(0.0, self.deadline - time.monotonic())

    def check_time(self) -> None:
        """Raise `OutOfTime` after the deadline."""
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def take_name(self) -> bool:
        """Count one name; return whether it may still be looked at."""
        self.names_left -= 1
        if self.names_left % 64 == 0:
            self.check_time()
        return self.names_left >= 0


class Section:
    """The entries of one kind as they are found."""

    def __init__(self, kind: str, budget: Budget) -> None:
        self.kind = kind
        self.entries: dict[str, dict[str, object]] = {}
        self.notes: list[str] = []
        self.is_complete = True
        self._budget = budget

    def add(
        self,
        name: str,
        shown: dict[str, object] | None = None,
        hidden: dict[str, str] | None = None,
        unknown: list[str] | None = None,
    ) -> None:
        """Add an entry; a second one of the same name gets a number behind it."""
        if self._budget.entries_left <= 0:
            self.cut(f"there are more than {ENTRIES_MOST} entries in all")
            return
        self._budget.entries_left -= 1
        name = _short(name, 900)
        unique, number = name, 1
        while unique in self.entries:
            number += 1
            unique = f"{name} ({number})"
        entry: dict[str, object] = {"name": unique}
        if shown:
            entry["shown"] = {
                _field(key): _short(value, 500) if isinstance(value, str) else value
                for key, value in shown.items()
            }
        if hidden:
            entry["hidden"] = {_field(key): value for key, value in hidden.items()}
        if unknown:
            entry["unknown"] = [_field(key) for key in unknown]
        self.entries[unique] = entry

    def note(self, text: str) -> None:
        """Say what could not be read, though the list is whole without it."""
        if len(self.notes) < NOTES_MOST:
            self.notes.append(_short(text, 500))

    def cut(self, why: str) -> None:
        """Say that the list is not whole, and why."""
        if self.is_complete or why not in self.notes:
            self.is_complete = False
            self.note(why)

    def to_wire(self) -> dict[str, object]:
        """Return what is said of the section beside its entries."""
        return {"is_complete": self.is_complete, "notes": self.notes}


def _field(text: str) -> str:
    """Return a field's name as it may be sent: short, and without control characters."""
    return _CONTROL.sub("?", _short(text, 120)) or "?"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
