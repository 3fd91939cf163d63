"""Volumes under KVM: one writes or many read, and no snapshot, fork or sleep gets their content wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kvm.traces import machines
from torpor import Sandbox, Snapshot, Volume
from torpor.base.home import Home
from torpor.errors import Busy, NotFound, VolumeHeld

MIB_64 = 1 / 16


@pytest.fixture
def volume(daemon: Home) -> Iterator[Volume]:
    """A small volume, deleted with whatever came of it."""
    made = Volume.create("v", size_gib=MIB_64)
    yield made
    for snapshot in Snapshot.list():
        if made.name in snapshot.info.volumes.values():
            snapshot.delete()
    for left in [v.name for v in Volume.list() if v.name.startswith("v")]:
        with contextlib.suppress(NotFound):
            Volume.get(left).delete(snapshots=True)
    assert not Volume.list()


def sh(sandbox: Sandbox, command: str) -> str:
    return sandbox.exec(command, check=True, timeout_seconds=120).stdout


def opened(home: Home) -> list[str]:
    """Return the names of the disks that the machines have open."""
    found = []
    for pid in machines(home):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                target = fd.readlink()
                # in a jail it has another name
                if target.parent.name in ("layers", "in") and target.suffix in (".raw", ".qcow2"):
                    found.append(target.stem)
    return sorted(found)


def test_one_writes_or_many_read(volume: Volume, fresh: Sandbox, kvm_home: Home) -> None:
    before = opened(kvm_home)
    for turn in range(2):
        fresh.attach_volume(volume.name, "/data")
        sh(fresh, f"echo {turn} >> /data/turns; echo kept > /data/file")
        fresh.detach_volume("/data")
        assert opened(kvm_home) == before, "nothing of it is open"
    fresh.attach_volume(volume.name, "/data", read_only=True)
    assert sh(fresh, "cat /data/turns /data/file") == "0\n1\nkept\n"
    device = sh(fresh, "grep ' /data ' /proc/mounts").split()[0]
    forced = fresh.exec(
        f"blockdev --setrw {device}; mount -o remount,rw /data; echo x > /data/file;"
        f" dd if=/dev/zero of={device} bs=4096 count=1 oflag=direct"
    )
    assert forced.exit_code != 0, "the block layer itself refuses"
    with pytest.raises(VolumeHeld, match=fresh.id):
        volume.delete()
    fresh.detach_volume("/data")
    other = Volume.create("v2", size_gib=2 * MIB_64)
    fresh.attach_volume(other.name, "/data")  # where one of another size was
    fresh.attach_volume(volume.name, "/more")
    assert sh(fresh, "ls /data; cat /more/turns").split() == ["lost+found", "0", "1"]
    busy = fresh.exec(["sleep", "600"], cwd="/data", background=True)
    with pytest.raises(Busy, match="sleep"):
        fresh.detach_volume("/data")
    busy.kill()
    volume.grow(3 * MIB_64)
    sizes = sh(fresh, "df --output=size -B1M /data /more | tail -2").split()
    assert 90 < int(sizes[0]) < 130 < int(sizes[1]) < 200
    fresh.detach_volume("/data")
    fresh.detach_volume("/more")
    assert opened(kvm_home) == before
    assert (
        sh(fresh, "dmesg | grep -ci 'ext4-fs error\\|i/o error.*vd[b-g]\\|i/o error.*sd' || true")
        == "0\n"
    )


def test_memory_and_volume_are_of_one_instant(volume: Volume, template: str) -> None:
    with Sandbox.create(template=template, volumes={"/data": volume.name}) as one:
        sh(one, "echo then > /data/file; echo then > /dev/shm/file")
        snapshot = one.snapshot()
        sh(one, "echo later > /data/file; echo later > /dev/shm/file; sync")
        point = volume.snapshot(label="later")
        with Sandbox.restore(snapshot.id) as there:
            assert sh(there, "cat /data/file /dev/shm/file") == "then\nthen\n"
            (clone,) = there.volumes()
            assert clone.info.parent == volume.info.id
            sh(there, "echo theirs > /data/file; sync")
        assert sh(one, "cat /data/file") == "later\n"
        one.hibernate()
        assert sh(one, "cat /data/file; echo awake >> /data/file; sync") == "later\n"
        one.rollback(snapshot.id)
        assert sh(one, "cat /data/file /dev/shm/file; echo back > /data/back") == "then\nthen\n"
        kept = next(s for s in volume.snapshots() if s.reason == "rollback")
        for found, text in ((kept.id, "later\nawake\n"), (point.id, "later\n")):
            old = volume.clone(f"v-{found[-6:]}", snapshot=found)
            one.attach_volume(old.name, "/old")
            assert sh(one, "cat /old/file") == text, "nothing is lost"
            one.detach_volume("/old")
        one.rollback(snapshot.id, volumes="detach")
        assert sh(one, "cat /dev/shm/file; ls /data") == "then\n"
