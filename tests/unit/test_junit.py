"""JUnit XML: what is in it, and that it has the form that readers expect."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, datetime

from torpor.model_checks import CheckReport, CheckResult, Finding

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FORM: dict[str, tuple[set[str], set[str], list[str]]] = {
    # element: attributes that it must have, those that it may have, what may be in it, in this order
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors", "disabled"}, ["testsuite"]),
    "testsuite": (
        {"name", "tests"},
        {"failures", "errors", "time", "disabled", "skipped", "timestamp", "hostname", "id", "package"},
        ["properties", "testcase", "system-out", "system-err"],
    ),
    "properties": (set(), set(), ["property"]),
    "property": ({"name", "value"}, set(), []),
    "testcase": (
        {"name", "classname"},
        {"assertions", "time", "status"},
        ["skipped", "error", "failure", "system-out", "system-err"],
    ),
    "failure": (set(), {"message", "type"}, []),
    "skipped": (set(), {"message"}, []),
    "system-out": (set(), set(), []),
}  # fmt: skip


def check_form(element: ET.Element) -> None:
    must, may, inside = FORM[element.tag]
    assert must <= set(element.attrib) <= must | may, element.tag
    order = [inside.index(child.tag) for child in element]
    assert order == sorted(order), f"{element.tag} has its children in another order"
    for child in element:
        check_form(child)


def result(name: str, outcome: str, group: str = "required", output: str = "") -> CheckResult:
    return CheckResult(
        group=group,  # type: ignore[arg-type]
        kind="command",
        name=name,
        outcome=outcome,  # type: ignore[arg-type]
        reason=f"because <{name}> & \x00 \ufffe\ud800",
        started_at=NOW,
        duration_ms=1234,
        attempts=1,
        findings=(Finding(attribute="stdout", wanted="]]>", found="\x1b[1m", outcome="fail"),),
        output=output,
    )


def test_junit() -> None:
    report = CheckReport(
        source='a "quoted" & <file>\x0b.yaml',
        started_at=NOW,
        duration_ms=5000,
        sandbox_id="sbx_1",
        results=(
            result("good", "pass", output="fine ]]> \x08"),
            result("bad", "fail"),
            result("soft", "fail", group="wanted"),
            result("away", "inconclusive"),
            result("later", "skipped"),
        ),
    )
    root = ET.fromstring(report.to_junit().encode("utf-8"))
    check_form(root)
    (suite,) = root
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == (
        "5",
        "1",
        "3",
    )
    assert suite.attrib["timestamp"] == "2026-01-02T03:04:05"
    cases = {case.attrib["name"]: case for case in suite.iter("testcase")}
    assert [child.tag for child in cases["good"]] == ["system-out"]
    assert cases["good"][0].text == "fine ]]> \\u0008"
    assert cases["good"].attrib["time"] == "1.234"
    assert cases["bad"][0].tag == "failure"
    assert cases["bad"][0].text == "stdout: found \\u001b[1m; wanted ]]>"
    assert cases["bad"][0].attrib["message"] == "because <bad> & \\u0000 \\ufffe\\ud800"
    for name, word in (("soft", "warning"), ("away", "inconclusive"), ("later", "skipped")):
        assert cases[name][0].tag == "skipped"
        assert cases[name][0].attrib["message"].startswith(f"{word}: ")
