"""Changes of real machines: kept, put back, and whatever dies in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm.conftest import machines
from tests.vm.faulty import FaultyDaemon
from torpor import Change, Sandbox, Snapshot
from torpor.base.home import Home
from torpor.errors import ChangeRolledBack, CommandFailed, Conflict
from torpor.model import SandboxState
from torpor.model_changes import ChangeState

S = ChangeState
CHECKS = {
    "required": {
        "file": {"/root/agent.conf": {"exists": True}},
        "command": {"grep -q '^model = ' /root/agent.conf": {"exit-status": 0}},
    },
    "wanted": {"file": {"/root/notes": {"exists": True}}},
}


@pytest.fixture(scope="module")
def agent(base: str, vm_home: Home) -> Iterator[Sandbox]:
    """A machine with a configured agent in it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    sandbox = Sandbox.create(template=base, env={"TOKEN": "kept"}, metadata={"name": "hermes-1"})
    sandbox.filesystem.write("/root/agent.conf", "model = old\n")
    yield sandbox
    sandbox.delete()
    for snapshot in sandbox.snapshots():
        snapshot.delete()
    patch.undo()


def changed(sandbox: Sandbox, command: str, **options: Any) -> Change:
    """Return a change that is over."""
    return sandbox.change("a change", run=command, checks=CHECKS, **options).wait()


def model(sandbox: Sandbox) -> str:
    return sandbox.exec("cat /root/agent.conf", check=True).stdout


def set_model(name: str) -> str:
    return f"echo 'model = {name}' > /root/agent.conf"


def test_a_good_change_is_kept_and_a_bad_one_put_back_whole(agent: Sandbox) -> None:
    good = changed(agent, f"{set_model('good')}; echo done", author="ann")
    assert (good.state, good.verdict) == (S.KEPT, "kept"), good.report
    assert good.report is not None
    assert good.report.data["command"]["stdout_tail"] == "done\n"
    assert model(agent) == "model = good\n"

    agent.exec("touch /dev/shm/memory; cat /etc/machine-id > /root/id; sync", check=True)
    bad = changed(agent, "echo broken > /root/agent.conf; sync", target="agent 2")
    assert (bad.state, bad.verdict, bad.info.ending) == (S.ROLLED_BACK, "rolled_back", "checks")
    with pytest.raises(ChangeRolledBack, match="grep -q"):
        bad.check()
    text = str(bad.report)
    assert "before  pass" in text, text
    assert "after   fail" in text, text
    assert model(agent) == "model = good\n"
    told = agent.exec("ls /dev/shm/memory; echo $TOKEN; cmp /etc/machine-id /root/id && echo same")
    assert told.stdout == "kept\nsame\n", "booted: its memory is gone, the rest is as it was"
    assert (agent.refresh().boot_mode, agent.info.state) == ("cold", SandboxState.RUNNING)

    with pytest.raises(Conflict, match="rolled back before"):
        agent.change("again", run="true", target="Agent  2").start()
    failed = bad.info.failed_snapshot_id
    assert failed is not None
    with Sandbox.restore(failed, network="none") as wreck:  # the undo can be studied
        assert model(wreck) == "broken\n"
        assert wreck.exec("ls /dev/shm/memory").ok


def test_a_block_with_memory_and_a_confirm(agent: Sandbox) -> None:
    counter = agent.exec("sleep 100000", background=True)
    before = model(agent)
    change = agent.change("by hand", checks=CHECKS, memory="ram")
    with pytest.raises(CommandFailed), change:
        agent.exec(f"{set_model('block')}; exit 3", check=True)
    assert (change.verdict, change.info.ending) == ("rolled_back", "client")
    assert model(agent) == before
    assert agent.attach(counter.exec_id).info().state == "running", "its memory came back too"
    counter.kill()

    with agent.change("by hand", checks=CHECKS, probation_seconds=600) as change:
        agent.exec(set_model("confirmed"), check=True)
    assert change.state is S.PROBATION
    with pytest.raises(Conflict, match=change.id):
        agent.rollback(agent.snapshots()[0].id)
    assert change.confirm(by="ann").verdict == "kept"
    assert model(agent) == "model = confirmed\n"


