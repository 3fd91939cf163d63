"""A volume goes from one driver's machines to another's and back, and nothing that was written is lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.records import FakeClock
from torpor.base.home import Home
from torpor.base.units import MIB
from torpor.db.database import Database
from torpor.db.volumes import VolumeRow, VolumeRows
from torpor.layers.store import LayerStore
from torpor.layers.whole import is_unfilled
from torpor.vmm.base import Driver
from torpor.vmm.chains import chain
from torpor.vmm.firecracker import disks
from torpor.vmm.firecracker.driver import FirecrackerDriver
from torpor.vmm.qemu.driver import QemuDriver
from torpor.vmm.qemu.host import QemuHost
from torpor.volumes.desk import VolumeDesk
from torpor.volumes.shelf import VolumeShelf

QEMU_IMG = Path("/usr/bin/qemu-img")
SIZE = 64 * MIB
AT = 40 * MIB
STEP = 65536
"""A cluster of qcow2: what is written here does not know what lies below it."""
Make = Callable[[str], VolumeDesk]


@pytest.fixture
def desk_of(folder: Path) -> Make:
    """Return the desk of a home with that driver; the volumes are the same."""
    home = Home(folder / "home")
    home.prepare()
    shelf = VolumeShelf(VolumeRows(Database.open(home.database)))

    def make(name: str) -> VolumeDesk:
        driver: Driver = FirecrackerDriver() if name == "firecracker" else _qemu()
        layers = LayerStore(home, disk_suffix=driver.disk_suffix)
        return VolumeDesk(shelf, layers, driver, FakeClock())

    return make


def _qemu() -> QemuDriver:
    driver = QemuDriver()
    driver._host = QemuHost(QEMU_IMG, QEMU_IMG, "10", "tcg", "it is only asked for disks")
    return driver


async def attached(desk: VolumeDesk) -> tuple[VolumeRow, list[Path]]:
    """Do with a volume what a writer's attach does; return its files, the one that is written last."""
    row = desk.shelf.all()[0]
    row = await desk.shelf.change(
        row.id, lambda r: replace(r, layers=replace(r.layers, written=True, clean=False))
    )
    row = await desk.hand_out(row)
    files = [desk.layers.disk_path(layer) for layer in (*row.layers.disk, row.layers.active)]
    if files[-1].suffix == ".raw":
        await disks.fill(files[-1], files[:-1])
    return row, files


def write(path: Path, word: bytes) -> None:
    pattern, at = word[:1], AT + word[0] * STEP
    kind = "raw" if path.suffix == ".raw" else "qcow2"
    command = f"write -P {pattern[0]} {at} {STEP}"
    argv = ["qemu-io", "-f", kind, "-c", command, str(path)]
    subprocess.run(argv, check=True, capture_output=True)


def written(files: list[Path], out: Path) -> bytes:
    """Return which words a volume holds, in their order; its file system must be whole beside them."""
    source = f"json:{json.dumps(chain(files))}"
    subprocess.run(["qemu-img", "convert", "-O", "raw", source, str(out)], check=True)
    content = out.read_bytes()
    assert len(content) == SIZE
    assert content[1024 + 56 : 1024 + 58] == b"\x53\xef", "it has its file system"
    return bytes(n for n in range(97, 110) if content[AT + n * STEP :][:STEP] == bytes([n]) * STEP)


@pytest.mark.parametrize("first", ["qemu", "firecracker"])
def test_a_volume_goes_to_another_driver_and_back(
    desk_of: Make, first: str, tmp_path: Path
) -> None:
    second = "firecracker" if first == "qemu" else "qemu"

    async def scene() -> None:
        desk = desk_of(first)
        await desk.create("v", SIZE)
        for number, name in enumerate((first, second, second, first)):
            desk = desk_of(name)
            row, files = await attached(desk)
            assert files[-1].suffix == desk._driver.disk_suffix
            words = bytes(range(97, 97 + number))
            assert written(files, tmp_path / "raw") == words, f"turn {number}"
            write(files[-1], bytes([97 + number]))
        point = await desk.point(row.id)
        files = [desk.layers.disk_path(ref.id) for ref in point.disk]
        assert written(files, tmp_path / "raw") == b"abcd"
        assert first == "qemu" or len(files) == 1, "what lies below a whole disk is let go of"

    asyncio.run(scene())


def test_an_overlay_that_no_machine_had_is_no_layer(desk_of: Make, tmp_path: Path) -> None:
    async def scene() -> None:
        desk = desk_of("firecracker")
        row = await desk.create("v", SIZE)
        # its lease was taken, and the attach failed
        row = await desk.shelf.change(
            row.id, lambda r: replace(r, layers=replace(r.layers, written=True))
        )
        assert is_unfilled(desk.layers.disk_path(row.layers.active))
        point = await desk.point(row.id)
        assert [ref.id for ref in point.disk] == list(row.layers.disk)
        _, files = await attached(desk)
        assert written(files, tmp_path / "raw") == b""
        moved = desk_of("qemu")
        assert (await moved.grow(row.id, 2 * SIZE)).size_bytes == 2 * SIZE
        row, files = await attached(moved)
        info = subprocess.run(
            ["qemu-img", "info", "--output=json", files[-1]], check=True, capture_output=True
        )
        assert json.loads(info.stdout)["virtual-size"] == 2 * SIZE

    asyncio.run(scene())
