"""The life of a sandbox as one table.

Rule 1: every move is in this table and nowhere else. Rule 2: this file knows no machine; it does no work.
"""

from __future__ import annotations

from collections.abc import Mapping

from torpor.errors import WrongState
from torpor.model import SandboxId, SandboxState

S = SandboxState

MOVES: Mapping[SandboxState, frozenset[SandboxState]] = {
    S.CREATING: frozenset({S.RUNNING, S.FAILED, S.DELETING}),
    S.RUNNING: frozenset({S.PAUSING, S.HIBERNATING, S.RESTORING, S.STOPPED, S.FAILED, S.DELETING}),
    S.PAUSING: frozenset({S.PAUSED, S.RUNNING, S.STOPPED, S.FAILED, S.DELETING}),
    S.PAUSED: frozenset({S.RESUMING, S.HIBERNATING, S.RESTORING, S.STOPPED, S.FAILED, S.DELETING}),
    S.RESUMING: frozenset({S.RUNNING, S.PAUSED, S.STOPPED, S.FAILED, S.DELETING}),
    S.HIBERNATING: frozenset({S.HIBERNATED, S.RUNNING, S.PAUSED, S.STOPPED, S.FAILED, S.DELETING}),
    S.HIBERNATED: frozenset({S.WAKING, S.RESTORING, S.DELETING}),
    S.WAKING: frozenset({S.RUNNING, S.HIBERNATED, S.DELETING}),
    S.RESTORING: frozenset({S.RUNNING, S.FAILED, S.DELETING}),
    S.STOPPED: frozenset({S.RESTORING, S.DELETING}),
    S.FAILED: frozenset({S.RESTORING, S.DELETING}),
    S.DELETING: frozenset({S.DELETED}),
    S.DELETED: frozenset(),
}

WITH_MACHINE = frozenset(
    {S.CREATING, S.RUNNING, S.PAUSING, S.PAUSED, S.RESUMING, S.HIBERNATING, S.WAKING, S.RESTORING}
)
"""States in which a VMM may run and memory is taken."""

TIME_RUNS = frozenset({S.RUNNING, S.PAUSING, S.STOPPED, S.FAILED})
"""States that use up TTL. Being paused or asleep does not; neither does being made."""


def check_move(sandbox_id: SandboxId, now: SandboxState, want: SandboxState) -> None:
    """Raise `WrongState` unless the table allows `now` to become `want`."""
    if want not in MOVES[now]:
        sources = sorted(state for state, targets in MOVES.items() if want in targets)
        raise WrongState(
            f"sandbox {sandbox_id} is {now}; it cannot become {want}",
            hint=f"it can from: {', '.join(sources)}",
            sandbox_id=sandbox_id,
            state=now,
        )


def require_running(
    sandbox_id: SandboxId, now: SandboxState, *, has_snapshots: bool = False
) -> None:
    """Raise `WrongState` unless the sandbox is running; the hint says what can be done about it."""
    if now is S.RUNNING:
        return
    way_back = f"roll it back to a snapshot (torpor snapshots {sandbox_id})"
    hints = {
        S.PAUSED: f"resume it first: torpor resume {sandbox_id}",
        S.HIBERNATED: f"wake it first: torpor wake {sandbox_id}",
        S.FAILED: f"see why: torpor get {sandbox_id}; then "
        + (f"{way_back} or " if has_snapshots else "")
        + f"remove it (torpor rm {sandbox_id})",
        S.STOPPED: "it powered itself off, or rebooted; "
        + (f"{way_back} or " if has_snapshots else "")
        + "create a new one",
        S.DELETED: "create a new one",
        S.CREATING: "wait for the create to return",
    }
    raise WrongState(
        f"sandbox {sandbox_id} is {now}; running is wanted",
        hint=hints.get(now, "try again in a moment"),
        sandbox_id=sandbox_id,
        state=now,
    )
