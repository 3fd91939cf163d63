"""The convention of Nagios plugins: an exit code, one line for people, and performance data behind a `|`.

0 is OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. A plain script ends with 1 when it fails, so 1 is a warning only if
the first line says WARN; else, as any other code, it is a failure.
"""

from __future__ import annotations

import re
from typing import Literal

from torpor.model_checks import Group, Measurement, Outcome
from torpor.recovery.checks.clean import clean, clean_output
from torpor.recovery.checks.facts import Facts
from torpor.recovery.checks.probe import Ran

State = Literal["OK", "WARNING", "CRITICAL", "UNKNOWN"]

MEASUREMENTS_MOST = 64
_WARNS = re.compile(r"\bWARN(ING)?\b", re.IGNORECASE)
_DATUM = re.compile(
    r"(?:'(?P<quoted>(?:[^']|''){1,100})'|(?P<plain>[^\s='|]{1,100}))"
    r"=(?P<value>-?[0-9]{1,30}(?:\.[0-9]{1,30})?)(?P<unit>[A-Za-z%/]{0,10})"
    r"(?:;(?P<warning>[^\s;]{0,40}))?(?:;(?P<critical>[^\s;]{0,40}))?(?:;[^\s;]{0,40}){0,2}(?=\s|$)"
)


def state_of(ran: Ran) -> State:
    """Return what a plugin says."""
    if ran.exit_code == 0:
        return "OK"
    first = ran.stdout.decode("utf-8", "replace").partition("\n")[0]
    if ran.exit_code == 1 and _WARNS.search(first[:1000]):
        return "WARNING"
    return "UNKNOWN" if ran.exit_code == 3 else "CRITICAL"


def plugin_facts(ran: Ran, group: Group) -> Facts:
    """Return the outcome of a plugin: a warning passes a required check and fails a wanted one."""
    state = state_of(ran)
    outcomes: dict[State, Outcome] = {
        "OK": "pass",
        "WARNING": "pass" if group == "required" else "fail",
        "CRITICAL": "fail",
        "UNKNOWN": "inconclusive",
    }
    first = ran.stdout.decode("utf-8", "replace").partition("\n")[0].partition("|")[0]
    said = clean(first) or clean(ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2])
    return Facts(
        output=clean_output(ran.stdout, ran.stderr),
        decided=outcomes[state],
        reason=f"{state}, exit code {ran.exit_code}{f': {said}' if said else ''}",
        warning=state == "WARNING",
        measurements=measurements(ran.stdout.decode("utf-8", "replace")),
    )


def measurements(text: str) -> tuple[Measurement, ...]:
    """Return the performance data in a plugin's output; what is malformed is left out."""
    data = " ".join(line.partition("|")[2] for line in text[:65536].splitlines())
    found: list[Measurement] = []
    for match in _DATUM.finditer(data):
        if len(found) == MEASUREMENTS_MOST:
            break
        label = match["plain"] or match["quoted"].replace("''", "'")
        found.append(
            Measurement(
                label=clean(label, most=100),
                value=float(match["value"]),
                unit=match["unit"],
                warning=clean(match["warning"] or "", most=40),
                critical=clean(match["critical"] or "", most=40),
            )
        )
    return tuple(found)
