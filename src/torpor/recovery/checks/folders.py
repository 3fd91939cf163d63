"""Plain executables in the machine: /etc/torpor/checks/required.d and wanted.d, run as Nagios plugins."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.errors import GuestFailed, InvalidRequest
from torpor.model_checks import Group
from torpor.recovery.checks.clean import clean
from torpor.recovery.checks.facts import Broken, Facts, Unclear
from torpor.recovery.checks.nagios import plugin_facts
from torpor.recovery.checks.plan import Check, CheckPlan
from torpor.recovery.checks.probe import ProbeMachine

ROOT = "/etc/torpor/checks"
EXECUTABLES_MOST = 100
_LIST_LIMIT_S = 30.0
_OTHERS_MAY_WRITE = 0o022
_LIST = (
    f"find -L {ROOT}/required.d {ROOT}/wanted.d -maxdepth 1 -type f -perm /111 "
    "-printf '%p\\0%U\\0%m\\0' 2>/dev/null; true"
)


@dataclass(frozen=True, slots=True)
class Executable:
    """One file of a checks folder."""

    path: str
    group: Group
    refused: str | None = None
    """Why it is not run."""


async def find_executables(probe: ProbeMachine) -> list[Executable]:
    """Return the executables in the machine's checks folders, by name. Raises as `ProbeMachine.run`.

    One that somebody else than root owns or may write is found, but not to be run: it would be run as root.
    """
    ran = await probe.run(_LIST, timeout_seconds=_LIST_LIMIT_S)
    fields = ran.stdout.decode("utf-8", "surrogateescape").split("\0")
    found = []
    for path, uid, mode in sorted(zip(*[iter(fields[: len(fields) // 3 * 3])] * 3, strict=True)):
        group: Group = "required" if path.startswith(f"{ROOT}/required.d/") else "wanted"
        refused = None
        if uid != "0":
            refused = f"it belongs to uid {clean(uid, most=20)}; only root's are run, for they run as root"
        elif not mode.isdecimal() or int(mode, 8) & _OTHERS_MAY_WRITE:
            refused = f"its mode is {clean(mode, most=20)}: others than root may write it, and it would run as root"
        found.append(Executable(path, group, refused))
    return found[:EXECUTABLES_MOST]


def as_check(found: Executable, plan: CheckPlan) -> Check:
    """Return the check that an executable stands for."""
    return Check(
        group=found.group,
        kind="executable",
        name=clean(found.path.rpartition("/")[2], most=100),
        wants={},
        options={"target": found.path, "refused": found.refused},
        timing=plan.timing,
        line=0,
    )


async def run_executable(check: Check, probe: ProbeMachine, within_s: float) -> Facts:
    """Return what an executable says."""
    if check.options.get("refused"):
        raise Unclear(f"it was not run: {check.options['refused']}")
    try:
        ran = await probe.run((check.target,), timeout_seconds=within_s)
    except (InvalidRequest, GuestFailed) as error:
        if isinstance(error, GuestFailed) and error.retryable:
            raise
        raise Broken(f"it could not be started: {clean(error.message)}") from error
    if ran.timed_out:
        raise TimeoutError
    return plugin_facts(ran, check.group)
