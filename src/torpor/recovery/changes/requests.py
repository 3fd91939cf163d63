"""What a change may ask for: refused here, before anything is looked up or begun."""

from __future__ import annotations

from torpor.base.ids import check_id
from torpor.errors import InvalidRequest, WrongState
from torpor.model import SandboxInfo, SandboxState
from torpor.model_changes import ChangeId, ChangeSpec
from torpor.recovery.changes.holdings import check_holdings
from torpor.recovery.changes.looks import plan_of
from torpor.recovery.changes.quiet import rest_of

TEXT_MOST = 1000
COMMAND_MOST = 128 << 10
CHECKS_MOST = 1 << 20
SECONDS_MOST = 30 * 86400
LOOKS_MOST = 10_000
"""In one probation: each is written down, and read again by the next daemon."""
_STATES = frozenset({SandboxState.RUNNING, SandboxState.HIBERNATED})


def check_change_id(text: str) -> ChangeId:
    """Return the id. Raises `InvalidRequest` when it is none."""
    return ChangeId(check_id(text, "chg", "change"))


def check_spec(spec: ChangeSpec) -> None:
    """Raise `InvalidRequest` for a change that cannot be right; a checks file's faults with line and column."""
    _check_line("reason", spec.reason, least=1)
    _check_line("author", spec.author)
    _check_line("target", spec.target or "")
    if spec.target is not None and not spec.target.strip():
        raise InvalidRequest("target is empty", hint="leave it out")
    if (spec.kind == "command") != (spec.command is not None):
        raise InvalidRequest(
            f"a change of the kind {spec.kind!r} {'needs' if spec.kind == 'command' else 'takes no'} command"
        )
    if spec.command is not None and not 0 < len(spec.command) <= COMMAND_MOST:
        raise InvalidRequest(
            f"command has {len(spec.command)} characters; 1 to {COMMAND_MOST} are wanted"
        )
    for name in ("command", "user", "cwd"):
        if "\0" in (getattr(spec, name) or ""):
            raise InvalidRequest(f"{name} has a NUL in it", hint="no command can have one")
    if spec.memory not in ("ram", "cold"):
        raise InvalidRequest(f"memory is {spec.memory!r}; 'ram' or 'cold' is wanted")
    if spec.consistency not in (None, "crash", "filesystem", "application"):
        raise InvalidRequest(f"consistency is {spec.consistency!r}", hint="leave it out")
    _check_times(spec)
    if spec.checks is not None and len(spec.checks) > CHECKS_MOST:
        raise InvalidRequest(f"{spec.checks_source} is over {CHECKS_MOST} bytes")
    plan_of(spec)
    check_holdings(spec)
    rest_of(spec)


def _check_times(spec: ChangeSpec) -> None:
    _check_seconds("command_timeout_seconds", spec.command_timeout_seconds, 1)
    _check_seconds("probation_seconds", spec.probation_seconds, 0)
    _check_seconds("lease_seconds", spec.lease_seconds, 5)
    if spec.interval_seconds is not None:
        _check_seconds("interval_seconds", spec.interval_seconds, 1)
        if spec.probation_seconds / spec.interval_seconds > LOOKS_MOST:
            raise InvalidRequest(
                f"interval_seconds is {spec.interval_seconds:g}: that is more than {LOOKS_MOST} looks",
                hint="look less often",
            )


def check_state(info: SandboxInfo) -> None:
    """Raise `WrongState` unless a sandbox can be changed now: it runs, or sleeps and can be woken."""
    if info.state in _STATES:
        return
    hints = {
        SandboxState.PAUSED: f"resume it first: torpor resume {info.id}",
        SandboxState.FAILED: f"see why: torpor get {info.id}",
        SandboxState.DELETED: "create a new one",
    }
    raise WrongState(
        f"sandbox {info.id} is {info.state}; a change needs one that runs or sleeps",
        hint=hints.get(info.state, "try again in a moment"),
        sandbox_id=info.id,
        state=info.state,
    )


def _check_line(name: str, text: str, *, least: int = 0) -> None:
    if not least <= len(text) <= TEXT_MOST or not text.isprintable():
        raise InvalidRequest(
            f"{name} cannot be used", hint=f"one line of up to {TEXT_MOST} characters"
        )


def _check_seconds(name: str, value: float, least: float) -> None:
    if not least <= value <= SECONDS_MOST:
        raise InvalidRequest(f"{name} is {value:g}; {least:g} to {SECONDS_MOST} is wanted")
