"""kill -9 of the daemon at every named step, with real machines: what was acknowledged is there, nothing is left.

The points are those of `torpor.base.faults`; a test at the end sees to it that none is forgotten here.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import torpor
from tests.crash.test_databases import DROPPING, TAKING
from tests.vm.conftest import machines
from tests.vm.faulty import FaultyDaemon
from tests.vm.test_drills import DRILL_POINTS
from tests.vm.test_memory import POINTS as MEMORY_POINTS
from tests.vm.test_volume_crash import POINTS as VOLUME_POINTS
from torpor import Sandbox, Snapshot
from torpor.base.home import Home
from torpor.errors import TorporError
from torpor.model import SandboxState
from torpor.sdk import client

S = SandboxState

CREATE = [
    "create.intent",
    "create.folder",
    "create.overlay",
    "create.started",
    "create.connected",
    "create.ready",
    "create.outcome",
]
DELETE = ["delete.intent", "delete.ended", "delete.removed", "delete.outcome"]
CAPTURE = [
    "snapshot.intent",
    "snapshot.held",
    "snapshot.quiet",
    "snapshot.paused",
    "snapshot.switched",
    "snapshot.ram",
    "snapshot.captured",
    "snapshot.durable",
    "snapshot.staged",
    "snapshot.published",
    "snapshot.outcome",
]
HIBERNATE = [
    "hibernate.intent",
    "snapshot.switched",
    "snapshot.published",
    "snapshot.outcome",
    "hibernate.outcome",
]
WAKE = ["wake.intent", "wake.overlay", "wake.started", "wake.renewed", "wake.outcome"]
ROLLBACK = [
    "rollback.intent",
    "rollback.ended",
    "rollback.overlay",
    "rollback.started",
    "rollback.renewed",
    "rollback.outcome",
]
COLD = ["rollback.intent", "rollback.started", "rollback.outcome"]
"""Where coming back cold differs from coming back with memory."""
PAUSE = ["pause.intent", "pause.acted", "resume.intent", "resume.acted"]
REMOVE = ["snapshot.forgotten", "collect.removed"]
ELSEWHERE = {
    "warm.settled",
    "template.bootstrapped",
    "template.settled",
    "template.published",
    "merge.made",
    "merge.durable",
    "merge.noted",
    "change.idle",
    "change.quiescing",
    "change.captured",
    "change.snapshotted",
    "change.changing",
    "change.started",
    "change.ended",
    "change.verifying",
    "change.verified",
    "change.probation",
    "change.closed",
    "change.kept",
    "change.undoing",
    "change.saved",
    "change.back",
    "change.undone",
    "drill.intent",
    *DRILL_POINTS,
}
"""Tested with the crash tests of templates, of merging, of changes and of drills."""


@pytest.fixture(scope="module")
def lived_in(base: str, vm_home: Home) -> Iterator[Sandbox]:
    """A sandbox with a counter that runs, and a file."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    sandbox = Sandbox.create(template=base)
    sandbox.exec(
        "nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i > /dev/shm/m; mv /dev/shm/m /dev/shm/n; sleep 0.1; done' >/dev/null 2>&1 &"
    )
    sandbox.filesystem.write("/root/kept", "kept\n")
    yield sandbox
    sandbox.delete()
    patch.undo()


def crash(home: Home, point: str, act: Callable[[], object]) -> None:
    """Do `act` with a daemon that dies at `point`, and do not ask again; the next call starts a healthy one."""
    with FaultyDaemon(home, point) as daemon:
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(TorporError):
            patch.setattr(client, "RETRY_LIMIT_S", 0.0)
            act()
        assert daemon.died(), f"{point} was never reached"


def assert_alive(sandbox: Sandbox) -> None:
    """The machine runs, is thawed, takes writes, and its counter goes on."""
    assert sandbox.refresh().state is S.RUNNING, sandbox.info.error
    sandbox.exec("echo still > /root/here && sync", check=True, timeout_seconds=60)
    before = int(sandbox.exec("cat /dev/shm/n").stdout)
    after = int(sandbox.exec("sleep 0.5; cat /dev/shm/n").stdout)
    assert after > before
    assert sandbox.exec("cat /root/kept").stdout == "kept\n"


def assert_nothing_is_left(home: Home) -> None:
    """Machines and folders are those of sandboxes that there are."""
    there = {s.id: s.info.state for s in Sandbox.list()}
    running = {i for i, state in there.items() if state not in (S.FAILED, S.STOPPED, S.HIBERNATED)}
    assert len(machines(home)) == len(running)
    assert {p.name for p in home.sandboxes.iterdir()} <= set(there)
    assert [p.name for p in home.tmp.iterdir()] == []
    layers = {p.name.partition(".")[0] for p in home.layers.iterdir()}
    snapshots = Snapshot.list()
    assert all(Snapshot.verify(s.id).ok for s in snapshots[:3])
    assert layers, "the template's own"


