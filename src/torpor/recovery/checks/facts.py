"""What looking at a machine gave, before it is compared with what was wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torpor.model_checks import Finding, Measurement, Outcome
from torpor.recovery.checks.matchers import Value


class Unclear(Exception):
    """Raised when it cannot be told whether a check passes; its text is the reason."""


class Broken(Exception):
    """Raised when a check fails before anything can be compared; its text is the reason."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.output = output


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The attributes that were found, by name."""

    values: Mapping[str, Value | None] = field(default_factory=dict)
    """None: there is no such thing; it is as nothing could be wanted."""
    why_not: Mapping[str, str] = field(default_factory=dict)
    """Why a value is None."""
    output: str = ""
    """Cleaned output to keep as evidence."""
    decided: Outcome | None = None
    """The outcome, where it does not come from comparing (plugins)."""
    reason: str = ""
    """Why, when `decided`."""
    findings: tuple[Finding, ...] = ()
    """What was compared already, when `decided`."""
    warning: bool = False
    measurements: tuple[Measurement, ...] = ()
