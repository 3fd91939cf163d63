"""A real machine on a disk that is filled to the last byte: what is asked fails in words, and the machine goes on."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.smalldisk import SmallDisk, small_disk
from tests.machines import copy_template
from tests.vm.conftest import end_daemon, machines
from torpor import Sandbox, Snapshot
from torpor.base.home import Home
from torpor.databases.server import run
from torpor.errors import InsufficientResources, TorporError
from torpor.model import SandboxSpec, SandboxState
from torpor.model_changes import ChangeState
from torpor.model_volumes import VolumeMount
from torpor.sandboxes import capture
from torpor.sandboxes.engine import open_engine
from torpor.sandboxes.volume_engine import EngineVolumes

SIZE_MIB = 12 << 10
"""Sparse: what is not written takes nothing of the real disk. A sandbox's disk must fit beside the reserve."""


@pytest.fixture
def small(
    base: str, vm_home: Home, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SmallDisk, Home]]:
    """A home on a small disk, with the session's template and its snapshot."""
    with (
        tempfile.TemporaryDirectory() as name,  # pytest's own folders are closed to the machines' users
        small_disk("ext4", SIZE_MIB, Path(name)) as disk,
    ):
        for folder in (Path(name), disk.root):
            folder.chmod(0o711)
        home = Home(disk.root / "home")
        home.prepare()
        copy_template(vm_home, home)
        monkeypatch.setenv("TORPOR_HOME", str(home.root))
        try:
            yield disk, home
        finally:
            disk.free()
            with contextlib.suppress(Exception):
                for sandbox in Sandbox.list():
                    sandbox.delete()
            end_daemon(home)
            assert machines(home) == []


def _until(what: Callable[[], bool], *, within_s: float) -> None:
    end = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.5)


def test_a_full_disk(small: tuple[SmallDisk, Home], base: str) -> None:
    disk, home = small
    sbx = Sandbox.create(template=base)
    sbx.exec(
        "sh -c 'i=0; while :; do i=$((i+1)); echo $i >> /root/count; sync; sleep 0.2; done' >/dev/null 2>&1 &"
    )
    first = sbx.snapshot(label="first")
    before = {s.id for s in sbx.snapshots()}
    for left in (0, 1 << 16, 3 << 20):
        disk.fill_large(left)
        for act in (sbx.snapshot, sbx.hibernate, lambda: sbx.rollback(first.id)):
            with pytest.raises(InsufficientResources):
                act()
        with pytest.raises(InsufficientResources):
            Sandbox.restore(first.id)
        with pytest.raises(InsufficientResources):
            sbx.change("there is no way back", run="touch /root/changed").start()
        assert sbx.refresh().state is SandboxState.RUNNING
        assert {s.id for s in sbx.snapshots()} == before
        assert [p.name for p in home.tmp.iterdir()] == []
        disk.free()
    # QEMU stops a machine that cannot write; the daemon lets it go on
    _until(lambda: sbx.exec("true").exit_code == 0, within_s=60)
    count = int(sbx.exec("tail -n 1 /root/count").stdout)
    _until(lambda: int(sbx.exec("tail -n 1 /root/count").stdout) > count, within_s=20)
    assert (sbx.changes(), sbx.exec("ls /root/changed").exit_code) == ([], 2)
    snap = sbx.snapshot()
    assert snap.id not in before
    assert sbx.hibernate().reason == "hibernate"
    assert int(sbx.exec("tail -n 1 /root/count").stdout) > count, "woken, and counting"
    wanted = sbx.exec("sort -n -c /root/count && wc -l < /root/count")
    assert wanted.exit_code == 0, "no line was lost or torn"
    _fills_in_the_middle_of_a_change(disk, sbx)
    sbx.delete()


