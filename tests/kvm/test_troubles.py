"""What goes wrong is told in words, the machine it happened to goes on, and nothing is left of the attempt."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.smalldisk import SmallDisk, small_disk
from tests.kvm.traces import machines, traces
from tests.machines import copy_template
from torpor import Sandbox
from torpor.base.home import Home
from torpor.errors import DataDamaged, InsufficientResources, SnapshotUnusable, VmmFailed
from torpor.layers.seal import seal
from torpor.model import RestoreSpec, SandboxFilter, SandboxId, SandboxSpec, SandboxState
from torpor.sandboxes import capture
from torpor.sandboxes.engine import Engine, open_engine


def test_a_process_that_ignores_a_pause_goes_on_as_before(fresh: Sandbox, kvm_home: Home) -> None:
    (pid,) = machines(kvm_home)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(VmmFailed, match="did not answer"):
            fresh.pause()
    finally:
        os.kill(pid, signal.SIGCONT)
    end = time.monotonic() + 60
    while fresh.refresh().state is not SandboxState.RUNNING:
        assert time.monotonic() < end, fresh.info.state
        time.sleep(0.1)
    assert fresh.exec("echo up").stdout == "up\n", "what it was asked in vain is not done later"
    fresh.pause()
    fresh.resume()
    assert fresh.exec("echo up").stdout == "up\n"


def test_a_state_that_is_damaged_is_refused_and_leaves_nothing(
    fresh: Sandbox, kvm_home: Home
) -> None:
    snapshot = fresh.snapshot()
    devices = kvm_home.snapshots / snapshot.id / "devices"
    data = devices.read_bytes()
    devices.chmod(0o600)
    devices.write_bytes(data[: len(data) // 2])
    seal(devices)
    before = traces(kvm_home)
    with pytest.raises((VmmFailed, DataDamaged, SnapshotUnusable)) as caught:
        Sandbox.restore(snapshot.id)
    assert caught.value.hint
    assert traces(kvm_home) == before
    (failed,) = (
        one
        for one in Sandbox.list()
        if one.info.parent_snapshot == snapshot.id and one.id != fresh.id
    )
    assert failed.refresh().state is SandboxState.FAILED
    failed.delete()
    assert not (kvm_home.sandboxes / failed.id).exists()
    assert fresh.exec("echo up").stdout == "up\n"


@pytest.fixture
def small(kvm_home: Home) -> Iterator[tuple[SmallDisk, Home]]:
    """A home on a small disk, with the templates."""
    with (
        tempfile.TemporaryDirectory(dir=kvm_home.root.parent) as name,
        small_disk("ext4", 6 << 10, Path(name)) as disk,
    ):
        for folder in (Path(name), disk.root):
            folder.chmod(0o711)
        home = Home(disk.root / "home")
        home.prepare()
        copy_template(kvm_home, home)
        yield disk, home


def test_a_disk_that_fills_up_in_the_middle_of_a_snapshot(
    small: tuple[SmallDisk, Home],
    kvm_home: Home,
    template: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the look at the free space: each step meets it, and nothing of the memory is lost by that."""
    disk, home = small
    left_kib = 0
    quiet, go_on = capture._quiet_guest, capture.go_on

    async def no_check(*_: object) -> None:
        """Let it run into the full disk."""

    async def full_from_now(*given: Any) -> None:
        await quiet(*given)
        disk.fill_large(left_kib << 10)

    async def free_again(*given: Any, **more: Any) -> None:
        disk.free()  # a guest that writes to a full disk is another story
        await go_on(*given, **more)

    monkeypatch.setattr(capture, "check_capture", no_check)
    monkeypatch.setattr(capture, "_quiet_guest", full_from_now)
    monkeypatch.setattr(capture, "go_on", free_again)

    async def scene() -> None:
        nonlocal left_kib
        engine = open_engine(home)
        await engine.start()
        try:
            info = await engine.create(SandboxSpec(template=template))
            before, written = traces(home), {}
            for left_kib in (0, 64, 600, 4000):
                name, data = f"/dev/shm/{left_kib}", os.urandom(8 << 20)
                await _write(engine, info.id, name, data)
                written[name] = data
                with pytest.raises(InsufficientResources):
                    await engine.snapshot(info.id)
                assert [s for s in await engine.snapshots() if s.reason != "template"] == []
                assert (await engine.get(info.id)).state is SandboxState.RUNNING
                async with engine.guest(info.id) as guest:
                    await guest.sync()  # it runs, thawed, and its disk takes writes
            assert traces(home) == before
            monkeypatch.setattr(capture, "_quiet_guest", quiet)
            snap = await engine.snapshot(info.id)
            assert await engine.verify_snapshot(snap.id) == ()
            copy = await engine.restore(snap.id, RestoreSpec())
            for name, data in written.items():
                assert await _read(engine, copy.id, name) == data
            await engine.delete(copy.id)
            assert [p.name for p in home.tmp.iterdir()] == []
        finally:
            disk.free()
            for one in (await engine.list(SandboxFilter())).items:
                await engine.delete(one.id)
            await engine.aclose()

    asyncio.run(scene())


async def _write(engine: Engine, sandbox: SandboxId, path: str, data: bytes) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield data

    async with engine.guest(sandbox) as guest:
        await guest.write(path, chunks())


async def _read(engine: Engine, sandbox: SandboxId, path: str) -> bytes:
    async with engine.guest(sandbox) as guest:
        return b"".join([chunk async for chunk in guest.read(path)])
