from __future__ import annotations

import itertools

import pytest

from tests.fakes.records import make_info
from torpor.errors import WrongState
from torpor.model import SandboxState
from torpor.sandboxes.lifecycle import MOVES, check_move, require_running


def test_every_state_is_in_the_table_and_can_be_deleted() -> None:
    assert set(MOVES) == set(SandboxState)
    for state in SandboxState:
        if state not in (SandboxState.DELETING, SandboxState.DELETED):
            assert SandboxState.DELETING in MOVES[state]
    assert MOVES[SandboxState.DELETED] == frozenset()


def test_every_state_is_reached_from_creating() -> None:
    reached, pending = {SandboxState.CREATING}, [SandboxState.CREATING]
    while pending:
        new = MOVES[pending.pop()] - reached
        reached |= new
        pending += new
    assert reached == set(SandboxState)


@pytest.mark.parametrize(("now", "want"), list(itertools.product(SandboxState, SandboxState)))
def test_check_move_follows_the_table(now: SandboxState, want: SandboxState) -> None:
    info = make_info()
    if want in MOVES[now]:
        check_move(info.id, now, want)
    else:
        with pytest.raises(WrongState, match=f"is {now}; it cannot become {want}"):
            check_move(info.id, now, want)


@pytest.mark.parametrize("state", list(SandboxState))
def test_only_a_running_sandbox_has_a_guest(state: SandboxState) -> None:
    if state is SandboxState.RUNNING:
        require_running(make_info().id, state)
        return
    with pytest.raises(WrongState) as caught:
        require_running(make_info().id, state)
    assert caught.value.hint
