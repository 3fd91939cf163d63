"""What a run of checks found: plain values with a JSON form, the same for the daemon and its clients.

A check ends as one of `Outcome`; a report has one `Verdict` for all. `inconclusive` means that it could
not be told, and is never a failure. Texts in here came from a machine: they are bounded and free of
control characters. Times are aware and in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from torpor.errors import CheckFailed, CheckInconclusive, InvalidRequest

Verdict = Literal["pass", "fail", "inconclusive"]
Outcome = Literal["pass", "fail", "inconclusive", "skipped"]
"""`skipped`: the checks file says `skip: true`, so it was not looked at."""
Group = Literal["required", "wanted"]
"""`required` checks decide; a `wanted` one that fails only warns."""

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One attribute of a check: what was wanted and what was found."""

    attribute: str
    wanted: str
    found: str
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "attribute": self.attribute,
            "wanted": self.wanted,
            "found": self.found,
            "status": self.outcome,
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Finding:
        """Return the finding in `body`."""
        return Finding(
            attribute=str(body["attribute"]),
            wanted=str(body["wanted"]),
            found=str(body["found"]),
            outcome=_one_of(body["status"], get_args(Outcome)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One value that a plugin measured (Nagios performance data)."""

    label: str
    value: float
    unit: str = ""
    warning: str = ""
    """The range outside of which the plugin warns, as it wrote it; so with `critical`."""
    critical: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "label": self.label,
            "observedValue": self.value,
            "observedUnit": self.unit,
            "warning": self.warning,
            "critical": self.critical,
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Measurement:
        """Return the measurement in `body`."""
        return Measurement(
            label=str(body["label"]),
            value=float(body["observedValue"]),
            unit=str(body["observedUnit"]),
            warning=str(body["warning"]),
            critical=str(body["critical"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """How one check ended, with the evidence of its last attempt."""

    group: Group
    kind: str
    """The resource: `command`, `file`, …; `executable` for a file of a checks folder; `machine`."""
    name: str
    """The resource's key in the checks file."""
    outcome: Outcome
    reason: str
    """One sentence: why it ended so."""
    started_at: datetime
    duration_ms: int
    attempts: int
    title: str | None = None
    findings: tuple[Finding, ...] = ()
    output: str = ""
    """The end of what the check's command wrote."""
    warning: bool = False
    """It passed and warned: a plugin said WARNING."""
    measurements: tuple[Measurement, ...] = ()

    @property
    def key(self) -> str:
        """What makes it the same check in another run: `required/file:/etc/x`."""
        return f"{self.group}/{self.kind}:{self.name}"

    @property
    def status(self) -> str:
        """One word for a table: the outcome, but `warn` for what warns and does not decide."""
        failed_softly = self.group == "wanted" and self.outcome == "fail"
        return "warn" if failed_softly or self.warning else self.outcome

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "id": self.key,
            "group": self.group,
            "kind": self.kind,
            "name": self.name,
            "title": self.title,
            "status": self.status,
            "outcome": self.outcome,
            "reason": self.reason,
            "time": self.started_at.isoformat(),
            "duration_ms": self.duration_ms,
            "attempts": self.attempts,
            "findings": [finding.to_json() for finding in self.findings],
            "output": self.output,
            "measurements": [value.to_json() for value in self.measurements],
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> CheckResult:
        """Return the result in `body`."""
        outcome: Outcome = _one_of(body["outcome"], get_args(Outcome))
        return CheckResult(
            group=_one_of(body["group"], get_args(Group)),
            kind=str(body["kind"]),
            name=str(body["name"]),
            title=body["title"],
            outcome=outcome,
            reason=str(body["reason"]),
            started_at=datetime.fromisoformat(body["time"]),
            duration_ms=int(body["duration_ms"]),
            attempts=int(body["attempts"]),
            findings=tuple(Finding.from_json(item) for item in body["findings"]),
            output=str(body["output"]),
            warning=body["status"] == "warn" and outcome == "pass",
            measurements=tuple(Measurement.from_json(item) for item in body["measurements"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All results of one run, in the order of the checks file."""

    source: str
    """The name of the checks file."""
    started_at: datetime
    duration_ms: int
    results: tuple[CheckResult, ...]
    sandbox_id: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict of the required checks alone; `torpor.recovery.checks.judge` compares with a run before.

        `fail` if one fails; else `inconclusive` if one could not be told, or none was looked at; else `pass`.
        """
        decide = [r for r in self.results if r.group == "required" and r.outcome != "skipped"]
        if any(result.outcome == "fail" for result in decide):
            return "fail"
        if not decide or any(result.outcome == "inconclusive" for result in decide):
            return "inconclusive"
        return "pass"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        required = [r for r in self.results if r.group == "required" and r.outcome != "skipped"]
        passed = sum(result.outcome == "pass" for result in required)
        said = f"{self.verdict}: {passed} of {len(required)} required checks pass"
        warned = sum(result.status == "warn" for result in self.results)
        skipped = sum(result.outcome == "skipped" for result in self.results)
        unclear = sum(result.outcome == "inconclusive" for result in self.results)
        for count, words in (
            (unclear, "could not be told"),
            (warned, "warned"),
            (skipped, "skipped"),
        ):
            said += f", {count} {words}" if count else ""
        return said if required else f"{said}; nothing required was looked at"

    def check(self) -> CheckReport:
        """Return this report if its verdict is `pass`.

        Raises:
            CheckFailed: a required check fails; facts have `checks`, the ids of those.
            CheckInconclusive: it could not be told.
        """
        if self.verdict == "pass":
            return self
        wanted = "fail" if self.verdict == "fail" else "inconclusive"
        found = [r for r in self.results if r.group == "required" and r.outcome == wanted]
        reasons = "; ".join(f"{result.key}: {result.reason}" for result in found[:5])
        error = CheckFailed if self.verdict == "fail" else CheckInconclusive
        raise error(
            f"{self.sentence}{f': {reasons}' if reasons else ''}",
            checks=[result.key for result in found],
            sandbox_id=self.sandbox_id,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it; docs/reference/checks.md describes the fields."""
        status = {"pass": "pass", "fail": "fail", "inconclusive": "warn"}[self.verdict]
        return {
            "version": REPORT_VERSION,
            "status": status,
            "verdict": self.verdict,
            "output": self.sentence,
            "sandbox_id": self.sandbox_id,
            "source": self.source,
            "time": self.started_at.isoformat(),
            "duration_ms": self.duration_ms,
            "checks": [result.to_json() for result in self.results],
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> CheckReport:
        """Return the report in `body`; fields that are not known are ignored.

        Raises:
            InvalidRequest: it is of a newer version, or malformed.
        """
        if body.get("version") != REPORT_VERSION:
            raise InvalidRequest(
                f"a checks report of version {body.get('version')!r} cannot be read; "
                f"version {REPORT_VERSION} is wanted"
            )
        try:
            return CheckReport(
                source=str(body["source"]),
                started_at=datetime.fromisoformat(body["time"]),
                duration_ms=int(body["duration_ms"]),
                results=tuple(CheckResult.from_json(item) for item in body["checks"]),
                sandbox_id=body["sandbox_id"],
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise InvalidRequest(f"a checks report is malformed: {exc!r}") from exc

    def to_junit(self) -> str:
        """Return it as JUnit XML; see `torpor.junit`."""
        from torpor.junit import junit_xml

        return junit_xml(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the checks say of a change, from a run before it and a run after it."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Sentences that name the check; what decided stands first."""
    failed_before_too: tuple[str, ...] = ()
    """Keys of required checks that fail after the change and failed before it: not its fault."""
    warnings: tuple[str, ...] = field(default=())
    """Sentences about wanted checks that are worse than before."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "failed_before_too": list(self.failed_before_too),
            "warnings": list(self.warnings),
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Judgement:
        """Return the judgement in `body`."""
        return Judgement(
            verdict=_one_of(body["verdict"], get_args(Verdict)),
            reasons=tuple(body["reasons"]),
            failed_before_too=tuple(body["failed_before_too"]),
            warnings=tuple(body["warnings"]),
        )


def _one_of(value: object, known: Sequence[str]) -> Any:
    if value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return value
