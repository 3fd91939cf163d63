"""Memory follows its machine: rollbacks, restores as new machines, forks; each once, whoever dies in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from torpor.errors import Conflict, WrongState
from torpor.memory import Memory, Policy, Space, Status
from torpor.memory.following import check_new, check_seat, follow
from torpor.memory.machine import here
from torpor.model_memory import MachineMove, Move, Watermark


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory.open(tmp_path / "memory.db") as opened:
        yield opened


def mark(memory: Memory, agent: str, name: str = "snap_1") -> Watermark:
    return replace(here(memory.store, agent), snapshot=name)


def rollback(at: Watermark, policy: Policy = Policy.RECONCILE, generation: int = 2) -> MachineMove:
    return MachineMove("sbx_1", "hermes-1", Move.ROLLBACK, generation, at, policy)


def installed(space: Space) -> list[object]:
    return [f.value for f in space.facts("machine", "package")]


def install(space: Space, name: str) -> None:
    space.remember("machine", "package", name, scope="machine", cardinality="many")


def test_a_rollback_is_followed_once(memory: Memory) -> None:
    space = memory.space("hermes-1")
    install(space, "curl")
    at = mark(memory, "hermes-1")
    install(space, "ripgrep")
    space.remember("user", "home", "Oslo")
    done = follow(memory, rollback(at))
    assert (done.epoch, done.note) == (2, "")
    assert installed(space) == ["curl"]
    assert [f.value for f in space.facts("user")] == ["Oslo"]
    install(space, "fd")
    again = follow(memory, rollback(at))  # asked again, as after a crash
    assert again == done
    assert installed(space) == ["curl", "fd"]
    assert follow(memory, rollback(at, generation=3)).epoch == 3
    assert installed(space) == ["curl"]


def test_the_mark_is_no_write(memory: Memory) -> None:
    memory.space("hermes-1").record("x")
    before = memory.store.last_tx()
    at = mark(memory, "hermes-1")
    assert (memory.store.last_tx(), at.tx, at.agent, at.problem) == (before, before, "hermes-1", "")
    assert at.branch == memory.space("hermes-1").branch


def test_rewind_and_keep(memory: Memory) -> None:
    space = memory.space("hermes-1")
    install(space, "curl")
    at = mark(memory, "hermes-1")
    install(space, "ripgrep")
    space.remember("user", "home", "Oslo")
    follow(memory, rollback(at, Policy.KEEP))
    assert installed(space) == ["curl", "ripgrep"]
    assert [f.flag for f in space.facts("machine")] == ["", "unverified"]
    follow(memory, rollback(at, Policy.REWIND, 3))
    assert installed(space) == ["curl"]
    assert space.facts("user") == []


def test_an_agent_that_knew_nothing_then(memory: Memory) -> None:
    memory.space("someone-else").record("x")
    at = mark(memory, "hermes-1")
    assert at.branch == ""
    assert follow(memory, rollback(at)).epoch == 0
    assert not memory.has("hermes-1")
    space = memory.space("hermes-1")
    install(space, "curl")
    space.remember("user", "home", "Oslo")
    follow(memory, rollback(at, generation=3))
    assert installed(space) == []
    assert [f.value for f in space.facts("user")] == ["Oslo"]
    follow(memory, rollback(at, Policy.REWIND, 4))
    assert space.facts() == []


def test_a_fork_has_a_child_branch_as_of_the_snapshot(memory: Memory) -> None:
    parent = memory.space("hermes-1")
    install(parent, "curl")
    parent.effect("mail-1", "sent it")
    at = mark(memory, "hermes-1")
    install(parent, "ripgrep")
    parent.effect("mail-2", "sent another")
    move = MachineMove("sbx_2", "sbx_2", Move.FORK, 1, at, Policy.REWIND)
    check_new(memory, move)
    follow(memory, move)
    follow(memory, move)
    child = memory.space("sbx_2")
    assert installed(child) == ["curl"]
    assert [e.key for e in child.effects()] == ["mail-1"]
    install(child, "fd")
    assert installed(parent) == ["curl", "ripgrep"]


@pytest.mark.parametrize(
    ("policy", "packages", "home"),
    [
        (Policy.RECONCILE, ["curl"], ["Oslo"]),
        (Policy.REWIND, ["curl"], []),
        (Policy.KEEP, ["curl", "ripgrep"], ["Oslo"]),
    ],
)
def test_a_restore_as_a_new_machine(
    memory: Memory, policy: Policy, packages: list[str], home: list[str]
) -> None:
    parent = memory.space("hermes-1")
    install(parent, "curl")
    at = mark(memory, "hermes-1")
    install(parent, "ripgrep")
    parent.remember("user", "home", "Oslo")
    follow(memory, MachineMove("sbx_2", "sbx_2", Move.RESTORE, 1, at, policy))
    child = memory.space("sbx_2")
    assert installed(child) == packages
    assert [f.value for f in child.facts("user")] == home
    assert installed(parent) == ["curl", "ripgrep"]
    assert [f.flag for f in parent.facts("machine")] == ["", ""]


def test_a_machine_that_takes_the_place_of_another(memory: Memory) -> None:
    space = memory.space("hermes-1")
    install(space, "curl")
    at = mark(memory, "hermes-1")
    install(space, "ripgrep")
    old = memory.space("hermes-1", epoch=space.epoch)
    move = MachineMove("sbx_2", "hermes-1", Move.RESTORE, 1, at, Policy.RECONCILE, ("sbx_1",))
    check_new(memory, move)
    follow(memory, move)
    assert installed(memory.space("hermes-1")) == ["curl"]
    with pytest.raises(WrongState):
        old.record("the old machine still runs")
    with pytest.raises(WrongState, match="sbx_2 was restored in its place"):
        check_seat(memory, "sbx_1", "hermes-1")
    check_seat(memory, "sbx_2", "hermes-1")
    follow(memory, rollback(at))  # and the old one is made the agent's machine again
    check_seat(memory, "sbx_1", "hermes-1")


def test_a_name_that_is_taken(memory: Memory) -> None:
    memory.space("hermes-1").record("x")
    memory.space("other").record("y")
    at = mark(memory, "hermes-1")
    for move in (
        MachineMove("sbx_2", "other", Move.RESTORE, 1, at, Policy.RECONCILE),
        MachineMove("sbx_2", "hermes-1", Move.FORK, 1, at, Policy.REWIND),
    ):
        with pytest.raises(Conflict, match="has a memory already"):
            check_new(memory, move)
    with pytest.raises(Conflict):
        follow(memory, MachineMove("sbx_2", "other", Move.RESTORE, 1, at, Policy.RECONCILE))
    assert [e.content for e in memory.space("other").episodes()] == ["y"]


def test_another_agents_snapshot_shows_nothing_of_its_memory(memory: Memory) -> None:
    """A machine may be put back to a snapshot of another one of the same template."""
    other = memory.space("other")
    other.remember("user", "secret", "of another")
    at = mark(memory, "other")
    space = memory.space("hermes-1")
    install(space, "curl")
    space.remember("user", "home", "Oslo")
    for generation, policy in enumerate(Policy, 2):
        follow(memory, rollback(at, policy, generation))
        assert space.facts("user", "secret") == []
        assert all("secret" not in f.attribute for f in space.facts(include=list(Status)))


def test_a_mark_of_another_memory_is_said(memory: Memory, tmp_path: Path) -> None:
    with Memory.open(tmp_path / "other.db") as other:
        other.space("hermes-1").record("x")
        at = mark(other, "hermes-1")
    space = memory.space("hermes-1")
    install(space, "curl")
    done = follow(memory, rollback(at, Policy.REWIND))
    assert "beside another memory" in done.note
    assert installed(space) == ["curl"]
    assert [f.flag for f in space.facts()] == ["unverified"]
    assert "beside another memory" in space.episodes()[-1].content
    move = MachineMove("sbx_2", "sbx_2", Move.FORK, 1, at, Policy.REWIND)
    assert "begins empty" in follow(memory, move).note


def test_a_snapshot_without_a_mark_is_said(memory: Memory) -> None:
    space = memory.space("hermes-1")
    install(space, "curl")
    at = Watermark("snap_1", "", 0, 0, agent="hermes-1", problem="it was damaged")
    assert "it was damaged" in follow(memory, rollback(at)).note
    assert installed(space) == ["curl"]


def test_an_erasure_reaches_every_branch_and_marks_stay_good(
    memory: Memory, tmp_path: Path
) -> None:
    space = memory.space("hermes-1")
    space.record("Alice's number is 555-0100-4242.", subjects=["alice"])
    at = mark(memory, "hermes-1")
    space.remember("user", "home", "Oslo")
    follow(memory, MachineMove("sbx_2", "sbx_2", Move.FORK, 1, at, Policy.REWIND))
    follow(memory, rollback(at, Policy.REWIND))
    receipt = memory.space("sbx_2").erase(subject="alice")
    assert receipt.bytes_left == 0
    for path in tmp_path.glob("memory.db*"):
        assert b"555-0100-4242" not in path.read_bytes()
    for agent in ("hermes-1", "sbx_2"):
        assert all("555" not in e.content for e in memory.space(agent).episodes())
    done = follow(
        memory, rollback(at, Policy.RECONCILE, 3)
    )  # its place in the chain is still there
    assert done.note == ""
    assert memory.verify_chain().ok
