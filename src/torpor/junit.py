"""JUnit XML of a checks report, as continuous integration systems read it.

A required check that fails is a `failure`. What warns, could not be told or was skipped is `skipped` with a
message that says so: none of these is a failure.
"""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from torpor.model_checks import CheckReport, CheckResult


def junit_xml(report: CheckReport) -> str:
    """Return the report as one `testsuites` document."""
    cases = [_case(result) for result in report.results]
    failures = sum(_is_failure(result) for result in report.results)
    skipped = sum(_skipped(result) is not None for result in report.results)
    counts = (
        f'tests="{len(cases)}" failures="{failures}" errors="0" '
        f'time="{report.duration_ms / 1000:.3f}"'
    )
    began = report.started_at.replace(tzinfo=None).isoformat(timespec="seconds")
    properties = {"verdict": report.verdict, "source": report.source, "sandbox": report.sandbox_id}
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="torpor check" {counts}>',
        f'  <testsuite name={_attribute(report.source)} {counts} skipped="{skipped}" '
        f'timestamp="{began}" hostname={_attribute(report.sandbox_id or "sandbox")}>',
        "    <properties>",
        *(
            f'      <property name="{name}" value={_attribute(value)}/>'
            for name, value in properties.items()
            if value is not None
        ),
        "    </properties>",
        *cases,
        "  </testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _case(result: CheckResult) -> str:
    head = (
        f"    <testcase classname={_attribute(f'{result.group}.{result.kind}')} "
        f'name={_attribute(result.name)} time="{result.duration_ms / 1000:.3f}"'
    )
    below = []
    told = _skipped(result)
    if _is_failure(result):
        text = "\n".join(
            f"{f.attribute}: found {f.found}; wanted {f.wanted}"
            for f in result.findings
            if f.outcome != "pass"
        )
        message = _attribute(result.reason)
        below.append(f'      <failure message={message} type="check">{_text(text)}</failure>')
    elif told is not None:
        below.append(f"      <skipped message={_attribute(told)}/>")
    if result.output:
        below.append(f"      <system-out>{_text(result.output)}</system-out>")
    return "\n".join([f"{head}>", *below, "    </testcase>"]) if below else f"{head}/>"


def _is_failure(result: CheckResult) -> bool:
    return result.group == "required" and result.outcome == "fail"


def _skipped(result: CheckResult) -> str | None:
    if result.outcome in ("skipped", "inconclusive"):
        return f"{result.outcome}: {result.reason}"
    return (
        f"warning: {result.reason}"
        if result.group == "wanted" and result.outcome == "fail"
        else None
    )


def _attribute(text: str) -> str:
    return quoteattr(_allowed(text))


def _text(text: str) -> str:
    return escape(_allowed(text))


def _allowed(text: str) -> str:
    """Return `text` with each character that XML may not have spelled out."""
    return "".join(
        char
        if char in "\t\n"
        or " " <= char <= "\ud7ff"
        or "\ue000" <= char <= "\ufffd"
        or char >= "\U00010000"
        else f"\\u{ord(char):04x}"
        for char in text
    )
