"""What is measured: values, the values of the floor beside them, and whether the goal is met. Arithmetic only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["ms", "MiB", "MiB/s", "1/s"]

GoalKind = Literal["ratio at most", "ratio at least", "more by at most", "at most"]


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one kind, in the unit of their figure."""

    values: tuple[float, ...]

    @staticmethod
    def of(values: Iterable[float]) -> Series:
        """Return the series of `values`, of which there is at least one."""
        found = Series(tuple(float(value) for value in values))
        if not found.values:
            raise ValueError("a series has at least one value")
        return found

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        """The smallest value that at least 99 of 100 do not exceed; with few values the largest."""
        ordered = sorted(self.values)
        return ordered[max(0, math.ceil(0.99 * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should be; `limit` is a factor, or a number in the figure's unit."""

    kind: GoalKind
    limit: float

    def words(self, unit: Unit) -> str:
        """Return the goal as people read it."""
        match self.kind:
            case "ratio at most":
                return f"≤ {self.limit:g} x"
            case "ratio at least":
                return f"≥ {self.limit:g} x"
            case "more by at most":
                return f"+ ≤ {self.limit:g} {unit}"
            case "at most":
                return f"≤ {self.limit:g} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the result: ours, what it is set beside, and the goal."""

    name: str
    """`group.what`, for programs."""
    what: str
    unit: Unit
    ours: Series
    beside: Series | None = None
    beside_what: str = ""
    goal: Goal | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Our median over the other's; None when there is no other."""
        if self.beside is None or self.beside.median == 0:
            return None
        return self.ours.median / self.beside.median

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None when there is none, or nothing to set the figure beside."""
        if self.goal is None:
            return None
        if self.goal.kind == "at most":
            return self.ours.median <= self.goal.limit
        if self.beside is None or self.ratio is None:
            return None
        if self.goal.kind == "more by at most":
            return self.ours.median - self.beside.median <= self.goal.limit
        if self.goal.kind == "ratio at least":
            return self.ratio >= self.goal.limit
        return self.ratio <= self.goal.limit


@dataclass(frozen=True, slots=True)
class PausePoint:
    """One snapshot of a machine that changed its memory."""

    changed_mib: float
    """Memory that was changed since the machine's start, as the floor's copy found it."""
    pause_ms: float
    copy_ms: float | None
    """Time to copy the same pages once, by hand."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A figure that could not be measured, and why."""

    name: str
    why: str
