"""Checks: a file that says what a healthy machine looks like, and the engine that looks.

`parse_checks` reads a file, `run_checks` runs it in a machine, `judge` compares a run before a change with
one after it. Names are imported when they are first used: the engine's parts are heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torpor.recovery.checks.baseline import Baseline
    from torpor.recovery.checks.init import FirstFile, first_checks
    from torpor.recovery.checks.judge import judge
    from torpor.recovery.checks.parse import parse_checks
    from torpor.recovery.checks.plan import CheckPlan, TurnSpec
    from torpor.recovery.checks.probe import GuestProbe, ProbeMachine, Ran
    from torpor.recovery.checks.run import run_checks
    from torpor.recovery.checks.turn import turn_of

__all__ = [
    "Baseline",
    "CheckPlan",
    "FirstFile",
    "GuestProbe",
    "ProbeMachine",
    "Ran",
    "TurnSpec",
    "first_checks",
    "judge",
    "parse_checks",
    "run_checks",
    "turn_of",
]

_HOMES = {
    "Baseline": "baseline",
    "CheckPlan": "plan",
    "FirstFile": "init",
    "GuestProbe": "probe",
    "ProbeMachine": "probe",
    "Ran": "probe",
    "TurnSpec": "plan",
    "first_checks": "init",
    "judge": "judge",
    "parse_checks": "parse",
    "run_checks": "run",
    "turn_of": "turn",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found
