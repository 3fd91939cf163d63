"""kill -9 of the daemon and of the machine's process: what ran runs on, or is told, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.kvm.conftest import new_daemon
from tests.kvm.traces import machines
from tests.machines import daemon_process, end_daemon
from torpor import Sandbox
from torpor.base.home import Home
from torpor.model import SandboxState


def test_a_machine_outlives_its_daemon(fresh: Sandbox, kvm_home: Home) -> None:
    process = fresh.exec("for i in $(seq 1 60); do echo $i; sleep 0.1; done", background=True)
    before = set(machines(kvm_home))
    end_daemon(kvm_home)
    assert daemon_process(kvm_home) is None
    assert set(machines(kvm_home)) == before
    new_daemon(kvm_home)  # which adopts the machine
    result = process.wait()
    assert result.exit_code == 0
    assert result.stdout == "".join(f"{i}\n" for i in range(1, 61))
    assert set(machines(kvm_home)) == before
    snapshot = fresh.snapshot()
    with Sandbox.restore(snapshot.id) as there:
        assert there.exec("echo up").stdout == "up\n", "an adopted machine can be captured"


def _until(sandbox: Sandbox, state: SandboxState) -> None:
    end = time.monotonic() + 60
    while sandbox.refresh().state is not state:
        assert time.monotonic() < end, (sandbox.info.state, sandbox.info.error)
        time.sleep(0.1)


def test_a_machine_that_ends_is_told_and_its_last_point_is_there(
    fresh: Sandbox, kvm_home: Home
) -> None:
    fresh.exec("echo kept > /root/kept; echo kept > /dev/shm/kept", check=True)
    snapshot = fresh.snapshot()
    fresh.exec("poweroff -f", background=True)
    _until(fresh, SandboxState.STOPPED)
    assert fresh.info.error is None
    fresh.rollback(snapshot.id)
    assert fresh.exec("sleep 3; echo runs on").stdout == "runs on\n", "whatever the last one said"
    assert b"reboot: " in b"".join(fresh.logs()), "which is still to be read"
    for pid in machines(kvm_home):
        os.kill(pid, signal.SIGKILL)
    _until(fresh, SandboxState.FAILED)
    assert "ended unexpectedly" in str(fresh.info.error)
    fresh.rollback(snapshot.id)
    assert fresh.exec("cat /root/kept /dev/shm/kept").stdout == "kept\nkept\n"
    assert len(machines(kvm_home)) == 1


def test_a_daemon_and_a_vmm_that_die_together_leave_a_sandbox_that_can_be_deleted(
    template: str, kvm_home: Home
) -> None:
    sbx = Sandbox.create(template=template)
    end_daemon(kvm_home)
    for pid in machines(kvm_home):
        os.kill(pid, signal.SIGKILL)
    new_daemon(kvm_home)
    assert sbx.refresh().state is SandboxState.FAILED
    sbx.delete()
    assert not Path(kvm_home.sandboxes / sbx.id).exists()
    assert not machines(kvm_home)
