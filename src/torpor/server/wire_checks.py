"""The shapes of checks and their results in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from torpor.model_checks import CheckReport, CheckResult, Group, Outcome, Verdict
from torpor.server.wire import Wire


class CheckRequest(Wire):
    """What POST …/checks takes: the text of a checks file."""

    checks: Annotated[str, Field(description="YAML, or JSON; at most 256 KiB.")]
    source: Annotated[
        str,
        Field(
            min_length=1,
            max_length=200,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="The file's name, for messages and for the report.",
        ),
    ] = "checks.yaml"
    within_seconds: Annotated[
        float,
        Field(
            ge=1, le=7200, description="For all checks; those not done by then are inconclusive."
        ),
    ] = 3600
    profile: Annotated[
        str | None,
        Field(
            description="The agent's profile, for `turn` and `inventory` checks; null: the one that fits."
        ),
    ] = None
    baseline: Annotated[
        str | None,
        Field(
            description="A snapshot whose inventory `inventory` checks compare with; null: the one that the sandbox last was at."
        ),
    ] = None


class FindingWire(Wire):
    """One attribute of a check."""

    attribute: str
    wanted: str
    found: str
    status: Outcome


class MeasurementWire(Wire):
    """One value that a plugin measured."""

    label: str
    observedValue: float
    observedUnit: str
    warning: str
    critical: str


class CheckResultWire(Wire):
    """How one check ended."""

    id: Annotated[str, Field(description="GROUP/KIND:NAME, the same in every run.")]
    group: Group
    kind: str
    name: str
    title: str | None
    status: Literal["pass", "fail", "warn", "inconclusive", "skipped"]
    outcome: Outcome
    reason: str
    time: datetime
    duration_ms: int
    attempts: int
    findings: Sequence[FindingWire]
    output: str
    measurements: Sequence[MeasurementWire]

    @staticmethod
    def of(result: CheckResult) -> CheckResultWire:
        """Return `result` as JSON has it."""
        return CheckResultWire.model_validate(result.to_json())


class CheckReportWire(Wire):
    """All results of one run; docs/reference/checks.md describes the fields."""

    version: int
    status: Literal["pass", "fail", "warn"]
    verdict: Verdict
    output: str
    sandbox_id: str | None
    source: str
    time: datetime
    duration_ms: int
    checks: Sequence[CheckResultWire]

    @staticmethod
    def of(report: CheckReport) -> CheckReportWire:
        """Return `report` as JSON has it."""
        return CheckReportWire.model_validate(report.to_json())


class CheckInitRequest(Wire):
    """What POST …/checks/init takes; nothing is needed."""

    profile: Annotated[
        str | None, Field(description="An agent's profile, whose turn is put into the file.")
    ] = None


class CheckFileWire(Wire):
    """A first checks file."""

    checks: Annotated[str, Field(description="The text of the file.")]
    left_out: Annotated[
        Sequence[str], Field(description="What was seen and does not pass as a check now.")
    ]
    notes: Annotated[Sequence[str], Field(description="What was not looked at.")]
