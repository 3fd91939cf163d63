"""The life of a change as one table.

Rule 1: every move is in this table and nowhere else. Rule 2: this file does no work.
"""

from __future__ import annotations

from collections.abc import Mapping

from torpor.errors import WrongState
from torpor.model_changes import ChangeId, ChangeState

S = ChangeState

MOVES: Mapping[ChangeState, frozenset[ChangeState]] = {
    S.IDLE: frozenset({S.QUIESCING, S.FAILED}),
    S.QUIESCING: frozenset({S.SNAPSHOTTED, S.FAILED}),
    S.SNAPSHOTTED: frozenset({S.CHANGING, S.ROLLING_BACK, S.FAILED}),
    S.CHANGING: frozenset({S.VERIFYING, S.ROLLING_BACK, S.FAILED}),
    S.VERIFYING: frozenset({S.PROBATION, S.KEPT, S.ROLLING_BACK, S.FAILED}),
    S.PROBATION: frozenset({S.KEPT, S.ROLLING_BACK, S.FAILED}),
    S.ROLLING_BACK: frozenset({S.ROLLED_BACK, S.FAILED}),
    S.KEPT: frozenset(),
    S.ROLLED_BACK: frozenset(),
    S.FAILED: frozenset(),
}

BUSY = frozenset({S.IDLE, S.QUIESCING, S.SNAPSHOTTED, S.CHANGING, S.VERIFYING, S.ROLLING_BACK})
"""States in which the machine must neither be paused nor put to sleep by others."""


def check_move(change_id: ChangeId, now: ChangeState, want: ChangeState) -> None:
    """Raise `WrongState` unless the table allows `now` to become `want`; staying is always allowed."""
    if now is not want and want not in MOVES[now]:
        raise WrongState(
            f"change {change_id} is {now}; it cannot become {want}", change_id=change_id, state=now
        )
