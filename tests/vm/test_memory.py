"""An agent's memory and its machine, with real ones: what is recalled is what is so.

The agent in the machine "installs" a tool (a program appears on its disk), notes that with scope `machine`, and is
put back, put to sleep, forked and killed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import pytest

from tests.vm.faulty import FaultyDaemon
from torpor import DaemonMemory, Sandbox, Snapshot
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.errors import TorporError, WrongState
from torpor.model import SandboxState

POINTS = {"memory.intent", "memory.followed"}
"""Steps of the daemon that only these tests kill it at."""
CRASHES = (*sorted(POINTS), "rollback.intent", "rollback.renewed", "rollback.outcome")
SECRET = "555-0100-4242"


def ask(sandbox: Sandbox, *words: str) -> str:
    """Run `torpor-memory` in the machine, as its default user."""
    done = sandbox.exec(["torpor-memory", *words], timeout_seconds=120)
    assert done.exit_code == 0, done.stderr
    return done.stdout + done.stderr


def install(sandbox: Sandbox, tool: str) -> None:
    """Install a tool in the machine, and let its agent remember that."""
    script = f"printf '#!/bin/sh\\necho {tool}\\n' > /usr/local/bin/{tool}; chmod 755 /usr/local/bin/{tool}"
    sandbox.exec(script, user="root", check=True, timeout_seconds=120)
    ask(sandbox, "remember", "machine", "package", tool, "--scope", "machine", "--many")


def believed(sandbox: Sandbox) -> set[str]:
    """Return the tools that the agent in the machine believes to be installed."""
    answer = json.loads(ask(sandbox, "facts", "machine", "package", "--json"))
    return {fact["value"] for fact in answer["items"]}


def there(sandbox: Sandbox, *tools: str) -> set[str]:
    """Return which of the tools are really installed."""
    found = sandbox.exec("ls /usr/local/bin", timeout_seconds=120).stdout.split()
    return set(tools) & set(found)


@pytest.fixture
def agent(base: str) -> Iterator[Sandbox]:
    """A machine whose agent has a name of its own."""
    sandbox = Sandbox.create(template=base, metadata={"agent": new_id("mem")})
    yield sandbox
    sandbox.delete()


def test_an_agent_whose_machine_went_back_does_not_believe_in_what_is_gone(
    agent: Sandbox, vm_home: Home, request: pytest.FixtureRequest
) -> None:
    ask(
        agent, "record", f"Alice's number is {SECRET}, the deploy key is hunter22", "--from", "user"
    )
    install(agent, "alpha")
    before = agent.snapshot()
    assert before.info.watermark is not None
    assert before.info.watermark.agent == agent.info.agent
    install(agent, "beta")
    ask(agent, "remember", "user", "home", "Oslo")
    assert believed(agent) == there(agent, "alpha", "beta") == {"alpha", "beta"}

    # forks of the running machine and of the snapshot: each its own branch
    fork = agent.fork()
    request.addfinalizer(fork.delete)
    older = Sandbox.restore(before.id, agent_memory="rewind")
    request.addfinalizer(older.delete)
    assert believed(fork) == there(fork, "alpha", "beta") == {"alpha", "beta"}
    assert believed(older) == there(older, "alpha", "beta") == {"alpha"}
    install(fork, "gamma")
    assert believed(agent) == {"alpha", "beta"}

    # reconcile: the machine's facts go back, the world's stay
    agent.rollback(before.id)
    assert agent.info.memory_note is None
    assert believed(agent) == there(agent, "alpha", "beta") == {"alpha"}
    assert "beta" not in ask(agent, "recall", "which package is installed on the machine?")
    assert "Oslo" in ask(agent, "facts", "user", "home")

    # asleep and awake: the same memory, at once
    agent.hibernate()
    agent.wake()
    assert believed(agent) == {"alpha"}
    install(agent, "delta")
    assert believed(agent) == there(agent, "alpha", "delta") == {"alpha", "delta"}

    # another machine sees nothing of it
    stranger = Sandbox.create(template=agent.info.template)
    request.addfinalizer(stranger.delete)
    assert SECRET not in ask(stranger, "recall", "Alice's number")
    assert believed(stranger) == set()
    refused = stranger.exec(
        ["torpor-memory", "call", "facts", json.dumps({"agent": agent.info.agent})]
    )
    assert refused.exit_code == 1
    assert "agent" in refused.stderr
    erased = stranger.exec(["torpor-memory", "call", "erase", '{"subject": "alice"}'])
    assert erased.exit_code == 1

    # erased on the host: no byte in any branch, also in those of forks
    receipt = agent.memory.erase(subject="Alice")
    assert (receipt.bytes_left, receipt.verified_at is None) == (0, False)
    for path in vm_home.root.glob("memory.db*"):
        assert SECRET.encode() not in path.read_bytes()
    for sandbox in (agent, fork, older):
        assert SECRET not in ask(sandbox, "recall", "Alice's number")
    agent.rollback(before.id)  # and the mark is still good
    assert agent.info.memory_note is None
    assert believed(agent) == {"alpha"}
    assert DaemonMemory().verify_chain().ok


def test_keep_and_rewind(agent: Sandbox) -> None:
    install(agent, "alpha")
    before = agent.snapshot()
    install(agent, "beta")
    ask(agent, "remember", "user", "home", "Oslo")
    old = agent.memory
    old.record("from the host, before")
    agent.rollback(before.id, agent_memory="keep")
    assert believed(agent) == {"alpha", "beta"}
    assert there(agent, "alpha", "beta") == {"alpha"}
    flags = {f.value: f.flag for f in agent.memory.facts("machine", "package")}
    assert flags == {"alpha": "", "beta": "unverified"}
    with pytest.raises(WrongState):
        old.record("by a client of the machine as it was")
    agent.rollback(before.id, agent_memory="rewind")
    assert believed(agent) == {"alpha"}
    assert agent.memory.facts("user", "home") == []


@pytest.mark.parametrize("point", CRASHES)
def test_the_next_daemon_brings_memory_in_line(agent: Sandbox, vm_home: Home, point: str) -> None:
    install(agent, "alpha")
    before = agent.snapshot()
    install(agent, "beta")
    epoch = agent.memory.epoch
    with FaultyDaemon(vm_home, point) as daemon:
        with contextlib.suppress(TorporError):
            agent.rollback(before.id)
        assert daemon.died(), f"{point} was never reached"
    # a healthy daemon is started by the next call
    _until_running(agent)
    if point == "memory.intent":  # the machine was not touched, and so is memory
        assert believed(agent) == there(agent, "alpha", "beta") == {"alpha", "beta"}
        assert agent.memory.epoch == epoch
        return
    assert believed(agent) == there(agent, "alpha", "beta") == {"alpha"}
    assert agent.memory.epoch == epoch + 1
    install(agent, "gamma")
    assert believed(agent) == {"alpha", "gamma"}
    assert agent.refresh().memory_note is None
    Snapshot.delete(before.id)


def _until_running(sandbox: Sandbox) -> None:
    """Wait until a rollback that the next daemon makes again is done."""
    end = time.monotonic() + 120
    while sandbox.refresh().state is not SandboxState.RUNNING:
        assert time.monotonic() < end, sandbox.info
        time.sleep(0.1)
