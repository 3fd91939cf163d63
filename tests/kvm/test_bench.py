"""The floor of `torpor bench`: a machine of this driver's, restored by hand from the same files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.kvm.traces import traces
from torpor import Sandbox
from torpor.base.home import Home
from torpor.bench.floor import run
from torpor.bench.rig import FLOORS


def test_a_snapshot_is_restored_by_hand_too(shared: Sandbox, kvm_home: Home, driver: str) -> None:
    shared.exec("echo disk > /root/kept; echo ram > /dev/shm/kept; sync", check=True)
    snapshot = shared.snapshot()
    Sandbox.restore(snapshot.id).delete()  # makes the RAM image
    before = traces(kvm_home)
    with tempfile.TemporaryDirectory(dir=kvm_home.tmp) as folder:
        floor = FLOORS[driver](kvm_home, Path(folder))
        with floor.restored(snapshot.id) as machine, machine.renewed() as agent:
            program = Path(f"/proc/{machine.process.pid}/exe").resolve().name
            assert program.startswith("qemu-system" if driver == "qemu" else "firecracker")
            assert run(agent, "grep -qx disk /root/kept && grep -qx ram /dev/shm/kept") == 0
            assert run(agent, "echo other > /root/kept; sync") == 0
            assert 0 < machine.times.start_s < machine.times.running_s
        assert not list(Path(folder).iterdir())
    assert traces(kvm_home) == before
    assert shared.exec("cat /root/kept").stdout == "disk\n"
