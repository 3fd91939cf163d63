"""The whole machine at one instant: what runs, what is in memory, what is on disk, and who it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import clock_error_s
from tests.vm.conftest import daemon_process, end_daemon, machines
from torpor import Sandbox, Snapshot
from torpor.base.home import Home
from torpor.errors import GenerationChanged, NotFound
from torpor.model import SandboxState

S = SandboxState

_SERVER = """
import random, socketserver, threading
state = {"hits": 0, "list": [1, 2, 3]}
class H(socketserver.StreamRequestHandler):
    def handle(self):
        state["hits"] += 1
        self.wfile.write(f"{state['hits']} {state['list']}\\n".encode())
server = socketserver.TCPServer(("127.0.0.1", 8123), H)
open("/dev/shm/ready", "w").write("yes")
server.serve_forever()
"""
_ASK = "python3 -c \"import socket; s = socket.create_connection(('127.0.0.1', 8123), 20); print(s.makefile().read(), end='')\""


@pytest.fixture(scope="module")
def busy(base: str, vm_home: Home) -> Iterator[Sandbox]:
    """A sandbox with a counter, a server with objects in its memory, an open deleted file and a tmpfs."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    sandbox = Sandbox.create(template=base)
    sandbox.exec(
        "nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i >> /root/count; sleep 0.05; done' >/dev/null 2>&1 &"
        "nohup sh -c 'exec 3>/root/open; rm /root/open; KEY=env-kept; export KEY; while :; do echo x >&3; sleep 1; done' >/dev/null 2>&1 &"
        "echo in-tmpfs > /dev/shm/tmpfs; echo on-disk > /root/disk",
        check=True,
    )
    sandbox.filesystem.write("/root/server.py", _SERVER)
    sandbox.exec(
        "nohup python3 /root/server.py >/dev/null 2>&1 & until [ -e /dev/shm/ready ]; do sleep 0.1; done",
        check=True,
    )
    sandbox.exec(_ASK, check=True)
    yield sandbox
    sandbox.delete()
    patch.undo()


def _counted(sandbox: Sandbox) -> list[int]:
    return [int(line) for line in sandbox.filesystem.read_text("/root/count").split()]


def test_a_snapshot_is_the_whole_machine(busy: Sandbox) -> None:
    hits = int(busy.exec(_ASK).stdout.split()[0])
    snapshot = busy.snapshot(label="whole")
    assert snapshot.consistency == "filesystem"
    assert 0 < snapshot.pause_ms < 60_000
    at = len(_counted(busy))
    busy.exec("rm -rf /root/disk /dev/shm/tmpfs; sync")
    busy.exec(_ASK)
    with Sandbox.restore(snapshot.id) as there:
        assert there.info.boot_mode == "restore"
        assert there.exec("cat /root/disk /dev/shm/tmpfs").stdout == "on-disk\nin-tmpfs\n"
        assert there.exec(_ASK).stdout == f"{hits + 1} [1, 2, 3]\n", "its memory is of that instant"
        assert (
            "env-kept"
            in there.exec(
                "cat /proc/$(pgrep -f env-kept | head -1)/environ | tr '\\0' '\\n'; pgrep -af env-kept"
            ).stdout
        )
        time.sleep(0.3)
        counted = _counted(there)
        assert counted == list(range(1, len(counted) + 1)), "the counter missed no beat"
        assert there.exec("dmesg | grep -ci 'ext4.*error'").stdout.strip() == "0"
        assert clock_error_s(there) < 2
        deeper = there.snapshot()
        with Sandbox.restore(deeper.id) as below:
            (twin,) = below.fork(count=1)
            assert isinstance(twin, Sandbox)
            assert twin.exec(_ASK).stdout.startswith(f"{hits + 2} ")
            twin.delete()
    counted = _counted(busy)
    assert len(counted) > at
    assert counted == list(range(1, len(counted) + 1))
    assert busy.rollback(snapshot.id).id == busy.id
    assert busy.exec("cat /root/disk").stdout == "on-disk\n"


def test_forks_are_others_and_wake_is_the_same(busy: Sandbox) -> None:
    ask = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; head -c 16 /dev/urandom | od -An -tx1"
    mine = busy.exec(ask).stdout.splitlines()
    busy.exec(
        "mkdir -p /etc/torpor/on-restore.d; printf '#!/bin/sh\\necho \"$1 $TORPOR_GENERATION\" >> /root/hooks\\n' > /etc/torpor/on-restore.d/10-note; chmod +x /etc/torpor/on-restore.d/10-note"
    )
    forks = [f for f in busy.fork(count=3) if isinstance(f, Sandbox)]
    assert len(forks) == 3
    theirs = [f.exec(ask).stdout.splitlines() for f in forks]
    for line in range(4):
        assert len({t[line] for t in [mine, *theirs]}) == 4, f"line {line} is shared"
    assert {f.exec("cat /root/hooks").stdout for f in forks} == {"fork 1\n"}
    one = forks[0]
    before = one.exec("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname").stdout
    one.hibernate()
    one.wake()
    assert (
        one.exec("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname").stdout == before
    )
    assert one.exec("cat /root/hooks; cat /run/torpor/generation").stdout.startswith(
        "fork 1\nwake 2\n"
    )
    for fork in forks:
        fork.delete()


