"""Volumes on real machines: the data outlives them, and no snapshot, fork or crash gets it wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.conftest import machines
from torpor import Sandbox, Snapshot, Volume
from torpor.base.home import Home
from torpor.errors import Busy, Conflict, InvalidRequest, NotFound, TorporError, VolumeHeld
from torpor.model import SandboxState

S = SandboxState


@pytest.fixture
def volume(base: str, request: pytest.FixtureRequest) -> Iterator[Volume]:
    """A volume of a test's own; whatever the test left of it is deleted."""
    name = f"v-{abs(hash(request.node.name)) % 10**10}"
    made = Volume.create(name, size_gib=getattr(request, "param", 1))
    yield made
    for sandbox in list(Sandbox.list(page_size=1000)):
        if sandbox.info.metadata.get("test") == made.name:
            sandbox.delete()
    for snapshot in Snapshot.list():
        if made.name in snapshot.info.volumes.values():
            snapshot.delete()
    with contextlib.suppress(NotFound):
        made.delete(snapshots=True)
    assert not [v.name for v in Volume.list() if v.name.startswith(made.name)]


def holder(volume: Volume, path: str = "/data", *, read_only: bool = False) -> Sandbox:
    return Sandbox.create(
        volumes={path: {"volume": volume.name, "read_only": read_only}},
        metadata={"test": volume.name},
    )


def sh(sandbox: Sandbox, command: str) -> str:
    return sandbox.exec(command, check=True, timeout_seconds=120).stdout


def test_what_is_in_a_volume_outlives_its_sandboxes(volume: Volume) -> None:
    with holder(volume) as one:
        sh(one, "mkdir /data/d; echo kept > /data/d/file; ln -s d/file /data/link; sync")
        assert "nosuid,nodev" in sh(one, "grep ' /data ' /proc/mounts")
        one.detach_volume("/data")
        with holder(volume, "/elsewhere") as two:
            assert sh(two, "cat /elsewhere/link") == "kept\n"
            # what it has not written is, when it is deleted; a program that uses the volume is not in the way
            sh(two, "echo more > /elsewhere/more")
            two.exec(["sleep", "600"], cwd="/elsewhere", background=True)
    with holder(volume, read_only=True) as three:
        assert sh(three, "cat /data/d/file /data/more") == "kept\nmore\n"
        assert sh(three, "dmesg | grep -c 'sda.*error' || true").strip() == "0"
        used = Volume.get(volume.name).info.used_bytes
        assert used is not None
        assert 0 < used < 100 << 20


def test_a_second_writer_is_refused_and_readers_share(volume: Volume) -> None:
    with holder(volume) as one:
        sh(one, "echo shared > /data/file")
        with pytest.raises(VolumeHeld, match=one.id):
            holder(volume)
        one.detach_volume("/data")
        with holder(volume, read_only=True) as two:
            one.attach_volume(volume.name, "/data", read_only=True)
            for reader in (one, two):
                assert sh(reader, "cat /data/file; cat /sys/block/sda/ro") == "shared\n1\n"
                assert reader.exec("echo x > /data/file").exit_code != 0
                # the block layer itself refuses, not the mount alone
                forced = reader.exec(
                    "blockdev --setrw /dev/sda; mount -o remount,rw /data; "
                    "dd if=/dev/zero of=/dev/sda bs=4096 count=1 oflag=direct"
                )
                assert forced.exit_code != 0
            with pytest.raises(VolumeHeld, match="reads it"):
                Sandbox.create(volumes={"/data": volume.name})
            assert len(Volume.get(volume.name).info.holders) == 2
    assert Volume.get(volume.name).info.holders == ()


