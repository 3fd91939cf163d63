"""A machine's life and death: it outlives the daemon, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.machines import clock_error_s
from tests.vm.conftest import daemon_process, end_daemon, machines
from torpor import Sandbox
from torpor.base.home import Home
from torpor.errors import CommandLost, GuestUnreachable, InsufficientResources, NotFound, WrongState
from torpor.model import SandboxState

S = SandboxState


def _until(sandbox: Sandbox, state: SandboxState, *, within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while sandbox.refresh().state is not state:
        assert time.monotonic() < end, f"{sandbox.info.state}: {sandbox.info.error}"
        time.sleep(0.1)


def test_pause_resume_and_logs(fresh: Sandbox) -> None:
    fresh.exec("sh -c 'while :; do date +%s.%N > /tmp/tick; sleep 0.1; done' >/dev/null 2>&1 &")
    fresh.pause()
    with pytest.raises(WrongState, match="is paused"):
        fresh.exec("true")
    time.sleep(3)
    fresh.resume()
    assert clock_error_s(fresh) < 2
    one = fresh.exec("cat /tmp/tick").stdout
    assert one != fresh.exec("sleep 1; cat /tmp/tick").stdout, "what ran, runs on"
    fresh.exec("echo from within > /dev/ttyS0")
    assert b"from within" in b"".join(fresh.logs())


def test_a_machine_outlives_the_daemon_and_its_commands_go_on(
    fresh: Sandbox, vm_home: Home
) -> None:
    process = fresh.exec(
        "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i; sleep 0.1; done", background=True
    )
    before = machines(vm_home)
    end_daemon(vm_home)
    assert machines(vm_home) == before
    result = process.wait()  # the SDK starts a daemon, which adopts the machine
    assert result.exit_code == 0
    assert result.stdout == "".join(f"{i}\n" for i in range(1, 41))
    assert machines(vm_home) == before
    assert fresh.refresh().state is S.RUNNING


def test_a_vmm_that_dies_is_failed_with_its_last_words(fresh: Sandbox, vm_home: Home) -> None:
    (machine,) = [m for m in machines(vm_home) if fresh.id in _command_line(m.pid)]
    os.kill(machine.pid, signal.SIGKILL)
    _until(fresh, S.FAILED)
    assert "ended unexpectedly" in str(fresh.info.error)
    fresh.delete()
    assert not (vm_home.sandboxes / fresh.id).exists()


def test_a_machine_that_powers_itself_off_is_stopped(fresh: Sandbox) -> None:
    fresh.exec("systemctl poweroff")
    _until(fresh, S.STOPPED, within_s=120)
    assert fresh.info.error is None


def test_the_agents_death_is_never_an_invented_end(fresh: Sandbox) -> None:
    process = fresh.exec("echo begun; sleep 600", background=True)
    next(iter(process.stdout))
    fresh.exec("pkill -9 -f 'm [t]orpor_guest'", background=True)
    with pytest.raises((CommandLost, GuestUnreachable)):
        process.wait()
    end = time.monotonic() + 60
    while True:  # systemd starts it again
        try:
            assert fresh.exec("echo back").stdout == "back\n"
            break
        except GuestUnreachable:
            assert time.monotonic() < end
    (lost,) = [e for e in fresh.execs() if e.exec_id == process.exec_id]
    assert (lost.state, lost.exit_code) == ("lost", None)
    assert not [p for p in fresh.processes() if "sleep 600" in p.command], "nothing unknown runs on"


def test_a_lease_that_runs_out_deletes(base: str, vm_home: Home) -> None:
    sandbox = Sandbox.create(template=base, ttl_seconds=1)
    _until(sandbox, S.DELETED)
    assert not (vm_home.sandboxes / sandbox.id).exists()


def test_what_the_host_has_no_room_for_is_refused_with_the_numbers(
    base: str, vm_home: Home
) -> None:
    before = sorted(p.name for p in vm_home.sandboxes.iterdir())
    with pytest.raises(InsufficientResources, match="MiB are left"):
        Sandbox.create(template=base, ram_mib=1 << 19)
    with pytest.raises(InsufficientResources, match="no disk"):
        Sandbox.create(template=base, disk_gib=16000)
    with pytest.raises(NotFound, match="nope"):
        Sandbox.create(template="nope")
    assert sorted(p.name for p in vm_home.sandboxes.iterdir()) == before


def test_other_sizes_boot_cold_and_it_is_said(base: str) -> None:
    with Sandbox.create(template=base, ram_mib=700, disk_gib=10, vcpus=2) as sbx:
        assert sbx.info.boot_mode == "cold"
        assert sbx.exec("nproc").stdout == "2\n"
        kib = int(sbx.exec("df -k --output=size / | tail -1").stdout)
        assert kib > 9 << 20, "the file system has the disk's size"


def test_without_a_network(base: str) -> None:
    with Sandbox.create(template=base, network="none") as sbx:
        assert sbx.info.boot_mode == "restore"
        probe = "import socket; socket.create_connection(('10.0.2.2', 1), 3)"
        refused = sbx.exec(["python3", "-c", probe])
        assert refused.exit_code != 0
        assert "Error" in refused.stderr


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_one_daemon(vm_home: Home, shared: Sandbox) -> None:
    assert daemon_process(vm_home) is not None
