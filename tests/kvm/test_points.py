"""Snapshot, restore, fork, hibernate, wake and roll back: memory, processes and disk are of one instant."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.kvm.traces import machines
from tests.machines import clock_error_s
from torpor import Sandbox
from torpor.base.home import Home
from torpor.model import SandboxState

_COUNTER = """
import time
n = 0
while True:
    n += 1
    open("/dev/shm/n", "w").write(str(n))
    with open("/root/count", "a") as file:
        file.write(f"{n}\\n")
    time.sleep(0.05)
"""
_WHO = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; head -c 16 /dev/urandom | od -An -tx1"


@pytest.fixture(scope="module")
def busy(template: str) -> Iterator[Sandbox]:
    """A sandbox that counts in memory and on disk, with a tmpfs and a file."""
    with Sandbox.create(template=template) as sbx:
        sbx.filesystem.write("/root/counter.py", _COUNTER)
        sbx.exec(
            "nohup python3 /root/counter.py >/dev/null 2>&1 & until [ -s /root/count ]; do sleep 0.1; done;"
            "echo in-tmpfs > /dev/shm/tmpfs; echo on-disk > /root/disk",
            check=True,
        )
        yield sbx


def _counted(sandbox: Sandbox) -> list[int]:
    return [int(line) for line in sandbox.filesystem.read_text("/root/count").split()]


def _uptime(sandbox: Sandbox) -> float:
    return float(sandbox.exec("cut -d ' ' -f 1 /proc/uptime").stdout)


def _counts_on(sandbox: Sandbox) -> list[int]:
    """Return what it counted, once it has counted on since this was called."""
    before = len(_counted(sandbox))
    end = time.monotonic() + 60
    while len(counted := _counted(sandbox)) <= before:
        assert time.monotonic() < end, "the counter stands still"
    assert counted == list(range(1, len(counted) + 1)), "the counter missed a beat"
    return counted


def test_a_snapshot_is_the_whole_machine_twice_over(busy: Sandbox, driver: str) -> None:
    snapshot = busy.snapshot(label="whole")
    assert snapshot.consistency == "filesystem"
    at = len(_counted(busy))
    busy.exec("rm -f /root/disk /dev/shm/tmpfs; sync", check=True)
    with Sandbox.restore(snapshot.id) as there:
        assert there.info.boot_mode == "restore"
        assert there.exec("cat /root/disk /dev/shm/tmpfs").stdout == "on-disk\nin-tmpfs\n"
        _counts_on(there)
        assert clock_error_s(there) < 2
        assert there.exec("dmesg | grep -ci 'ext4.*error'").stdout.strip() == "0"
        there.exec("echo second > /dev/shm/tmpfs; echo second > /root/disk", check=True)
        deeper = there.snapshot()
        with Sandbox.restore(deeper.id) as below:
            assert below.exec("cat /root/disk /dev/shm/tmpfs").stdout == "second\nsecond\n"
            _counts_on(below)
    assert len(_counts_on(busy)) > at, "the source went on"
    assert busy.exec("cat /root/disk").exit_code != 0, "and kept what it did"
    assert busy.rollback(snapshot.id).id == busy.id
    assert busy.exec("cat /root/disk /dev/shm/tmpfs").stdout == "on-disk\nin-tmpfs\n"
    _counts_on(busy)


def test_three_forks_are_others_and_apart(busy: Sandbox) -> None:
    mine = busy.exec(_WHO).stdout.splitlines()
    forks = [fork for fork in busy.fork(count=3) if isinstance(fork, Sandbox)]
    try:
        assert len(forks) == 3
        theirs = [fork.exec(_WHO).stdout.splitlines() for fork in forks]
        for line in range(4):
            assert len({who[line] for who in [mine, *theirs]}) == 4, f"line {line} is shared"
        for number, fork in enumerate(forks):
            fork.exec(f"echo {number} > /root/own; echo {number} > /dev/shm/own; sync", check=True)
        for number, fork in enumerate(forks):
            assert fork.exec("cat /root/own /dev/shm/own").stdout == f"{number}\n{number}\n"
            _counts_on(fork)
        assert not busy.filesystem.exists("/root/own")
        _counts_on(busy)
    finally:
        for fork in forks:
            fork.delete()


def test_two_restores_of_one_snapshot_draw_different_numbers(busy: Sandbox) -> None:
    snapshot = busy.snapshot()
    drawn = []
    for _ in range(2):
        with Sandbox.restore(snapshot.id) as clone:
            drawn.append(clone.exec(_WHO).stdout.splitlines())
    for line, pair in enumerate(zip(*drawn, strict=True)):
        assert pair[0] != pair[1], f"line {line} is shared"


def test_asleep_it_has_no_process_and_awake_it_is_the_same(busy: Sandbox, kvm_home: Home) -> None:
    who = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname"
    before, at = busy.exec(who).stdout, len(_counted(busy))
    running = len(machines(kvm_home))
    up, since = _uptime(busy), time.monotonic()
    busy.hibernate()
    assert busy.refresh().state is SandboxState.HIBERNATED
    assert len(machines(kvm_home)) == running - 1
    time.sleep(5)  # which must not have passed in the machine
    busy.wake()
    assert _uptime(busy) - up < time.monotonic() - since - 4, (
        "its timers do not run out in its sleep"
    )
    assert busy.refresh().boot_mode == "resume"
    assert busy.exec(who).stdout == before
    assert len(_counts_on(busy)) > at
    assert clock_error_s(busy) < 2
    busy.hibernate()
    assert busy.exec("cat /dev/shm/tmpfs").stdout == "in-tmpfs\n", "a command wakes it"
    _counts_on(busy)
