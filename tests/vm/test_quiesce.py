"""Application snapshots of a real machine: a storm of writers, hooks that fail or hang, a daemon that dies."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.vm.faulty import FaultyDaemon
from torpor import Sandbox
from torpor.base.home import Home
from torpor.errors import QuiesceFailed
from torpor.model_quiesce import HookSpec, QuiesceReport, QuiesceSpec, spec_to_json
from torpor.sandboxes.folder import folder_of
from torpor.vmm.qemu import QemuDriver

_STORM = """
import os, sqlite3, sys
db = sqlite3.connect("/home/agent/app.data", isolation_level=None, timeout=60)
db.execute("PRAGMA journal_mode=wal")
db.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, text)")
log = os.open("/home/agent/acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number = 0
while True:
    db.execute("INSERT INTO rows VALUES (?, ?)", (number, "x" * 500))
    os.write(log, b"%d\\n" % number)  # only what was committed is told
    number += 1
"""
_CHECK = """
import json, sqlite3
last = int(open("/home/agent/acknowledged").read().split()[-1])
db = sqlite3.connect("/home/agent/app.data", isolation_level=None, timeout=5)
found = db.execute("SELECT count(*), max(number) FROM rows").fetchone()
integrity = db.execute("PRAGMA integrity_check").fetchall()
db.execute("BEGIN IMMEDIATE")
db.execute("ROLLBACK")
print(json.dumps({"acknowledged": last + 1, "rows": found[0], "last": found[1], "integrity": integrity}))
"""


@pytest.fixture(scope="module")
def stormy(base: str, vm_home: Home) -> Iterator[Sandbox]:
    """A sandbox with a database that is written to all the time."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    sandbox = Sandbox.create(template=base)
    sandbox.filesystem.write("/home/agent/storm.py", _STORM)
    sandbox.filesystem.write("/home/agent/check.py", _CHECK)
    sandbox.exec(
        "nohup python3 /home/agent/storm.py >/dev/null 2>&1 & until [ -s /home/agent/acknowledged ]; do sleep 0.1; done",
        check=True,
    )
    yield sandbox
    sandbox.delete()
    patch.undo()


def _writes_on(sandbox: Sandbox) -> None:
    """The storm goes on: more is acknowledged than was."""
    count = "wc -l < /home/agent/acknowledged"
    before = int(sandbox.exec(count, check=True).stdout)
    deadline = time.monotonic() + 60
    while int(sandbox.exec(count, check=True).stdout) <= before:
        assert time.monotonic() < deadline, "nobody can write"


def _console(home: Home, sandbox: Sandbox) -> Path:
    return QemuDriver().console(folder_of(home, sandbox.id))


def _ask_once(home: Home, sandbox: Sandbox, spec: QuiesceSpec) -> None:
    """Ask for a snapshot as a client that neither asks again nor starts another daemon."""
    body = {"consistency": "application", "quiesce": spec_to_json(spec)}
    with (
        httpx.Client(transport=httpx.HTTPTransport(uds=str(home.socket)), timeout=120) as client,
        contextlib.suppress(httpx.TransportError),
    ):
        client.post(f"http://torpord/v1/sandboxes/{sandbox.id}/snapshots", json=body)


def _report(report: QuiesceReport | None) -> QuiesceReport:
    assert report is not None
    print(
        *(
            f"{h.name}: prepare {h.prepare_ms} hold {h.hold_ms} held {h.held_ms} release {h.release_ms} {h.message}"
            for h in report.hooks
        )
    )
    return report


def test_a_storm_of_writers(stormy: Sandbox) -> None:
    for number in range(2):
        snap = stormy.snapshot(label=f"storm-{number}", consistency="application")
        report = _report(snap.quiesce)
        assert (snap.consistency, report.confirmed) == ("application", "after")
        assert [(h.name, h.state) for h in report.hooks] == [("sqlite", "held")]
        assert "app.data" in report.hooks[0].message
        _writes_on(stormy)
        with Sandbox.restore(snap.id) as there:
            _writes_on(there)
            there.exec("pkill -9 -f '[s]torm.py'")
            found = json.loads(there.exec("python3 /home/agent/check.py", check=True).stdout)
            assert found["integrity"] == [["ok"]]
            assert found["rows"] >= found["acknowledged"]
            assert found["last"] == found["rows"] - 1, "no row is missing between"
            assert there.exec(
                "pgrep -f [t]orpor_guest.holder || ls /var/lib/torpor/quiesce.json"
            ).exit_code
    forks = stormy.fork(count=1)
    assert isinstance(forks[0], Sandbox)
    forks[0].delete()


def test_asleep_while_held_and_awake_released(stormy: Sandbox) -> None:
    snap = stormy.hibernate(consistency="application")
    assert (snap.consistency, _report(snap.quiesce).confirmed) == ("application", "lease")
    stormy.wake()
    _writes_on(stormy)


def test_hooks_that_fail_hang_or_are_optional(stormy: Sandbox) -> None:
    before = [snapshot.id for snapshot in stormy.snapshots()]
    log = "/home/agent/hooks"
    note = f"echo $TORPOR_QUIESCE_NAME $TORPOR_QUIESCE_PHASE $TORPOR_QUIESCE_OUTCOME >> {log}"
    first = HookSpec(name="first", prepare=note, hold=note, release=note, order=1)
    failing = HookSpec(name="failing", hold="echo out of luck >&2; exit 3", order=95)
    hanging = HookSpec(
        name="hanging", prepare="sleep 999 & sleep 999", hold="true", prepare_timeout_seconds=2
    )
    with pytest.raises(QuiesceFailed, match="hook failing: hold ended with status 3: out of luck"):
        stormy.snapshot(consistency="application", quiesce=QuiesceSpec(hooks=(first, failing)))
    assert stormy.filesystem.read_text(log).splitlines() == [
        *("first prepare", "first hold", "first release failed")
    ]
    with pytest.raises(QuiesceFailed, match=r"ran longer than 2\.0 s"):
        stormy.snapshot(consistency="application", quiesce=QuiesceSpec(hooks=(hanging,)))
    assert stormy.exec("pgrep -f '[s]leep 999'").exit_code == 1, "its whole tree is gone"
    assert [snapshot.id for snapshot in stormy.snapshots()] == before
    _writes_on(stormy)
    optional = HookSpec(name="optional", hold="exit 4", required=False)
    spec = QuiesceSpec(
        hooks=(first, optional), versions={"python": "python3 --version"}, cursor=f"wc -l < {log}"
    )
    report = stormy.test_quiesce(quiesce=spec)
    assert report.held
    snap = stormy.snapshot(consistency="application", quiesce=spec)
    report = _report(snap.quiesce)
    assert {h.name: h.state for h in report.hooks} == {
        "first": "held",
        "optional": "failed",
        "sqlite": "held",
    }
    assert (report.versions["python"] or "").startswith("Python 3.")
    assert (report.cursor or "").isdigit()
    lesser = stormy.snapshot(
        consistency="application",
        quiesce=QuiesceSpec(hooks=(failing,)),
        on_quiesce_failure="downgrade",
    )
    assert lesser.consistency == "filesystem"
    assert not _report(lesser.quiesce).held
    _writes_on(stormy)


@pytest.mark.parametrize("point", ["snapshot.held", "snapshot.paused", "snapshot.captured"])
def test_a_daemon_that_is_killed(stormy: Sandbox, vm_home: Home, point: str) -> None:
    log = f"/home/agent/{point}"
    hook = HookSpec(name="a", hold="true", release=f"echo $TORPOR_QUIESCE_OUTCOME >> {log}")
    spec = QuiesceSpec(hooks=(hook,))
    before = [snapshot.id for snapshot in stormy.snapshots()]
    with FaultyDaemon(vm_home, point) as daemon:
        _ask_once(vm_home, stormy, spec)
        assert daemon.died(), f"{point} was never reached"
    _writes_on(stormy)
    expected = "taken" if point == "snapshot.captured" else "failed"
    assert stormy.filesystem.read_text(log) == f"{expected}\n"
    assert [snapshot.id for snapshot in stormy.snapshots()] == before


def test_nobody_comes(stormy: Sandbox, vm_home: Home) -> None:
    """Without a daemon the guest lets go by itself; what it says on its console can be read without one."""
    hook = HookSpec(name="a", hold="true", order=99, hold_max_seconds=3)
    console = _console(vm_home, stormy)
    size = console.stat().st_size
    with FaultyDaemon(vm_home, "snapshot.held") as daemon:
        _ask_once(vm_home, stormy, QuiesceSpec(hooks=(hook,)))
        assert daemon.died()
        deadline = time.monotonic() + 60
        while b"released all: expired" not in console.read_bytes()[size:]:
            assert time.monotonic() < deadline, "it is held for ever"
            time.sleep(0.1)
    _writes_on(stormy)


def test_an_agent_that_is_killed_while_it_is_held(stormy: Sandbox) -> None:
    log = "/home/agent/lost"
    release = f"echo released $TORPOR_QUIESCE_OUTCOME >> {log}"
    hook = HookSpec(
        name="suicidal",
        order=99,
        hold="(sleep 0.5; pkill -9 -f '[t]orpor_guest$') >/dev/null 2>&1 & true",
        confirm="sleep 5",
        release=release,
    )
    with pytest.raises(Exception, match=r"."):
        stormy.snapshot(consistency="application", quiesce=QuiesceSpec(hooks=(hook,)))
    deadline = time.monotonic() + 60
    while not stormy.filesystem.exists(log):
        assert time.monotonic() < deadline
    assert stormy.filesystem.read_text(log) == "released lost\n"
    assert stormy.exec("pgrep -f [t]orpor_guest.holder").exit_code == 1
    assert (
        stormy.exec(
            "python3 -c \"import sqlite3; d = sqlite3.connect('/home/agent/app.data', isolation_level=None); d.execute('BEGIN IMMEDIATE')\""
        ).exit_code
        == 0
    )


def test_cold_from_the_disk(stormy: Sandbox) -> None:
    log = "/home/agent/cold"
    hook = HookSpec(
        name="a", hold="true", release=f"echo $TORPOR_QUIESCE_OUTCOME >> {log}", order=99
    )
    snap = stormy.snapshot(consistency="application", quiesce=QuiesceSpec(hooks=(hook,)))
    assert stormy.filesystem.read_text(log) == "taken\n"
    stormy.rollback(snap.id, memory="cold")
    assert stormy.info.boot_mode == "cold"
    found = json.loads(stormy.exec("python3 /home/agent/check.py", check=True).stdout)
    assert found["integrity"] == [["ok"]]
    assert found["rows"] >= found["acknowledged"]
    deadline = time.monotonic() + 60
    while not stormy.filesystem.exists(log):
        assert time.monotonic() < deadline, "its hook was never released"
    assert stormy.filesystem.read_text(log) == "lost\n"
    assert not stormy.filesystem.exists("/var/lib/torpor/quiesce.json")