@pytest.mark.parametrize("point", CREATE)
def test_create(base: str, vm_home: Home, point: str) -> None:
    before = {s.id for s in Sandbox.list()}
    crash(vm_home, point, lambda: Sandbox.create(template=base, metadata={"point": point}))
    made = [s for s in Sandbox.list() if s.id not in before]
    assert len(made) == 1
    assert made[0].info.state is (S.RUNNING if point == "create.outcome" else S.FAILED), made[
        0
    ].info
    if point == "create.outcome":
        assert made[0].exec("echo here").stdout == "here\n"
    assert_nothing_is_left(vm_home)
    made[0].delete()
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize("point", DELETE)
def test_delete(base: str, vm_home: Home, point: str) -> None:
    sandbox = Sandbox.create(template=base)
    crash(vm_home, point, sandbox.delete)
    assert sandbox.refresh().state is S.DELETED
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize("point", CAPTURE)
def test_snapshot(lived_in: Sandbox, vm_home: Home, point: str) -> None:
    before = {s.id for s in Snapshot.list()}
    crash(vm_home, point, lived_in.snapshot)
    assert_alive(lived_in)
    new = [s for s in Snapshot.list() if s.id not in before]
    assert len(new) == (1 if point in ("snapshot.published", "snapshot.outcome") else 0)
    after = lived_in.snapshot()
    for snapshot in (*new, after):
        assert Snapshot.verify(snapshot.id).ok
    with Sandbox.restore(after.id) as restored:
        assert_alive(restored)
    for snapshot in (*new, after):
        Snapshot.delete(snapshot.id)
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize("point", ["snapshot.intent", "snapshot.durable", "snapshot.published"])
def test_a_snapshot_that_is_asked_for_again_is_taken_once(
    lived_in: Sandbox, vm_home: Home, point: str
) -> None:
    before = {s.id for s in Snapshot.list()}
    with FaultyDaemon(vm_home, point) as daemon:
        taken = lived_in.snapshot(label="again")
        assert daemon.died()
    assert [s.id for s in Snapshot.list() if s.id not in before] == [taken.id]
    assert Snapshot.verify(taken.id).ok
    assert_alive(lived_in)
    Snapshot.delete(taken.id)
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize("point", HIBERNATE)
def test_hibernate(lived_in: Sandbox, vm_home: Home, point: str) -> None:
    crash(vm_home, point, lived_in.hibernate)
    state = lived_in.refresh().state
    assert state in (S.RUNNING, S.HIBERNATED)
    if point in ("snapshot.published", "hibernate.outcome"):
        assert state is S.HIBERNATED
    if state is S.HIBERNATED:
        assert not [
            m
            for m in machines(vm_home)
            if lived_in.id in Path(f"/proc/{m.pid}/cmdline").read_text()
        ]
    lived_in.wake()
    assert_alive(lived_in)
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize("point", WAKE)
def test_wake(lived_in: Sandbox, vm_home: Home, point: str) -> None:
    lived_in.hibernate()
    crash(vm_home, point, lived_in.wake)
    assert lived_in.refresh().state is (S.RUNNING if point == "wake.outcome" else S.HIBERNATED)
    lived_in.wake()
    assert_alive(lived_in)
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize("point", ROLLBACK)
def test_rollback(lived_in: Sandbox, vm_home: Home, point: str) -> None:
    snapshot = lived_in.snapshot()
    lived_in.exec("rm -f /root/kept; sync", check=True)
    crash(vm_home, point, lambda: lived_in.rollback(snapshot.id))
    end = time.monotonic() + 60
    while lived_in.refresh().state is not S.RUNNING:  # the next daemon makes it again
        assert time.monotonic() < end, lived_in.info
        time.sleep(0.1)
    assert_alive(lived_in)
    Snapshot.delete(snapshot.id)
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize("point", COLD)
def test_rollback_to_the_disk_alone(base: str, vm_home: Home, point: str) -> None:
    with Sandbox.create(template=base, env={"TOKEN": "kept"}) as sandbox:
        sandbox.filesystem.write("/root/kept", "kept\n")
        sandbox.exec("touch /dev/shm/gone; cat /etc/machine-id > /root/id", check=True)
        snapshot = sandbox.snapshot()
        sandbox.exec("rm -f /root/kept; sync", check=True)
        crash(vm_home, point, lambda: sandbox.rollback(snapshot.id, memory="cold"))
        end = time.monotonic() + 180
        while sandbox.refresh().state is not S.RUNNING:  # the next daemon makes it again, cold too
            assert time.monotonic() < end, sandbox.info
            time.sleep(0.1)
        assert (sandbox.info.boot_mode, sandbox.info.generation >= 2) == ("cold", True)
        told = sandbox.exec(
            "cat /root/kept; ls /dev/shm/gone; echo $TOKEN; cmp /etc/machine-id /root/id && echo same"
        )
        assert told.stdout == "kept\nkept\nsame\n"
        assert sandbox.exec("uptime -s").ok
        again = sandbox.snapshot()
        with Sandbox.restore(again.id) as restored:
            assert restored.exec("cat /root/kept").stdout == "kept\n"
        for taken in (snapshot, again):
            Snapshot.delete(taken.id)
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize("point", PAUSE)
def test_pause_and_resume(lived_in: Sandbox, vm_home: Home, point: str) -> None:
    act = lived_in.pause
    if point.startswith("resume"):
        lived_in.pause()
        act = lived_in.resume
    crash(vm_home, point, act)
    assert lived_in.refresh().state in (S.RUNNING, S.PAUSED)
    lived_in.resume()
    assert_alive(lived_in)