def test_attach_and_detach_while_it_runs(volume: Volume, fresh: Sandbox) -> None:
    sandbox = fresh
    for turn in range(3):
        sandbox.attach_volume(volume.name, "/mnt/data")
        sh(sandbox, f"echo {turn} >> /mnt/data/turns")
        sandbox.detach_volume("/mnt/data")
    assert sh(sandbox, "ls /sys/block; ls /mnt/data").split() == ["vda"]
    sandbox.attach_volume(volume.name, "/mnt/data")
    assert sh(sandbox, "cat /mnt/data/turns").split() == ["0", "1", "2"]
    busy = sandbox.exec(["sleep", "600"], cwd="/mnt/data", background=True)
    with pytest.raises(Busy, match="sleep") as caught:
        sandbox.detach_volume("/mnt/data")
    assert "sleep" in str(caught.value.facts["holders"])
    assert sh(sandbox, "cat /mnt/data/turns").split() == ["0", "1", "2"], "it stayed"
    busy.kill()
    sandbox.detach_volume(volume.name)
    with pytest.raises(NotFound):
        sandbox.detach_volume("/mnt/data")
    with pytest.raises(InvalidRequest):
        sandbox.attach_volume(volume.name, "/proc/x")
    assert Volume.get(volume.name).info.holders == ()


def test_a_snapshot_with_its_volume_is_one_instant(volume: Volume) -> None:
    with holder(volume) as one:
        sh(
            one,
            "nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i >> /data/count; echo $i >> /root/count; done' "
            ">/dev/null 2>&1 & sleep 1; echo then > /data/file",
        )
        snapshot = one.snapshot()
        assert dict(snapshot.info.volumes) == {"/data": volume.name}
        sh(one, "echo later > /data/file; sync")
        with Sandbox.restore(snapshot.id, metadata={"test": volume.name}) as there:
            (clone,) = there.volumes()
            assert (clone.info.parent, clone.info.bound_to) == (volume.info.id, there.id)
            assert sh(there, "cat /data/file") == "then\n"
            counts = [
                [int(line) for line in sh(there, f"cat {place}/count").split()]
                for place in ("/data", "/root")
            ]
            for count in counts:
                assert count == list(range(1, len(count) + 1)), "it goes on without a gap"
            assert abs(len(counts[0]) - len(counts[1])) <= len(counts[1]) // 2 + 50
            sh(there, "echo theirs > /data/file; pkill -f '[i]=0' || true")
            there.detach_volume("/data")
        assert Volume.get(clone.name).info.bound_to is None, "who detaches it keeps it"
        clone.delete()
        assert sh(one, "cat /data/file") == "later\n"
        one.rollback(snapshot.id)
        assert sh(one, "cat /data/file") == "then\n"
        (kept,) = volume.snapshots()
        assert kept.reason == "rollback"
        old = volume.clone(f"{volume.name}-old", snapshot=kept.id)
        with holder(old) as reader:
            assert sh(reader, "cat /data/file") == "later\n", "nothing is lost"
        old.delete()


def test_forks_never_share_a_volume(volume: Volume) -> None:
    with holder(volume) as one:
        sh(one, "echo common > /data/file; sync")
        forks = [
            f for f in one.fork(count=2, metadata={"test": volume.name}) if isinstance(f, Sandbox)
        ]
        assert len(forks) == 2
        for number, fork in enumerate(forks):
            sh(fork, f"cat /data/file; echo fork {number} > /data/file; sync")
        sh(one, "echo source > /data/file; sync")
        assert [sh(f, "cat /data/file") for f in (one, *forks)] == [
            "source\n",
            "fork 0\n",
            "fork 1\n",
        ]
        second = forks[0].snapshot()
        deeper = Sandbox.restore(second.id, metadata={"test": volume.name})
        assert sh(deeper, "cat /data/file; echo deep > /data/deep; sync") == "fork 0\n"
        grown = deeper.volumes()[0]
        grown.grow(2)  # by the serial that its RAM has known since its first ancestor
        assert int(sh(deeper, "df --output=size -B1M /data | tail -1")) > 1500
        for sandbox in (*forks, deeper):
            sandbox.delete()
        second.delete()
        assert [v.name for v in Volume.list() if v.name.startswith(volume.name)] == [volume.name]


