"""Volumes of a QEMU: the files that they begin as, and what is asked over QMP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from torpor.base.units import GIB, MIB
from torpor.errors import DataDamaged, HostNotReady, InsufficientResources, VmmFailed
from torpor.vmm.base import VolumeDisk
from torpor.vmm.chains import check_plain
from torpor.vmm.qemu.format import format_volume, resize_overlay
from torpor.vmm.qemu.volumes import QemuVolumes

QEMU_IMG = shutil.which("qemu-img")
needs_qemu = pytest.mark.skipif(QEMU_IMG is None, reason="qemu-img is not installed")


@needs_qemu
def test_a_volume_begins_as_a_small_file_with_an_ext4(tmp_path: Path) -> None:
    path = tmp_path / "lyr.qcow2"
    asyncio.run(format_volume(Path(str(QEMU_IMG)), path, 10 * GIB))
    assert [p.name for p in tmp_path.iterdir()] == ["lyr.qcow2"], "nothing else is left"
    assert path.stat().st_blocks * 512 < 64 * MIB
    check_plain(path)
    raw = tmp_path / "raw"
    subprocess.run([str(QEMU_IMG), "convert", "-O", "raw", path, raw], check=True)
    tool = shutil.which("e2fsck") or "/usr/sbin/e2fsck"
    done = subprocess.run([tool, "-fn", raw], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@needs_qemu
def test_what_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lyr.qcow2"
    with pytest.raises(VmmFailed):
        asyncio.run(format_volume(Path(str(QEMU_IMG)), path, 4096))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(HostNotReady, match="mke2fs"):
        asyncio.run(format_volume(Path(str(QEMU_IMG)), path, GIB))


@needs_qemu
def test_an_overlay_is_made_larger(tmp_path: Path) -> None:
    path = tmp_path / "a.qcow2"
    subprocess.run([str(QEMU_IMG), "create", "-q", "-f", "qcow2", path, "1G"], check=True)
    asyncio.run(resize_overlay(Path(str(QEMU_IMG)), path, 2 * GIB))
    found = subprocess.run(
        [str(QEMU_IMG), "info", "--output=json", path], check=True, capture_output=True
    )
    assert json.loads(found.stdout)["virtual-size"] == 2 * GIB
    with pytest.raises(VmmFailed):
        asyncio.run(resize_overlay(Path(str(QEMU_IMG)), tmp_path / "none.qcow2", GIB))
    other = tmp_path / "other"
    options = ["-o", f"data_file={other}"]
    subprocess.run([str(QEMU_IMG), "create", "-q", "-f", "qcow2", *options, path, "1G"], check=True)
    other.write_bytes(b"of the host")
    with pytest.raises(DataDamaged, match="wants features 0x4"):
        asyncio.run(resize_overlay(Path(str(QEMU_IMG)), path, 2 * GIB))
    assert other.read_bytes() == b"of the host"


class PaperMonitor:
    """A QEMU of paper, with block nodes and SCSI disks."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.nodes: dict[str, str | None] = {}
        """Named nodes, and the one above each."""
        self.devices: dict[str, str] = {}
        self.fail: set[str] = set()
        self.why = ""
        self.silent = False

    async def execute(  # noqa: C901 - one case a command
        self, name: str, *, timeout_s: float, **arguments: Any
    ) -> object:
        self.ran.append(name)
        if name in self.fail:
            raise VmmFailed(f"{name} was refused{self.why}")
        match name:
            case "blockdev-add":
                self.nodes[arguments["node-name"]] = None
            case "blockdev-snapshot":
                self.nodes[arguments["node"]] = arguments["overlay"]
                for device, node in self.devices.items():
                    if node == arguments["node"]:
                        self.devices[device] = arguments["overlay"]
            case "blockdev-del":
                node = arguments["node-name"]
                if self.nodes[node] in self.nodes or node in self.devices.values():
                    raise VmmFailed(f"{node} is in use")
                del self.nodes[node]
            case "device_add":
                self.devices[arguments["id"]] = arguments["drive"]
            case "device_del":
                del self.devices[arguments["id"]]
            case "query-block":
                return [
                    {"qdev": f"/machine/peripheral/{d}", "inserted": {"node-name": n}}
                    for d, n in self.devices.items()
                ]
            case "query-named-block-nodes":
                return [{"node-name": name} for name in (*self.nodes, "#block1", "root")]
        return {}

    @contextlib.contextmanager
    def events(self, *names: str) -> Iterator[AsyncIterator[dict[str, Any]]]:
        async def stream() -> AsyncIterator[dict[str, Any]]:
            yield {"event": names[0], "data": {"device": "vol9"}}
            if self.silent:
                await asyncio.Event().wait()
            yield {"event": names[0], "data": {"device": "vol3"}}

        yield stream()


def disk(name: str = "a") -> VolumeDisk:
    return VolumeDisk(
        slot=3, serial="s", layers=(Path("/l/base.qcow2"),), active=Path(f"/l/{name}.qcow2")
    )


def test_plugged_in_switched_and_taken_out() -> None:
    async def main() -> None:
        monitor = PaperMonitor()
        volumes = QemuVolumes(monitor)
        await volumes.attach(disk())
        assert await volumes.newest() == {3: "a"}
        await volumes.switch(3, Path("/l/b.qcow2"))
        assert await volumes.newest() == {3: "b"}
        await volumes.resize(3, GIB)
        await volumes.detach(3)
        assert (monitor.nodes, monitor.devices) == ({}, {}), "the lower node was let go too"
        await volumes.detach(3)

    asyncio.run(main())


def test_what_fails_is_undone() -> None:
    async def main() -> None:
        monitor = PaperMonitor()
        volumes = QemuVolumes(monitor)
        monitor.fail = {"device_add"}
        with pytest.raises(VmmFailed):
            await volumes.attach(disk())
        assert monitor.nodes == {}
        monitor.fail = set()
        await volumes.attach(disk())
        monitor.fail = {"blockdev-snapshot"}
        with pytest.raises(VmmFailed):
            await volumes.switch(3, Path("/l/b.qcow2"))
        assert (await volumes.newest(), set(monitor.nodes)) == ({3: "a"}, {"v3-a"})
        monitor.fail = {"blockdev-del"}
        with pytest.raises(VmmFailed, match="keeps files"):
            await volumes.detach(3)
        for act in (volumes.switch(4, Path("/l/b.qcow2")), volumes.resize(4, GIB)):
            with pytest.raises(VmmFailed, match="no volume in place 4"):
                await act

    asyncio.run(main())


def test_a_full_host_is_told_when_one_grows() -> None:
    async def main() -> None:
        monitor = PaperMonitor()
        volumes = QemuVolumes(monitor)
        await volumes.attach(disk())
        monitor.fail = {"block_resize"}
        with pytest.raises(VmmFailed):
            await volumes.resize(3, GIB)
        monitor.why = ": Failed to grow the L1 table: No space left on device"
        with pytest.raises(InsufficientResources, match="disk is full"):
            await volumes.resize(3, GIB)

    asyncio.run(main())


def test_a_device_that_does_not_go_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monitor = PaperMonitor()
        monitor.silent = True
        volumes = QemuVolumes(monitor)
        await volumes.attach(disk())
        with pytest.raises(VmmFailed, match="did not let go"):
            await volumes.detach(3)

    monkeypatch.setattr("torpor.vmm.qemu.volumes._DELETED_S", 0.05)
    asyncio.run(main())