@pytest.mark.parametrize("point", REMOVE)
def test_removal_of_a_snapshot(lived_in: Sandbox, vm_home: Home, point: str) -> None:
    kept = lived_in.snapshot()
    lived_in.exec("head -c 2000000 /dev/urandom > /root/more; sync")
    doomed = lived_in.snapshot()
    lived_in.rollback(kept.id)
    crash(vm_home, point, lambda: Snapshot.delete(doomed.id))
    ids = {s.id for s in Snapshot.list()}
    if doomed.id in ids:
        Snapshot.delete(doomed.id)
    assert kept.id in ids
    assert Snapshot.verify(kept.id).ok
    assert_alive(lived_in)
    Snapshot.delete(kept.id)
    assert_nothing_is_left(vm_home)


@pytest.mark.parametrize(
    "point",
    ["snapshot.quiet", "snapshot.switched", "wake.started", "rollback.started", "create.started"],
)
def test_a_vmm_that_dies_at_a_step(base: str, vm_home: Home, point: str) -> None:
    """The other half: not the daemon but the machine is killed there."""
    import os
    import signal
    import threading

    sandbox = Sandbox.create(template=base)
    snapshot = sandbox.snapshot()
    if point == "wake.started":
        sandbox.hibernate()
    acts: dict[str, Callable[[], object]] = {
        "snapshot": sandbox.snapshot,
        "wake": sandbox.wake,
        "rollback": lambda: sandbox.rollback(snapshot.id),
        "create": lambda: Sandbox.create(template=base),
    }
    failures: list[BaseException] = []

    def act() -> None:
        try:
            acts[point.partition(".")[0]]()
        except TorporError as exc:
            failures.append(exc)

    before = machines(vm_home)
    with FaultyDaemon(vm_home, f"{point}:stop") as daemon:
        thread = threading.Thread(target=act)
        thread.start()
        daemon.until_stopped()
        doomed = [m for m in machines(vm_home) if m not in before] or before
        for machine in doomed:
            os.kill(machine.pid, signal.SIGKILL)
        daemon.go_on()
        thread.join(90)
        assert not thread.is_alive(), "it hangs"
        assert failures, "it was called a success"
    # a daemon without the fault goes on
    state = sandbox.refresh().state
    if point == "wake.started":
        assert state is S.HIBERNATED
        sandbox.wake()
    elif point != "create.started":
        assert state is S.FAILED
        sandbox.rollback(snapshot.id)
    assert sandbox.exec("echo back").stdout == "back\n"
    for left in Sandbox.list():
        left.delete()
    Snapshot.delete(snapshot.id)
    assert_nothing_is_left(vm_home)


def test_every_point_is_tried() -> None:
    source = Path(torpor.__file__).parent
    named = set()
    for path in source.rglob("*.py"):
        text = path.read_text()
        named |= set(re.findall(r'reach\("([a-z.]+)"\)', text))
        for rest in re.findall(r'reach\(f"\{reason\}\.([a-z]+)"\)', text):
            named |= {f"wake.{rest}", f"rollback.{rest}"}
    elsewhere = MEMORY_POINTS | {*VOLUME_POINTS, *TAKING, *DROPPING}
    tried = {*CREATE, *DELETE, *CAPTURE, *HIBERNATE, *WAKE, *ROLLBACK, *PAUSE, *REMOVE}
    assert named - tried - ELSEWHERE - elsewhere == set()
    assert (tried | elsewhere | set(DRILL_POINTS)) - named == set()