def _fills_in_the_middle_of_a_change(disk: SmallDisk, sbx: Sandbox) -> None:
    """The command stands still with its machine, and nothing can be written down; then there is room again."""
    change = sbx.change(
        "it grows",
        run="touch /root/changed; until [ -e /run/go ]; do sleep 0.1; done; "
        "head -c 200M /dev/zero >/root/big; sync; echo end",
        checks={"required": {"file": {"/root/big": {"size": 200 << 20}}}},
        inventory=False,
        memory="ram",
    ).start()
    for event in change.events():
        if event.name == "state" and event.data["state"] == ChangeState.CHANGING:
            break
    assert change.refresh().state is ChangeState.CHANGING, change.report
    _until(lambda: sbx.exec("ls /root/changed").exit_code == 0, within_s=60)
    disk.fill_large()
    sbx.exec("touch /run/go")
    # QEMU stops it; what the daemon frees of its caches meanwhile is used up, too
    _until(lambda: disk.fill_large() is None and not _answers(sbx), within_s=90)
    assert change.refresh().state is ChangeState.CHANGING
    assert change.verdict is None, "nothing is known yet, and nothing is said"
    disk.free()
    change.wait()
    assert (change.state, change.verdict) == (ChangeState.KEPT, "kept"), change.report
    assert change.report is not None
    assert change.report.data["command"]["stdout_tail"] == "end\n"
    before = change.info.snapshot_id
    assert before is not None
    assert Snapshot.verify(before).ok
    sbx.rollback(before)
    assert sbx.exec("ls /root/changed /root/big").exit_code == 2, "the old machine is still there"


def _answers(sbx: Sandbox) -> bool:
    try:
        return sbx.exec("true").ok
    except TorporError:
        return False


def test_every_step_of_a_capture_runs_into_it(
    small: tuple[SmallDisk, Home], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the look at the free space beforehand, in this process: QEMU and we ourselves meet the full disk."""
    disk, home = small

    async def no_check(*_: object) -> None:
        """Let it run into the full disk."""

    monkeypatch.setattr(capture, "check_capture", no_check)

    async def scene() -> None:
        engine = open_engine(home)
        await engine.start()
        try:
            info = await engine.create(SandboxSpec(template=base))
            refused = 0
            for left_kib in (0, 64, 200, 300, 600, 1200, 4000):
                before = await engine.snapshots()
                disk.fill_large(left_kib << 10)
                try:
                    await engine.snapshot(info.id)
                except InsufficientResources:
                    refused += 1
                    assert await engine.snapshots() == before
                assert (await engine.get(info.id)).state is SandboxState.RUNNING
                disk.free()
                await engine._tasks[info.id].go_on()
                async with engine.guest(info.id) as guest:
                    await guest.sync()  # it runs, thawed, and its disk takes writes
            assert refused >= 5
            snap = await engine.snapshot(info.id)
            assert await engine.verify_snapshot(snap.id) == ()
            assert [p.name for p in home.tmp.iterdir()] == []
            await engine.delete(info.id)
        finally:
            await engine.aclose()

    asyncio.run(scene())


def test_a_volume_that_grows_into_it(
    small: tuple[SmallDisk, Home], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused beforehand; and when the disk fills behind that look, the machine waits for room and it grows."""
    disk, home = small

    async def no_check(*_: object) -> None:
        """Let it run into the full disk."""

    async def scene() -> None:
        engine = open_engine(home)
        await engine.start()
        try:
            await engine.volumes.create("data", 1)
            mounts = (VolumeMount(volume="data", path="/data"),)
            info = await engine.create(SandboxSpec(template=base, volumes=mounts))

            async def sh(command: str) -> str:
                async with engine.guest(info.id) as guest:
                    return await run(guest, command)

            await sh("head -c 4M /dev/urandom >/data/kept; sync; sha256sum /data/kept >/root/sum")
            disk.fill_large()
            with pytest.raises(InsufficientResources):
                await engine.volumes.grow("data", 2)
            assert (await engine.volumes.get("data")).size_bytes == 1 << 30
            with monkeypatch.context() as patch:
                patch.setattr(EngineVolumes, "_check_room", no_check)
                growing = asyncio.create_task(engine.volumes.grow("data", 2))
                await asyncio.wait({growing}, timeout=5)
                disk.free()
                # either the host refused a step of it, or the guest's write waited for room
                with contextlib.suppress(InsufficientResources):
                    async with asyncio.timeout(120):
                        await growing
            assert (await engine.volumes.grow("data", 2)).size_bytes == 2 << 30
            await sh("sha256sum -c /root/sum; head -c 8M /dev/zero >/data/more; sync")
            assert int(await sh("df --output=size -B1M /data | tail -1")) > 1500
            assert (await engine.get(info.id)).state is SandboxState.RUNNING
            await engine.delete(info.id)
            await engine.volumes.delete("data")
        finally:
            await engine.aclose()

    asyncio.run(scene())
