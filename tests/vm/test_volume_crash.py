"""kill -9 at every named step of what volumes do: the lease and the files are right afterwards, and no line is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vm.conftest import machines
from tests.vm.faulty import FaultyDaemon
from torpor import Sandbox, Snapshot, Volume
from torpor.base.home import Home
from torpor.errors import NotFound, TorporError
from torpor.model import SandboxState

S = SandboxState

MAKE = ["volume.formatted", "volume.made"]
ATTACH = ["attach.intent", "attach.plugged", "attach.mounted", "attach.outcome"]
DETACH = ["detach.intent", "detach.unmounted", "detach.unplugged", "detach.outcome"]
GROW = ["grow.intent", "grow.resized", "grow.outcome"]
POINT = ["volume.switching", "volume.switched"]
SEAL = ["volume.sealed"]
CAPTURE = ["volumes.overlay", "volumes.switched"]
PART = ["volumes.parting", "volumes.parted"]
BACK = ["volumes.kept", "volumes.back", "volumes.settled"]
CLONE = ["volumes.cloned"]
GONE = ["delete.released"]
POINTS = {
    *MAKE,
    *ATTACH,
    *DETACH,
    *GROW,
    *POINT,
    *SEAL,
    *CAPTURE,
    *PART,
    *BACK,
    *CLONE,
    *GONE,
}

NAME = "crash"


@pytest.fixture(scope="module")
def one(base: str, vm_home: Home) -> Iterator[Sandbox]:
    """A sandbox for the tests of this module."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    sandbox = Sandbox.create(template=base)
    yield sandbox
    sandbox.delete()
    patch.undo()


@pytest.fixture
def volume(one: Sandbox) -> Iterator[Volume]:
    """A volume at /data of `one`, with a first line in it."""
    made = Volume.create(NAME)
    one.attach_volume(NAME, "/data")
    write(one, "first")
    yield made
    with contextlib.suppress(NotFound):
        one.detach_volume(NAME)
    for snapshot in Snapshot.list():
        if NAME in snapshot.info.volumes.values():
            snapshot.delete()
    Volume.handle(NAME).delete(snapshots=True)
    assert volumes() == []


def volumes() -> list[str]:
    """The names of all volumes but those that databases begin from, which other tests may have left."""
    return [v.name for v in Volume.list() if not v.name.startswith("postgres-seed-")]


def write(sandbox: Sandbox, line: str) -> None:
    sandbox.exec(f"echo {line} >> /data/lines && sync", check=True, timeout_seconds=60)


def lines(sandbox: Sandbox) -> list[str]:
    return sandbox.exec("cat /data/lines", check=True, timeout_seconds=60).stdout.split()


def crash(home: Home, point: str, act: Callable[[], object]) -> None:
    """Do `act` with a daemon that dies at `point`; the next call starts a healthy one."""
    with FaultyDaemon(home, point) as daemon:
        with contextlib.suppress(TorporError):
            act()
        assert daemon.died(), f"{point} was never reached"


def states() -> list[str]:
    return [h.state for h in Volume.get(NAME).info.holders]


@pytest.mark.parametrize("point", MAKE)
def test_making(base: str, vm_home: Home, point: str) -> None:
    crash(vm_home, point, lambda: Volume.create("made"))
    assert volumes() == [], "it is there whole, or not at all"
    made = Volume.create("made")
    assert made.delete() > 0


@pytest.mark.parametrize("point", ATTACH)
def test_attach(one: Sandbox, volume: Volume, vm_home: Home, point: str) -> None:
    one.detach_volume(NAME)
    crash(vm_home, point, lambda: one.attach_volume(NAME, "/data"))
    assert states() == (["attached"] if point == "attach.outcome" else [])
    if not states():
        assert one.exec("ls /data /sys/block").stdout.split() == ["/data:", "/sys/block:", "vda"]
        one.attach_volume(NAME, "/data")
    write(one, "second")
    assert lines(one) == ["first", "second"]


@pytest.mark.parametrize("point", DETACH)
def test_detach(one: Sandbox, volume: Volume, vm_home: Home, point: str) -> None:
    crash(vm_home, point, lambda: one.detach_volume("/data"))
    assert states() == []
    assert one.exec("ls /data /sys/block").stdout.split() == ["/data:", "/sys/block:", "vda"]
    with Sandbox.create(volumes={"/data": NAME}) as other:
        assert lines(other) == ["first"]


@pytest.mark.parametrize("point", GROW)
def test_grow(one: Sandbox, volume: Volume, vm_home: Home, point: str) -> None:
    crash(vm_home, point, lambda: volume.grow(2))
    write(one, "second")
    volume.grow(2)
    assert int(one.exec("df --output=size -B1M /data | tail -1").stdout) > 1500
    one.snapshot()
    write(one, "third")
    assert lines(one) == ["first", "second", "third"]
    assert one.exec("dmesg | grep -ci 'ext4.*error'").stdout.strip() == "0"


@pytest.mark.parametrize("point", POINT)
def test_a_volumes_snapshot(one: Sandbox, volume: Volume, vm_home: Home, point: str) -> None:
    crash(vm_home, point, lambda: volume.snapshot(label="x"))
    write(one, "second")
    assert [s.label for s in volume.snapshots()] == []
    volume.snapshot(label="x")
    write(one, "third")
    copy = volume.clone("copy", snapshot="x")
    with Sandbox.create(volumes={"/data": "copy"}) as other:
        assert lines(other) == ["first", "second"]
    copy.delete()
    assert lines(one) == ["first", "second", "third"]


