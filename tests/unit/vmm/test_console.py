"""The console's log of several machines: where each begins is marked, by each driver."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from torpor.errors import VmmFailed
from torpor.vmm import console, launch
from torpor.vmm.base import Disk, MachineSpec, SavedMachine, Wall
from torpor.vmm.firecracker import FirecrackerDriver
from torpor.vmm.firecracker import host as firecracker_host
from torpor.vmm.firecracker.host import FirecrackerHost
from torpor.vmm.qemu import QemuDriver
from torpor.vmm.qemu import host as qemu_host
from torpor.vmm.qemu.host import QemuHost


def _driver(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> QemuDriver | FirecrackerDriver:
    qemu = QemuHost(path, path, "9", "tcg", "")
    firecracker = FirecrackerHost(path, "1.12.1", "", None, Wall("jailer", False, "", ""))

    async def find_qemu() -> QemuHost:
        return qemu

    async def find_firecracker() -> FirecrackerHost:
        return firecracker

    monkeypatch.setattr(qemu_host, "find_qemu", find_qemu)
    monkeypatch.setattr(firecracker_host, "find_firecracker", find_firecracker)
    return QemuDriver() if name == "qemu" else FirecrackerDriver()


@pytest.mark.parametrize("name", ["qemu", "firecracker"])
def test_where_a_machine_begins_is_marked_behind_what_another_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    disk, folder = tmp_path / "active.raw", tmp_path / "sbx_1"
    disk.write_bytes(b"disk")
    (folder / "vm").mkdir(parents=True)
    spec = MachineSpec(
        vcpus=1,
        ram_mib=128,
        network="none",
        kernel=disk,
        initrd=disk,
        cmdline="",
        disk=Disk((), disk),
    )
    driver = _driver(name, tmp_path / "none", monkeypatch)
    log = driver.console(folder)

    async def no_process(*_: Any, **__: Any) -> Any:
        raise VmmFailed("as far as this goes")

    monkeypatch.setattr(launch, "prepare", lambda *_: None)  # root would give it to another user
    monkeypatch.setattr(launch, "start_process", no_process)

    def start() -> None:
        with pytest.raises(VmmFailed, match="as far as this goes"):
            asyncio.run(driver.restore(folder, spec, SavedMachine(disk, disk)))

    start()
    assert not log.exists() or log.read_bytes() == b"", "there is none before it"
    log.write_text("login:\nreboot: Power down")
    start()
    with log.open("a") as said:
        said.write("another\n")
    text = log.read_text()
    assert text.startswith("login:\nreboot: Power down\n")
    assert console.of_the_last(text) == "another"
    assert console.of_the_last(text[-4:]) == "her", "its mark is further up, or there is none"
