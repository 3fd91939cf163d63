"""What a checks file asks for, read and checked: values only. `parse` makes them, `run` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torpor.errors import InvalidRequest
from torpor.model_checks import Group
from torpor.recovery.checks.matchers import Matcher

CHECKS_MOST = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a check is tried, and how often; the names in the file are those of Kubernetes' probes."""

    initial_delay_seconds: float = 0.0
    period_seconds: float = 5.0
    """Between the end of one attempt and the beginning of the next."""
    timeout_seconds: float = 10.0
    """For one attempt as a whole."""
    failure_threshold: int = 1
    """It fails when so many attempts have failed, in all."""
    success_threshold: int = 1
    """It passes when so many attempts in a row have passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One entry of a resource map."""

    group: Group
    kind: str
    name: str
    """The key in the map."""
    wants: Mapping[str, Matcher]
    """What each attribute has to be."""
    options: Mapping[str, Any]
    """How to look: what is run, as whom, which URL."""
    timing: Timing
    line: int
    """Where it stands in the file."""
    title: str | None = None
    skip: bool = False

    @property
    def target(self) -> str:
        """What is looked at: the key, unless an attribute names it (`exec`, `path`, `url`, …)."""
        return str(self.options.get("target", self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """A whole checks file."""

    source: str
    text: str
    checks: tuple[Check, ...]
    """In the order of the file, the required ones first."""
    folders: bool = True
    """Run the executables in the machine's /etc/torpor/checks too."""
    timing: Timing = field(default_factory=Timing)
    """The file's `defaults`; those executables have it."""

    def to_json(self) -> dict[str, str]:
        """Return it as JSON has it: its text."""
        return {"source": self.source, "text": self.text}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> CheckPlan:
        """Return the plan in `body`. Raises `InvalidRequest` as `parse_checks`."""
        from torpor.recovery.checks.parse import parse_checks

        if not isinstance(body.get("text"), str) or not isinstance(body.get("source"), str):
            raise InvalidRequest("a stored checks plan needs the texts `source` and `text`")
        return parse_checks(body["text"], source=body["source"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpec:
    """One bounded turn of an agent, as its profile names it; a `turn` check can say each of these itself."""

    command: str | tuple[str, ...]
    """Text for `/bin/sh -c`, or the words of a command."""
    user: str | None = None
    """None: the owner of the first of `homes` that is there, else root."""
    homes: tuple[str, ...] = ()
    """Patterns of the folders that the agent lives in."""
    timeout_seconds: float = 120.0
    expect: str | None = None
    """A regular expression that stdout has to have in it; None: exit code 0 is enough."""
    outage_exit_codes: tuple[int, ...] = ()
    """Exit codes with which the agent says that its provider is not there."""
    outage_patterns: tuple[str, ...] = ()
    """goss patterns of output that say so."""
    control: str | tuple[str, ...] | None = None
    """A command that asks the provider without the agent; run when a turn fails."""
