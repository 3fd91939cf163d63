"""What a change is blamed for, and what not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from torpor.model_checks import CheckReport, CheckResult, Judgement
from torpor.recovery.checks import judge

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def report(**outcomes: Any) -> CheckReport:
    """Make a report; names that begin with `w_` are of wanted checks."""
    return CheckReport(
        source="t",
        started_at=NOW,
        duration_ms=1,
        results=tuple(
            CheckResult(
                group="wanted" if name.startswith("w_") else "required",
                kind="command",
                name=name,
                outcome=outcome,
                reason=f"{name} said {outcome}",
                started_at=NOW,
                duration_ms=1,
                attempts=1,
            )
            for name, outcome in outcomes.items()
        ),
    )


def test_all_well() -> None:
    found = judge(report(a="pass", b="pass"), report(a="pass", b="pass"))
    assert found == Judgement(verdict="pass")
    assert Judgement.from_json(found.to_json()) == found


def test_a_new_failure_is_the_change_s() -> None:
    found = judge(report(a="pass", b="pass"), report(a="pass", b="fail"))
    assert found.verdict == "fail"
    assert found.reasons == ("required/command:b fails: b said fail (it passed before the change)",)


def test_an_old_failure_is_not() -> None:
    found = judge(report(a="pass", b="fail"), report(a="pass", b="fail"))
    assert found.verdict == "pass"
    assert found.failed_before_too == ("required/command:b",)
    assert "failed before the change too" in found.reasons[0]
    assert Judgement.from_json(found.to_json()) == found


def test_nothing_that_passes_shows_nothing() -> None:
    assert judge(report(a="fail"), report(a="fail")).verdict == "inconclusive"
    assert judge(None, report(w_a="pass")).verdict == "inconclusive"
    assert judge(None, report(a="skipped")).verdict == "inconclusive"


def test_without_a_run_before_nothing_is_excused() -> None:
    assert judge(None, report(a="pass", b="fail")).verdict == "fail"
    assert judge(None, report(a="pass")).verdict == "pass"


def test_inconclusive_is_never_a_failure() -> None:
    before = report(a="pass", b="pass")
    assert judge(before, report(a="pass", b="inconclusive")).verdict == "inconclusive"
    assert judge(before, report(a="fail", b="inconclusive")).verdict == "fail"
    unknown = judge(report(a="inconclusive", b="pass"), report(a="fail", b="pass"))
    assert unknown.verdict == "fail"
    assert "before the change it could not be told" in unknown.reasons[0]


def test_a_check_that_is_gone() -> None:
    found = judge(report(a="pass", b="pass"), report(a="pass"))
    assert found.verdict == "fail"
    assert "required/command:b is gone" in found.reasons[0]
    assert judge(report(a="pass", b="fail"), report(a="pass")).verdict == "pass"


def test_wanted_checks_warn() -> None:
    found = judge(
        report(a="pass", w_b="pass", w_c="fail"), report(a="pass", w_b="fail", w_c="fail")
    )
    assert found.verdict == "pass"
    assert found.warnings == ("wanted/command:w_b fails: w_b said fail",)