@pytest.mark.parametrize("point", SEAL)
def test_sealing(one: Sandbox, volume: Volume, vm_home: Home, point: str) -> None:
    one.detach_volume("/data")
    crash(vm_home, point, volume.snapshot)
    one.attach_volume(NAME, "/data")
    write(one, "second")
    one.detach_volume("/data")
    snapshot = volume.snapshot()
    one.attach_volume(NAME, "/data", read_only=True)
    assert lines(one) == ["first", "second"]
    assert snapshot.id in [s.id for s in volume.snapshots()]


@pytest.mark.parametrize("point", CAPTURE)
def test_a_machines_snapshot(one: Sandbox, volume: Volume, vm_home: Home, point: str) -> None:
    crash(vm_home, point, one.snapshot)
    assert states() == ["attached"]
    write(one, "second")
    snapshot = one.snapshot()
    assert Snapshot.verify(snapshot.id).ok
    write(one, "third")
    with Sandbox.restore(snapshot.id) as there:
        assert lines(there) == ["first", "second"]
    assert lines(one) == ["first", "second", "third"]


@pytest.mark.parametrize("point", PART)
def test_what_was_taken_off_is_put_back(
    one: Sandbox, volume: Volume, vm_home: Home, point: str
) -> None:
    crash(vm_home, point, lambda: one.snapshot(volumes="keep-current"))
    assert states() == ["attached"]
    write(one, "second")
    assert lines(one) == ["first", "second"]


@pytest.mark.parametrize("point", BACK)
def test_a_rollback_is_made_again(one: Sandbox, volume: Volume, vm_home: Home, point: str) -> None:
    snapshot = one.snapshot()
    write(one, "later")
    crash(vm_home, point, lambda: one.rollback(snapshot.id))
    one.refresh()
    while one.info.state is not S.RUNNING:
        assert one.info.state in (S.RESTORING, S.FAILED), one.info.error
        one.refresh()
    assert lines(one) == ["first"]
    assert states() == ["attached"]
    kept = [s for s in volume.snapshots() if s.reason == "rollback"]
    assert kept, "nothing is lost"
    old = volume.clone("old", snapshot=kept[-1].id)
    with Sandbox.create(volumes={"/data": "old"}) as other:
        assert lines(other) == ["first", "later"]
    old.delete()
    snapshot.delete()


@pytest.mark.parametrize("point", CLONE)
def test_no_clone_is_left_of_a_restore(
    one: Sandbox, volume: Volume, vm_home: Home, point: str
) -> None:
    snapshot = one.snapshot()
    before = {s.id for s in Sandbox.list()}
    crash(vm_home, point, lambda: Sandbox.restore(snapshot.id))
    assert volumes() == [NAME]
    for sandbox in [s for s in Sandbox.list() if s.id not in before]:
        assert sandbox.info.state is S.FAILED
        sandbox.delete()


@pytest.mark.parametrize("point", GONE)
def test_deleting_a_sandbox(base: str, vm_home: Home, point: str) -> None:
    made = Volume.create("doomed")
    sandbox = Sandbox.create(template=base, volumes={"/data": "doomed"})
    crash(vm_home, point, sandbox.delete)
    assert Volume.get("doomed").info.holders == ()
    with Sandbox.create(volumes={"/data": "doomed"}) as other:
        write(other, "here")
    made.delete()


@pytest.mark.parametrize(
    "point",
    ["attach.plugged", "detach.unmounted", "grow.resized", "volume.switched", "volumes.switched"],
)
def test_a_vmm_that_dies_at_a_step(base: str, vm_home: Home, point: str) -> None:
    """The other half: not the daemon but the machine is killed there."""
    made = Volume.create("other")
    sandbox = Sandbox.create(template=base, volumes={"/data": "other"})
    write(sandbox, "first")
    if point.startswith("attach"):
        sandbox.detach_volume("/data")
    acts: dict[str, Callable[[], object]] = {
        "attach": lambda: sandbox.attach_volume("other", "/data"),
        "detach": lambda: sandbox.detach_volume("/data"),
        "grow": lambda: made.grow(2),
        "volume": made.snapshot,
        "volumes": sandbox.snapshot,
    }
    failures: list[BaseException] = []

    def act() -> None:
        try:
            acts[point.partition(".")[0]]()
        except TorporError as exc:
            failures.append(exc)

    with FaultyDaemon(vm_home, f"{point}:stop") as daemon:
        thread = threading.Thread(target=act)
        thread.start()
        daemon.until_stopped()
        for machine in machines(vm_home):
            if sandbox.id in str(Path(f"/proc/{machine.pid}/cwd").readlink()):
                os.kill(machine.pid, signal.SIGKILL)
        daemon.go_on()
        thread.join(120)
        assert not thread.is_alive()
    # with a daemon that does not stop there again
    with Sandbox.create(template=base) as elsewhere:
        elsewhere.attach_volume("other", "/data")
        write(elsewhere, "second")
        assert lines(elsewhere) == ["first", "second"]
    sandbox.delete()
    made.delete(snapshots=True)
    assert failures or point == "volume.switched"