def test_silence_and_damage_on_probation_put_it_back(agent: Sandbox) -> None:
    before = model(agent)
    silent = changed(agent, set_model("silent"), probation_seconds=1, memory="ram")
    assert (silent.verdict, silent.info.ending) == ("rolled_back", "silence")
    assert model(agent) == before
    rots = "systemd-run --quiet --on-active=4s rm /root/agent.conf"
    rotten = changed(agent, rots, probation_seconds=300, interval_seconds=3, memory="ram")
    assert (rotten.verdict, rotten.info.ending) == ("rolled_back", "checks")
    assert model(agent) == before


def test_a_machine_that_sleeps_on_probation_is_put_back(agent: Sandbox) -> None:
    before = model(agent)
    change = agent.change(
        "it sleeps",
        run=set_model("asleep"),
        checks=CHECKS,
        probation_seconds=600,
        interval_seconds=600,
        memory="ram",
    ).start()
    until(change, S.PROBATION)
    agent.hibernate()
    assert agent.refresh().state is SandboxState.HIBERNATED
    change.rollback("no good", by="ann")
    assert (change.verdict, change.info.ending) == ("rolled_back", "rejected"), change.report
    assert agent.refresh().state is SandboxState.RUNNING
    assert model(agent) == before
    assert change.report is not None
    assert change.report.data["undone"]["verdict"] == "pass", change.report
    failed = change.info.failed_snapshot_id
    assert failed is not None, "what it slept in is kept"
    agent.rollback(failed)
    assert model(agent) == "model = asleep\n"
    assert change.info.snapshot_id is not None
    agent.rollback(change.info.snapshot_id)
    assert model(agent) == before


def test_a_machine_that_dies_in_the_middle_is_put_back(agent: Sandbox, vm_home: Home) -> None:
    before = model(agent)
    change = agent.change(
        "it dies", run=f"{set_model('dead')}; sync; sleep 600", checks=CHECKS
    ).start()
    until(change, S.CHANGING)
    deadline = time.monotonic() + 60
    while "dead" not in model(agent):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (machine,) = [
        m for m in machines(vm_home) if agent.id in Path(f"/proc/{m.pid}/cmdline").read_text()
    ]
    os.kill(machine.pid, signal.SIGKILL)
    ended = change.wait()
    assert (ended.verdict, ended.info.ending) == ("rolled_back", "machine")
    assert ended.info.failed_snapshot_id is None
    assert "could not be kept" in str(ended.report)
    assert model(agent) == before


def test_a_reboot_is_part_of_the_proof(agent: Sandbox) -> None:
    kept = changed(agent, set_model("booted"), reboot=True)
    assert kept.verdict == "kept", kept.report
    assert agent.refresh().boot_mode == "cold"
    only_in_memory = changed(
        agent,
        "mv /root/agent.conf /dev/shm/ && ln -s /dev/shm/agent.conf /root/",
        reboot=True,
        memory="ram",
    )
    assert (only_in_memory.verdict, only_in_memory.info.ending) == ("rolled_back", "checks")
    assert model(agent) == "model = booted\n"


@pytest.mark.parametrize("point", ["change.started", "change.verifying", "change.probation"])
def test_kill_9_of_the_daemon(agent: Sandbox, vm_home: Home, point: str) -> None:
    name = point.partition(".")[2]
    command = f"echo once >> /root/starts-{name}; {set_model(name)}; sleep 3; echo end"
    with FaultyDaemon(vm_home, point) as daemon:
        change = agent.change(
            "a daemon dies", run=command, checks=CHECKS, probation_seconds=600
        ).start()
        assert daemon.died()
    until(change, S.PROBATION)
    assert change.confirm().verdict == "kept"
    assert model(agent) == f"model = {name}\n"
    assert agent.exec(f"cat /root/starts-{name}").stdout == "once\n"
    assert change.report is not None
    assert change.report.data["command"]["stdout_tail"] == "end\n"
    assert not any(s.info.protected for s in Snapshot.list(sandbox_id=agent.id))


def until(change: Change, state: ChangeState) -> None:
    for event in change.events():
        if event.name == "state" and event.data["state"] == state:
            return
    raise AssertionError(f"{change} never was {state}: {change.info}")
