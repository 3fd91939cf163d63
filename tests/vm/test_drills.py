"""Drills and watches of real machines: what comes back, what does not, and what a dead daemon leaves."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.vm.conftest import machines
from tests.vm.faulty import FaultyDaemon
from torpor import Drill, Sandbox, Snapshot
from torpor.base.home import Home
from torpor.db.drills import DrillRows
from torpor.errors import DrillFailed, LastGoodSnapshot, TorporError
from torpor.recovery.drills.acts import TRIES
from torpor.sdk import client

DRILL_POINTS = ["drill.files", "drill.booted", "drill.looked", "drill.evidence", "drill.over"]
"""With `drill.intent` all at which a daemon is killed in the middle of a drill, in their order."""
WITH_CLONE = {"drill.booted", "drill.looked"}

AGENT = """\
import http.server
http.server.HTTPServer(("127.0.0.1", 8123), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
AGENT_UNIT = """\
[Service]
ExecStart=/usr/bin/python3 /opt/tick/agent.py
[Install]
WantedBy=multi-user.target
"""
SCHEDULER_UNIT = """\
[Service]
ExecStart=/bin/sh -c 'while true; do echo tick >>/opt/tick/scheduled; sleep 0.2; done'
[Install]
WantedBy=multi-user.target
"""
TIMER_UNITS = {
    "tick-timer.service": "[Service]\nExecStart=/bin/sh -c 'echo tick >>/opt/tick/timed'\n",
    "tick-timer.timer": (
        "[Timer]\nOnActiveSec=1s\nOnUnitActiveSec=1s\nAccuracySec=100ms\n"
        "[Install]\nWantedBy=timers.target\n"
    ),
}
PROFILE = """\
format: 1
name: tick
homes: [/opt/tick]
detect: [agent.py]
sources:
  skills:
    - {folders: skills/*, containing: SKILL.md}
  jobs:
    - {json: jobs.json, at: /jobs, name: id, show: [every]}
services: [tick-agent.service]
processes: [/opt/tick/agent.py]
freeze_in_drills:
  units: [tick-scheduler.service]
"""
STANDS_STILL = (
    "before=$(cat /opt/tick/scheduled /opt/tick/timed | wc -l); sleep 3; "
    "test $before = $(cat /opt/tick/scheduled /opt/tick/timed | wc -l)"
)


def reach(port: int) -> str:
    """Return a command that reaches a port of the host's, where there is a network."""
    program = f"import socket; socket.create_connection(('10.0.2.2', {port}), 10)"
    return f'python3 -c "{program}"'


def checks(machine_id: str, port: int) -> dict[str, Any]:
    """Return checks that only a clone passes: nothing acts in it, it is another machine, and it is alone."""
    return {
        "required": {
            "file": {"/opt/tick/jobs.json": {"exists": True}},
            "http": {"http://127.0.0.1:8123/": {"status": 200}},
            "command": {
                STANDS_STILL: {"exit-status": 0, "timeout": 30000},
                f"! grep -q {machine_id} /etc/machine-id": {"exit-status": 0},
                f"! {reach(port)}": {"exit-status": 0, "timeout": 60000},
            },
        }
    }


@pytest.fixture(scope="module")
def agent(base: str, vm_home: Home) -> Iterator[Sandbox]:
    """A machine with a small agent, its scheduler and a timer in it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    sandbox = Sandbox.create(template=base, metadata={"name": "tick-1"})
    files = {
        "/opt/tick/agent.py": AGENT,
        "/opt/tick/jobs.json": '{"jobs": [{"id": "daily", "every": "1d"}]}',
        "/opt/tick/skills/one/SKILL.md": "# one\n",
        "/etc/torpor/profile.yaml": PROFILE,
        "/etc/systemd/system/tick-agent.service": AGENT_UNIT,
        "/etc/systemd/system/tick-scheduler.service": SCHEDULER_UNIT,
        **{f"/etc/systemd/system/{name}": text for name, text in TIMER_UNITS.items()},
    }
    for path, text in files.items():
        sandbox.filesystem.write(path, text)
    sandbox.exec(
        "systemctl daemon-reload && systemctl enable --now "
        "tick-agent tick-scheduler tick-timer.timer && "
        "until test -s /opt/tick/timed && test -s /opt/tick/scheduled; do sleep 0.2; done",
        check=True,
        timeout_seconds=60,
    )
    yield sandbox
    for watched in [sandbox] if sandbox.watched() else []:
        watched.unwatch()
    sandbox.delete()
    for snapshot in sandbox.snapshots():
        snapshot.delete()
    patch.undo()


@pytest.fixture(scope="module")
def good(agent: Sandbox) -> Snapshot:
    """A snapshot of the machine as it should be."""
    return agent.snapshot(label="good")


def outcomes(drill: Drill, memory: str) -> dict[str, str]:
    """Return what came of each point in one way of coming back."""
    assert drill.evidence is not None
    (boot,) = [boot for boot in drill.evidence["boots"] if boot["memory"] == memory]
    return {point["name"]: point["outcome"] for point in boot["points"]}


def test_a_good_snapshot_passes_both_ways_and_nothing_is_left(
    agent: Sandbox, good: Snapshot, vm_home: Home
) -> None:
    machine_id = agent.exec("cat /etc/machine-id", check=True).stdout.strip()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    agent.exec(reach(port), check=True, timeout_seconds=60)  # the machine itself has a network
    running = agent.exec("sleep 100000", background=True)
    before = [(e.exec_id, e.state) for e in agent.execs()]
    steps: list[str] = []
    with listener:
        drill = agent.drill(
            checks=checks(machine_id, port), progress=lambda info: steps.append(info.step)
        )
    assert drill.verdict == "pass", drill.text
    assert drill.info.snapshot_id == good.id
    for memory in ("ram", "cold"):
        found = outcomes(drill, memory)
        assert {found[p] for p in ("boots", "agent", "files", "services", "task")} == {"pass"}
        # on a host that is very busy the machine may not have been listed whole when it was taken
        assert found["schedule"] in ("pass", "nothing"), drill.text
    assert drill.evidence is not None
    ram, cold = drill.evidence["boots"]
    assert (ram["boot_mode"], cold["boot_mode"]) == ("restore", "cold")
    assert 0 < ram["recovery_ms"]["machine"] < ram["recovery_ms"]["checked"]
    assert drill.evidence["left_behind"] == []
    assert any("check" in step for step in steps), steps

    assert [(e.exec_id, e.state) for e in agent.execs()] == before, "it was not touched"
    running.kill()
    ticks = agent.exec("wc -l </opt/tick/timed", check=True).stdout
    agent.exec(
        f"until test $(wc -l </opt/tick/timed) -gt {ticks.strip()}; do sleep 0.2; done",
        check=True,
        timeout_seconds=60,
    )
    assert [s.id for s in Sandbox.list()] == [agent.id]
    assert len(machines(vm_home)) == 1
    found = Snapshot.get(good.id).info
    assert found.good is not None
    assert found.good.found_by == drill.id
    assert found.protected == ()
    with pytest.raises(LastGoodSnapshot):
        good.delete()


def test_a_broken_agent_fails_at_its_point(agent: Sandbox, good: Snapshot) -> None:
    agent.exec("mv /opt/tick/agent.py /opt/tick/agent.off; sync", check=True)  # it runs on
    broken = agent.snapshot(label="broken")
    agent.exec("mv /opt/tick/agent.off /opt/tick/agent.py", check=True)
    drill = broken.drill(boots=("cold",))
    assert drill.verdict == "fail", drill.text
    found = outcomes(drill, "cold")
    assert (found["boots"], found["agent"], found["task"]) == ("pass", "fail", "pass"), drill.text
    assert "the agent's process starts?" in drill.sentence
    with pytest.raises(DrillFailed, match=drill.id):
        drill.check()
    assert Snapshot.get(broken.id).info.good is None
    broken.delete()


def test_kill_9_of_the_daemon_leaves_nothing(agent: Sandbox, good: Snapshot, vm_home: Home) -> None:
    """At every point of one drill after the other; the next daemon goes on, and says what was interrupted."""
    drill_id = killed(good, vm_home, DRILL_POINTS)
    drill = Drill.get(drill_id)
    assert not drill.info.is_open, "the last daemon died when it was over"
    assert drill.verdict == "pass", drill.text
    assert_evidence(drill, vm_home, interruptions=2)  # in the clone, before and after the look
    assert [s.id for s in Sandbox.list()] == [agent.id]
    assert len(machines(vm_home)) == 1

    drill_id = killed(good, vm_home, ["drill.intent"] * TRIES)  # for ever: it gives up
    drill = Drill.get(drill_id).wait()
    assert drill.verdict == "inconclusive", drill.text
    assert f"it was interrupted {TRIES} times" in drill.sentence
    assert_evidence(drill, vm_home, interruptions=TRIES)
    assert [s.id for s in Sandbox.list()] == [agent.id]
    assert len(machines(vm_home)) == 1
    found = Snapshot.get(good.id).info
    assert found.protected == ()
    assert found.good is not None, "an inconclusive drill takes no mark away"


def killed(snapshot: Snapshot, home: Home, points: Sequence[str]) -> str:
    """Begin a drill of `snapshot` whose daemons die at each of `points` in turn, and return its id."""
    rows = DrillRows.attach(home.database)
    drill_id = ""
    for number, point in enumerate(points):
        with FaultyDaemon(home, point) as daemon:
            if not number:
                with pytest.MonkeyPatch.context() as patch, contextlib.suppress(TorporError):
                    patch.setattr(client, "RETRY_LIMIT_S", 0.0)
                    snapshot.drill(boots=("ram",), wait=False)
            assert daemon.died(within_s=120), f"{point} was never reached"
        if not number:
            (row,) = rows.open()  # no daemon runs now that could go on with it
            drill_id = row.info.id
        has_clone = point in WITH_CLONE
        assert len(machines(home)) == 1 + has_clone, f"{point}: clones run on until the next daemon"
        assert_whole_or_absent(home, drill_id, is_there=point in ("drill.evidence", "drill.over"))
    rows.close()
    return drill_id


def assert_whole_or_absent(home: Home, drill_id: str, *, is_there: bool) -> None:
    left = sorted(p.name for p in home.drills.glob(f"*{drill_id}*"))
    assert left == ([f"{drill_id}.json"] if is_there else []), "no half of a file"
    if is_there:
        assert json.loads((home.drills / left[0]).read_text())["verdict"] == "pass"


def assert_evidence(drill: Drill, home: Home, *, interruptions: int) -> None:
    assert drill.evidence is not None
    assert [said.partition(": ")[2] for said in drill.evidence["interrupted"]] == [
        "the daemon ended in the middle of it; it was begun anew"
    ] * interruptions
    assert len(drill.evidence["boots"]) == 1
    assert drill.evidence["left_behind"] == []
    assert (drill.evidence["verdict"], drill.evidence["sentence"]) == (
        drill.verdict,
        drill.sentence,
    )
    assert [p.name for p in home.drills.glob(f"*{drill.id}*")] == [f"{drill.id}.json"]


def test_damage_is_seen_and_the_way_back_offered(agent: Sandbox, good: Snapshot) -> None:
    agent.watch({"required": {"file": {"/opt/tick/jobs.json": {"exists": True}}}})
    assert agent.look().outcome == "pass"
    agent.exec("rm /opt/tick/jobs.json", check=True)
    found = agent.look()
    assert (found.outcome, found.last_good) == ("fail", good.id)
    assert found.offer == f"torpor rollback {agent.id} {good.id} --cold"
    assert found.offer in (agent.refresh().health_note or "")
    agent.rollback(good.id, memory="cold")
    assert agent.look().outcome == "pass"
    assert agent.refresh().health_note is None
