"""What holds a VMM that its guest took over, as root: it is there in all of a machine's life, and goes with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.kvm.traces import machines, traces
from torpor import Sandbox
from torpor.base.home import Home
from torpor.doctor import collect_now
from torpor.layers.seal import LAYERS_GID
from torpor.model import SandboxState

LOGS = {"vm", "vm/console.log", "vmm.log", "metrics.json"}
GROUPS = Path("/sys/fs/cgroup/torpor")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can build them")
def test_a_vmm_is_held_from_its_start_to_its_end(
    template: str, kvm_home: Home, driver: str
) -> None:
    before = traces(kvm_home)
    walls = {"control groups"} | ({"jailer"} if driver == "firecracker" else set())
    assert walls <= _standing(kvm_home)
    users = set()
    with Sandbox.create(template=template) as sbx:
        users.add(_held(sbx, kvm_home, driver))
        sbx.exec("echo ram > /dev/shm/kept; echo disk > /root/kept; sync", check=True)
        snapshot = sbx.snapshot()
        with Sandbox.restore(snapshot.id) as copy:
            users.add(_held(copy, kvm_home, driver))
            assert _kept(copy) == "ram\ndisk\n"
            assert len(list(GROUPS.glob("sbx_*"))) == 2
        sbx.exec("rm /dev/shm/kept /root/kept; sync", check=True)
        sbx.hibernate()
        assert not GROUPS.exists()
        folder = kvm_home.sandboxes / sbx.id
        left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        assert left <= LOGS, "asleep it has its logs and sums alone"
        sbx.wake()
        users.add(_held(sbx, kvm_home, driver))
        sbx.rollback(snapshot.id)
        users.add(_held(sbx, kvm_home, driver))
        assert _kept(sbx) == "ram\ndisk\n"
        assert len(users) == 2, "a user for each machine, and one for its life"
        (pid,) = machines(kvm_home)
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 60
        while sbx.refresh().state is not SandboxState.FAILED:
            assert time.monotonic() < end, sbx.info.state
            time.sleep(0.1)
        assert traces(kvm_home) == before
        left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        assert left <= LOGS
    assert traces(kvm_home) == before


def _held(sandbox: Sandbox, home: Home, driver: str) -> int:
    """Look at what holds the VMM of a sandbox; return its user."""
    folder = home.sandboxes / sandbox.id
    inner = folder / "vm"
    (pid,) = [pid for pid in machines(home) if Path(f"/proc/{pid}/cwd").samefile(inner)]
    process = Path(f"/proc/{pid}")
    status = _status(process)
    user = int(status["Uid"].split()[0])
    assert user > LAYERS_GID
    assert set(status["Uid"].split()) == {str(user)}
    assert inner.stat().st_uid == user
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    for thread in (process / "task").iterdir():
        found = _status(thread)
        assert (found["Seccomp"], found["NoNewPrivs"]) == ("2", "1")
    group = GROUPS.parent / (process / "cgroup").read_text().strip().removeprefix("0::/")
    assert group.parent == GROUPS
    assert group.name.startswith(sandbox.id)
    ram = sandbox.info.ram_mib << 20
    assert (group / "memory.max").read_text() == f"{ram + ram // 4 + (512 << 20)}\n"
    assert (group / "cpu.max").read_text() == f"{(sandbox.info.vcpus + 1) * 100_000} 100000\n"
    assert int((group / "pids.max").read_text()) < 200
    assert (group / "cgroup.procs").read_text() == f"{pid}\n"
    if driver == "firecracker":
        root = process / "root"
        assert root.samefile(inner)
        assert not root.samefile("/")
        mounted = [line.split()[4] for line in (process / "mountinfo").read_text().splitlines()]
        assert sorted(mounted) == ["/", "/dev", "/in", "/vmm.log"], "no other file is to be had"
        assert [path.suffix for path in (root / "in").iterdir()] == [".raw"]
        assert (root / "in").stat().st_uid == 0
    return user


def _status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _standing(home: Home) -> set[str]:
    """Return what `torpor doctor` says is well."""
    checks = collect_now(home)["checks"]
    assert isinstance(checks, list)
    return {str(check["name"]) for check in checks if check["status"] == "ok"}


def _kept(sandbox: Sandbox) -> str:
    return str(sandbox.exec("cat /dev/shm/kept /root/kept").stdout)
