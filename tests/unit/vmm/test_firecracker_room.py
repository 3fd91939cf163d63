"""What a snapshot and a start write to the host's disk, told beforehand: blocks that are there, and not sizes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from torpor.base.proc import ProcessId
from torpor.errors import VmmFailed
from torpor.layers.ram import PAGE
from torpor.vmm.firecracker import FirecrackerDriver, machine, room
from torpor.vmm.firecracker.drives import Opened
from torpor.vmm.firecracker.machine import FirecrackerMachine
from torpor.vmm.limits import RateLimits
from torpor.vmm.qemu import QemuDriver

RAM = 64 * PAGE
NOBODY = ProcessId(os.getpid(), 1)


@pytest.fixture(autouse=True)
def reflink(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the file system shares blocks: the list's last."""
    can = [False]
    monkeypatch.setattr(room, "can_reflink", lambda _: can[-1])
    return can


def _file(path: Path, data_bytes: int, size: int = 1 << 30) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        file.write(os.urandom(data_bytes))
        file.flush()
        os.fsync(file.fileno())
    return path


def _start_bytes(*layers: Path) -> int:
    return asyncio.run(FirecrackerDriver().start_bytes(layers))


def test_a_start_copies_the_blocks_of_the_newest_whole_disk(
    tmp_path: Path, reflink: list[bool]
) -> None:
    old, new = _file(tmp_path / "a.raw", 40 * PAGE), _file(tmp_path / "b.raw", 8 * PAGE)
    assert _start_bytes(old, new) == new.stat().st_blocks * 512
    assert 8 * PAGE <= _start_bytes(old, new) < 40 * PAGE
    assert asyncio.run(QemuDriver().start_bytes((old, new))) == 0
    reflink.append(True)
    assert _start_bytes(old, new) == 0


def test_a_disk_of_qemus_is_written_anew_whatever_the_file_system_can(
    tmp_path: Path, reflink: list[bool]
) -> None:
    base, whole = _file(tmp_path / "0.raw", 40 * PAGE), _file(tmp_path / "a.raw", 4 * PAGE)
    delta = _file(tmp_path / "b.qcow2", 8 * PAGE, size=8 * PAGE)
    reflink.append(True)
    wanted = (whole.stat().st_blocks + delta.stat().st_blocks) * 512
    assert _start_bytes(base, whole, delta) == wanted


def test_a_disk_too_full_to_try_it_shares_no_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> bool:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(room, "can_reflink", full)
    assert _start_bytes(_file(tmp_path / "a.raw", 8 * PAGE)) >= 8 * PAGE


def _machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, disk: Path | None, changed: int | None
) -> FirecrackerMachine:
    """Return one with that disk, which goes on from an image and changed so many pages; None: it was booted."""
    (folder / "vm").mkdir()

    def active(_: object) -> Opened:
        if disk is None:
            raise VmmFailed("it has no root disk")
        return Opened(disk, folder / "vm", disk)

    monkeypatch.setattr(FirecrackerMachine, "_active", active)
    monkeypatch.setattr(machine, "changed_pages", lambda *_: np.arange(changed or 0))
    image = None if changed is None else folder / "image"
    return FirecrackerMachine(NOBODY, folder, image, RAM, RateLimits())


def test_a_snapshot_writes_memory_twice_and_copies_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reflink: list[bool]
) -> None:
    disk = _file(tmp_path / "d.raw", 20 * PAGE)
    vmm = _machine(tmp_path, monkeypatch, disk, 10)
    copied = disk.stat().st_blocks * 512
    assert asyncio.run(vmm.capture_bytes()) == 2 * 10 * PAGE + copied
    assert asyncio.run(vmm.capture_bytes(RAM)) == 2 * RAM + copied
    reflink.append(True)
    assert asyncio.run(vmm.capture_bytes()) == 2 * 10 * PAGE


def test_what_the_file_of_memory_has_is_not_written_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vmm = _machine(tmp_path, monkeypatch, None, 10)
    memory = _file(tmp_path / "vm/ram", 4 * PAGE, size=RAM)
    there = memory.stat().st_blocks * 512
    assert asyncio.run(vmm.capture_bytes()) == 2 * 10 * PAGE - there
    memory.unlink()
    memory.symlink_to(_file(tmp_path / "other", 4 * PAGE))
    assert asyncio.run(vmm.capture_bytes()) == 2 * 10 * PAGE


def test_what_cannot_be_counted_is_all_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vmm = _machine(tmp_path, monkeypatch, None, None)
    assert asyncio.run(vmm.capture_bytes()) == 2 * RAM


def test_a_firecracker_that_writes_all_memory_is_counted_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: object) -> str:
        return "Full"

    monkeypatch.setattr(FirecrackerMachine, "_snapshot_type", full)
    vmm = _machine(tmp_path, monkeypatch, None, 10)
    assert asyncio.run(vmm.capture_bytes()) == RAM + 10 * PAGE