def test_two_clones_of_one_snapshot_draw_different_numbers(busy: Sandbox) -> None:
    snapshot = busy.snapshot()
    drawn = set()
    for _ in range(2):
        with Sandbox.restore(snapshot.id) as clone:
            drawn.add(
                clone.exec(
                    "python3 -c 'import os, uuid; print(os.urandom(16).hex(), uuid.uuid4())'"
                ).stdout
            )
    assert len(drawn) == 2
    Snapshot.delete(snapshot.id)


def test_asleep_it_costs_nothing_and_a_request_wakes_it(busy: Sandbox, vm_home: Home) -> None:
    process = busy.exec("for i in $(seq 1 200); do echo $i; sleep 0.05; done", background=True)
    snapshot = busy.hibernate()
    assert busy.refresh().state is S.HIBERNATED
    assert not [
        m for m in machines(vm_home) if busy.id in Path(f"/proc/{m.pid}/cmdline").read_text()
    ]
    end_daemon(vm_home)
    assert daemon_process(vm_home) is None
    assert busy.exec("cat /root/disk").stdout == "on-disk\n", (
        "woken by the request, through a new daemon"
    )
    assert busy.refresh().boot_mode == "resume"
    assert busy.attach(process.exec_id).wait().stdout == "".join(f"{i}\n" for i in range(1, 201))
    counted = _counted(busy)
    assert counted == list(range(1, len(counted) + 1))
    assert snapshot.id in {s.id for s in busy.snapshots()}


def test_clients_of_a_machine_that_is_rolled_back_are_told(busy: Sandbox) -> None:
    snapshot = busy.snapshot()
    process = busy.exec("echo begun; sleep 300", background=True)
    lines = process.stdout
    assert next(lines) == "begun\n"
    busy.rollback(snapshot.id)
    with pytest.raises((GenerationChanged, NotFound)):
        for _ in lines:
            pass
    with pytest.raises((GenerationChanged, NotFound)):
        process.wait()
    Snapshot.delete(snapshot.id)


def test_ten_cycles_of_write_hibernate_wake(base: str) -> None:
    with Sandbox.create(template=base) as sbx:
        sums = {}
        for cycle in range(10):
            sbx.exec(
                f"head -c 300000 /dev/urandom > /root/f{cycle}; head -c 100000 /dev/urandom > /dev/shm/t{cycle}",
                check=True,
            )
            for path in (f"/root/f{cycle}", f"/dev/shm/t{cycle}"):
                sums[path] = sbx.exec(["sha256sum", path]).stdout
            sbx.hibernate()
            sbx.wake()
            assert sbx.exec(["sha256sum", *sums]).stdout == "".join(sums.values()), f"cycle {cycle}"


def test_many_restores_in_a_row(base: str) -> None:
    """The channel must come up each time: 20, or as many as TORPOR_TEST_RESTORES says."""
    import os

    with Sandbox.create(template=base) as sbx:
        snapshot = sbx.snapshot()
        for _ in range(int(os.environ.get("TORPOR_TEST_RESTORES", "20"))):
            with Sandbox.restore(snapshot.id) as clone:
                assert clone.exec("echo up").stdout == "up\n"


def test_an_idle_sandbox_falls_asleep_but_never_under_a_command(base: str) -> None:
    with Sandbox.create(template=base, idle_seconds=2) as sbx:
        assert sbx.exec("sleep 6; echo done").stdout == "done\n"
        end = time.monotonic() + 60
        while sbx.refresh().state is not S.HIBERNATED:
            assert time.monotonic() < end
            time.sleep(0.2)


def test_copy_on_write(base: str, vm_home: Home) -> None:
    """Ten idle forks share their memory, and the tenth snapshot writes only what changed."""
    with Sandbox.create(template=base) as sbx:
        sizes = [sbx.snapshot().size_bytes for _ in range(10)]
        assert sizes[9] < 64 << 20, sizes
        before = machines(vm_home)
        forks = [f for f in sbx.fork(count=3) if isinstance(f, Sandbox)]
        for machine in set(machines(vm_home)) - set(before):
            rollup = Path(f"/proc/{machine.pid}/smaps_rollup").read_text()
            shared = sum(
                int(x.split()[1])
                for x in rollup.splitlines()
                if x.startswith(("Shared_Clean", "Shared_Dirty"))
            )
            assert shared > 40 << 10, "most of what it touched is the image's"
        for fork in forks:
            fork.delete()
        for snapshot in sbx.snapshots():
            Snapshot.delete(snapshot.id)


def test_a_restored_sandbox_has_the_environment_of_its_source_and_its_own(base: str) -> None:
    with Sandbox.create(template=base, env={"A": "1", "B": "2"}) as sbx:
        snapshot = sbx.snapshot()
        with Sandbox.restore(snapshot.id, env={"B": "3", "C": "4"}) as other:
            assert other.exec("echo $A $B $C").stdout == "1 3 4\n"
            assert other.info.env_names == ("A", "B", "C")
        with Sandbox.restore(snapshot.id) as other:
            assert other.exec("echo $A $B").stdout == "1 2\n"
            assert other.info.env_names == snapshot.info.env_names == ("A", "B")
        Snapshot.delete(snapshot.id)
