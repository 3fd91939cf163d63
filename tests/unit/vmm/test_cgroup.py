"""A machine's control group: where there can be one, what is in it, and that it goes with all that runs in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torpor.base import proc
from torpor.vmm import cgroup
from torpor.vmm.base import Disk, MachineSpec


def _spec(vcpus: int = 2, ram_mib: int = 512) -> MachineSpec:
    there = Path("/nowhere")
    return MachineSpec(
        vcpus=vcpus,
        ram_mib=ram_mib,
        network="none",
        kernel=there,
        initrd=there,
        cmdline="",
        disk=Disk((), there),
    )


def test_a_machine_has_its_memory_and_what_its_vmm_needs() -> None:
    small, large = cgroup.limits(_spec(1, 256)), cgroup.limits(_spec(4, 8192))
    assert small["memory.max"] == str((256 + 64 + 512) << 20)
    assert large["memory.max"] == str((8192 + 2048 + 512) << 20)
    assert large["cpu.max"] == "500000 100000", "its four, and one for the VMM"
    assert int(small["pids.max"]) > 64 + 1, "QEMU has up to 64 threads for I/O"


def _mounted(tmp_path: Path, has: str, gives: str, *, inside: str, is_container: bool) -> Path:
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text(has)
    (root / "cgroup.subtree_control").write_text(gives)
    (root / "cgroup.procs").write_text(inside)
    if is_container:
        (root / "cgroup.type").write_text("domain\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"proc /proc proc rw 0 0\ncgroup2 {root} cgroup2 rw,nosuid 0 0\n")
    return mounts


_ALL = "cpuset cpu io memory pids\n"


@pytest.mark.parametrize(
    ("has", "gives", "inside", "is_container", "words"),
    [
        (_ALL, "", "1\n2\n", False, None),
        (_ALL, "", "", True, None),
        (_ALL, "cpu memory pids", "1\n", True, None),
        (_ALL, "cpu", "1\n", True, "container's own group with processes"),
        ("", "", "", False, "has no cpu, memory, pids"),
        ("cpu pids", "", "", False, "has no memory"),
    ],
)
def test_where_machines_have_no_limits_the_reason_and_the_fix_are_told(
    tmp_path: Path, has: str, gives: str, inside: str, is_container: bool, words: str | None
) -> None:
    mounts = _mounted(tmp_path, has, gives, inside=inside, is_container=is_container)
    found = cgroup.wall(mounts, is_root=True)
    assert found.stands is (words is None)
    assert (found.fix is None) is found.stands
    assert (words or "below") in found.why


def test_without_root_or_without_cgroup_v2_there_are_none(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")
    assert "no cgroup v2" in cgroup.wall(mounts, is_root=True).why
    found = cgroup.wall(mounts, is_root=False)
    assert (found.stands, found.fix) == (False, "run the daemon as root")


@pytest.fixture
def group_root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real cgroup v2, here perhaps without any controller, and a parent of this test's own in it."""
    root = cgroup._mounted(Path("/proc/self/mounts"))
    if root is None or os.geteuid() != 0 or not os.access(root, os.W_OK):
        pytest.skip("there is no cgroup v2 that can be written")
    monkeypatch.setattr(cgroup, "PARENT", f"torpor-test-{os.getpid()}")
    monkeypatch.setattr(cgroup, "_WANTED", ())
    monkeypatch.setattr(cgroup, "limits", lambda _: {})
    return root


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_group_goes_with_all_that_runs_in_it(
    tmp_path: Path, group_root: Path, anyio_backend: str
) -> None:
    one, other = tmp_path / "a/vm", tmp_path / "b/vm"
    group, second = cgroup.make(one, _spec()), cgroup.make(other, _spec())
    assert group is not None
    assert second is not None
    assert group.path != second.path, "folders of one name are machines of their own"
    with (tmp_path / "log").open("wb") as log:
        process = proc.start_detached(["sh", "-c", "sleep 100; :"], log=log)
    group.take(process.pid)
    assert (group.path / "cgroup.procs").read_text().split()[0] == str(process.pid)
    cgroup.remove(one)
    await process.wait()
    assert not group.path.exists()
    assert second.path.exists()
    cgroup.remove(other)
    cgroup.remove(other)
    assert not group.path.parent.exists(), "nothing is left when the last is gone"
    assert cgroup.killed_for_memory(one) == ""


def test_a_group_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, group_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "limits", lambda _: {"memory.max": "none of ours"})
    with pytest.raises(cgroup.VmmFailed, match="cannot be made") as caught:
        cgroup.make(tmp_path / "vm", _spec())
    assert "doctor" in str(caught.value.hint)
    assert not (group_root / cgroup.PARENT).exists()