def test_asleep_the_volume_is_held_and_waking_finds_it(volume: Volume, vm_home: Home) -> None:
    with holder(volume) as one:
        sh(one, "echo before > /data/file; exec 3</data/file; cat <&3 >/dev/null")
        open_file = one.exec(["tail", "-f", "/data/file"], background=True)
        one.hibernate()
        assert not [
            m
            for m in machines(vm_home)
            if Path(f"/proc/{m.pid}/cwd").resolve().match(f"*{one.id}*")
        ]
        with pytest.raises(VolumeHeld, match=one.id):
            holder(volume)
        with pytest.raises(VolumeHeld):
            volume.delete()
        volume.snapshot(label="asleep")
        assert sh(one, "echo after >> /data/file; cat /data/file") == "before\nafter\n"
        assert open_file.info().state == "running"
        copy = volume.clone(f"{volume.name}-copy", snapshot="asleep")
        with holder(copy) as reader:
            assert sh(reader, "cat /data/file") == "before\n"
        copy.delete()
        open_file.kill()


def test_keep_current_and_detach(volume: Volume) -> None:
    with holder(volume) as one:
        sh(one, "echo 1 > /data/file; echo 1 > /root/file")
        user = one.exec(["sleep", "600"], cwd="/data", background=True)
        for mode in ("keep-current", "detach"):
            with pytest.raises(Busy, match="sleep"):
                one.snapshot(volumes=mode)  # type: ignore[arg-type]
        assert one.snapshots() == []
        user.kill()
        kept = one.snapshot(volumes="keep-current")
        without = one.snapshot(volumes="detach")
        sh(one, "echo 2 > /data/file; echo 2 > /root/file; sync")
        one.rollback(kept.id)
        assert sh(one, "cat /root/file /data/file") == "1\n2\n"
        assert volume.snapshots() == []
        with pytest.raises(InvalidRequest, match="no point"):
            one.rollback(kept.id, volumes="include")
        one.rollback(without.id)
        assert sh(one, "cat /root/file; ls /data") == "1\n"
        assert Volume.get(volume.name).info.holders == ()
        one.attach_volume(volume.name, "/data")
        included = one.snapshot()
        sh(one, "echo 3 > /data/file; sync")
        one.rollback(included.id, volumes="keep-current")
        assert sh(one, "cat /data/file") == "3\n", "as it is now"
        with Sandbox.restore(included.id, volumes="detach") as bare:
            assert sh(bare, "ls /data; ls /sys/block").split() == ["vda"]


def test_grow_and_clone_and_snapshot_while_it_is_written(volume: Volume) -> None:
    with holder(volume) as one:
        writer = one.exec(
            "i=0; while :; do i=$((i+1)); echo $i >> /data/count; sync; done", background=True
        )
        volume.snapshot(label="running")
        volume.grow(2)
        copy = volume.clone(f"{volume.name}-copy")
        with pytest.raises(InvalidRequest):
            volume.grow(1)
        assert int(sh(one, "df --output=size -B1M /data | tail -1")) > 1500
        writer.kill()
        with holder(copy, read_only=True) as reader:
            found = [int(line) for line in sh(reader, "cat /data/count").split()]
            assert found == list(range(1, len(found) + 1))
        copy.grow(3)
        with holder(copy) as later:
            assert int(sh(later, "df --output=size -B1M /data | tail -1")) > 2500
        copy.delete()
        assert [s.label for s in volume.snapshots()] == ["running"]


@pytest.mark.parametrize("volume", [1 / 16], indirect=True)
def test_a_full_volume_loses_nothing_and_growing_mends_it(volume: Volume) -> None:
    with holder(volume) as one:
        sh(one, "echo kept > /data/kept; dd if=/dev/urandom of=/tmp/mib bs=1M count=1; sync")
        free = "$(df --output=avail -B1 /data | tail -1)"
        sh(one, f"fallocate -l $(({free} - (4 << 20))) /data/ballast")
        full = one.exec("while cat /tmp/mib >> /data/fill; do :; done", timeout_seconds=120)
        assert "No space left on device" in full.stderr
        # a few blocks that were reserved for what was written may be free again
        assert one.exec("cat /tmp/mib > /data/more").exit_code != 0
        sums = sh(one, "rm -f /data/more; sync; cat /data/kept; sha256sum /data/fill")
        assert sums.startswith("kept\n")
        look = "cat /data/kept; sha256sum /data/fill"
        snapshot = one.snapshot()
        point = volume.snapshot(label="full")
        one.hibernate()
        assert sh(one, look) == sums, "it slept full and woke full"
        volume.grow(1)
        sh(one, "for i in 1 2 3 4; do cat /tmp/mib >> /data/more; done; sync")
        assert sh(one, look) == sums
        assert int(sh(one, "df --output=size -B1M /data | tail -1")) > 900
        with Sandbox.restore(snapshot.id, metadata={"test": volume.name}) as there:
            assert sh(there, look) == sums
            assert there.exec("cat /tmp/mib >> /data/fill").exit_code != 0, "as full as it was"
        old = volume.clone(f"{volume.name}-old", snapshot=point.id)
        old.grow(1)
        with holder(old) as reader:
            assert sh(reader, f"{look}; cp /data/fill /data/copy; sync") == sums
        one.rollback(snapshot.id)
        assert sh(one, look) == sums
        assert one.exec("cat /tmp/mib >> /data/fill").exit_code != 0
        old.delete()


def test_a_killed_machines_volume_is_attached_elsewhere_with_its_journal(
    volume: Volume, vm_home: Home
) -> None:
    with holder(volume) as one, Sandbox.create(metadata={"test": volume.name}) as two:
        sh(one, "for i in $(seq 200); do echo $i > /data/$i; done; sync; echo last > /data/last")
        (process,) = [
            m for m in machines(vm_home) if one.id in str(Path(f"/proc/{m.pid}/cwd").readlink())
        ]
        asyncio.run(process.kill(within_s=30))
        two.attach_volume(volume.name, "/data")
        assert sh(two, "ls /data | grep -c '^[0-9]'").strip() == "200"
        assert "recovery complete" in sh(two, "dmesg | grep -i ext4")
        two.detach_volume("/data")
        two.attach_volume(volume.name, "/data", read_only=True)
        assert one.refresh().state is S.FAILED
        with pytest.raises(TorporError):
            one.attach_volume(volume.name, "/data")


def test_what_is_no_file_system_is_never_formatted(volume: Volume, fresh: Sandbox) -> None:
    fresh.attach_volume(volume.name, "/data")
    sh(
        fresh,
        "echo kept > /data/file; umount /data; dd if=/dev/zero of=/dev/sda bs=1k seek=1 count=1 conv=fsync",
    )
    fresh.detach_volume("/data")
    with pytest.raises(TorporError, match="cannot be mounted") as caught:
        fresh.attach_volume(volume.name, "/data")
    assert "--repair" in str(caught.value.hint)
    assert Volume.get(volume.name).info.holders == ()
    fresh.attach_volume(volume.name, "/data", repair=True)
    assert sh(fresh, "cat /data/file || cat /data/lost+found/*") == "kept\n"
    fresh.detach_volume("/data")


def test_files_go_in_and_out_without_a_sandbox(volume: Volume, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"\0\1" * 100_000)
    before = {s.id for s in Sandbox.list()}
    volume.copy_in(folder, "/")
    assert volume.copy_out("/in", tmp_path / "out").files >= 1
    assert (tmp_path / "out" / "deep" / "file").read_bytes() == b"\0\1" * 100_000
    volume.copy_in(folder / "deep" / "file", "/one")
    volume.copy_out("/one", tmp_path)
    assert (tmp_path / "one").read_bytes() == b"\0\1" * 100_000
    assert {s.id for s in Sandbox.list()} == before
    with holder(volume) as one:
        assert sh(one, "cat /data/one | wc -c").strip() == "200000"
        sh(one, "echo live > /data/live")
        volume.copy_out("/live", tmp_path / "live")
        assert (tmp_path / "live").read_text() == "live\n"
    with pytest.raises(InvalidRequest):
        volume.copy_out("/../etc/passwd", tmp_path)


def test_deleting_is_refused_while_it_is_needed(volume: Volume) -> None:
    with holder(volume) as one:
        with pytest.raises(VolumeHeld):
            volume.delete()
        snapshot = one.snapshot()
    with pytest.raises(Conflict, match=snapshot.id):
        volume.delete()
    with Sandbox.restore(snapshot.id, metadata={"test": volume.name}) as again:
        assert "lost+found" in sh(again, "ls /data")
    snapshot.delete()
    assert volume.delete() > 0
