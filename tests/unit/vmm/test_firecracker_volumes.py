"""Places for volumes of a Firecracker of paper: this process is it, and has its drives' files open."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torpor.errors import VmmFailed
from torpor.vmm.base import VolumeDisk
from torpor.vmm.firecracker import disks, drives, volumes
from torpor.vmm.firecracker.api import Refused
from torpor.vmm.firecracker.config import DISK, READ_ONLY_SLOTS, SLOTS, WRITABLE_SLOTS, volume_name
from torpor.vmm.firecracker.driver import FirecrackerDriver
from torpor.vmm.firecracker.volumes import FirecrackerVolumes
from torpor.vmm.limits import RateLimits

MIB = 1 << 20
WRITE, READ = WRITABLE_SLOTS[0], READ_ONLY_SLOTS[0]
LIMITS = RateLimits(50 * MIB)


class PaperApi:
    """Opens what a drive's name leads to when it is told so, as Firecracker does."""

    def __init__(self, inner: Path) -> None:
        self.inner = inner
        self.files: dict[str, int] = {}
        self.state = "Running"
        self.calls: list[tuple[str, str, Any]] = []
        self.fails: dict[str, Exception] = {}

    def start(self) -> None:
        for name in (DISK, *map(volume_name, SLOTS)):
            self.open(name)

    def open(self, name: str) -> None:
        mode = os.O_RDONLY if name in map(volume_name, READ_ONLY_SLOTS) else os.O_RDWR
        fd = os.open(self.inner / name, mode)
        if name in self.files:
            os.close(self.files.pop(name))
        self.files[name] = fd

    def size(self, slot: int) -> int:
        return os.fstat(self.files[volume_name(slot)]).st_size

    def close(self) -> None:
        while self.files:
            os.close(self.files.popitem()[1])

    async def call(
        self, method: str, path: str, body: Any = None, *, timeout_s: float = 10.0
    ) -> Any:
        self.calls.append((method, path, body))
        if path in self.fails:
            raise self.fails[path]
        if path == "/":
            return {"state": self.state}
        if path == "/vm":
            self.state = {"Paused": "Paused", "Resumed": "Running"}[body["state"]]
        else:
            assert path == f"/drives/{body['drive_id']}"
            self.open(body["path_on_host"])
        return None


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sbx"
        self.inner = self.folder / "vm"
        self.inner.mkdir(parents=True)
        self.layers = folder / "layers"
        self.layers.mkdir()
        self.api = PaperApi(self.inner)
        drives.lead(self.inner, DISK, self.file("root", b"r" * 512))
        volumes.clear(self.folder)
        self.api.start()
        self.volumes = FirecrackerVolumes(self.api, self.folder, os.getpid(), LIMITS)  # type: ignore[arg-type]

    def file(self, name: str, content: bytes = b"") -> Path:
        path = self.layers / f"{name}.raw"
        path.write_bytes(content)
        return path

    def disk(self, slot: int = WRITE, size: int = MIB, active: str | None = "active") -> VolumeDisk:
        base = self.layers / "base.raw"
        if not base.exists():
            self.file("base", b"b" * MIB)
        top = None if active is None else self.layers / f"{active}.raw"
        if top is not None:
            disks.make_empty(top, size)
        return VolumeDisk(slot=slot, serial="s", layers=(base,), active=top)

    def newest(self) -> dict[int, str]:
        return dict(asyncio.run(self.volumes.newest()))

    def has(self, slot: int) -> int:
        return self.api.files[volume_name(slot)]


@pytest.fixture
def scene(folder: Path) -> Iterator[Scene]:
    made = Scene(folder)
    yield made
    made.api.close()


def test_a_volume_comes_and_goes_and_nothing_of_it_stays_open(scene: Scene) -> None:
    assert scene.newest() == {}
    disk = scene.disk()
    asyncio.run(scene.volumes.attach(disk))
    assert scene.newest() == {WRITE: "active"}
    told = scene.api.calls[-1][2]
    assert told["rate_limiter"]["bandwidth"]["size"] == LIMITS.disk_bytes_per_s
    assert os.pread(scene.has(WRITE), 4, MIB - 4) == b"bbbb", "it is what its layers are"
    os.pwrite(scene.has(WRITE), b"new", 0)
    with pytest.raises(VmmFailed, match="already"):
        asyncio.run(scene.volumes.attach(disk))
    for _ in range(2):
        asyncio.run(scene.volumes.detach(WRITE))
        assert scene.newest() == {}
        assert scene.api.size(WRITE) == 4096
    os.pwrite(scene.has(WRITE), b"mischief", 0)
    asyncio.run(scene.volumes.attach(disk))
    assert os.pread(scene.has(WRITE), 4, 0) == b"newb", "what was written is in it"
    assert (scene.layers / "base.raw").read_bytes() == b"b" * MIB
    asyncio.run(scene.volumes.detach(99))


def test_what_is_only_read_is_in_a_place_that_is_only_read(scene: Scene, tmp_path: Path) -> None:
    asyncio.run(scene.volumes.attach(scene.disk(READ, active=None)))
    assert scene.newest() == {READ: "base"}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(scene.has(READ), b"x", 0)
    for wrong in (scene.disk(READ + 1), scene.disk(WRITE, active=None)):
        with pytest.raises(VmmFailed, match=f"place {wrong.slot} .* is none for a volume"):
            asyncio.run(scene.volumes.attach(wrong))
    assert scene.newest() == {READ: "base"}
    asyncio.run(scene.volumes.detach(READ))
    moved = scene.layers / "moved.qcow2"
    base = scene.layers / "base.raw"
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", base, moved], check=True)
    other = VolumeDisk(slot=READ, serial="s", layers=(moved,), active=None)
    asyncio.run(scene.volumes.attach(other))
    assert scene.newest() == {READ: "moved"}
    assert os.pread(scene.has(READ), MIB, 0) == b"b" * MIB, "a copy of another driver's"
    (copy,) = scene.folder.glob("*.raw")
    assert copy.stat().st_mode & 0o222 == 0
    asyncio.run(scene.volumes.detach(READ))
    assert not list(scene.folder.glob("*.raw"))
    assert not list(scene.inner.glob("*.raw")), (
        "nothing of ours is made where its owner is not trusted"
    )


def test_a_switch_is_a_clone_that_no_write_misses(scene: Scene) -> None:
    asyncio.run(scene.volumes.attach(scene.disk()))
    next_one = scene.layers / "next.raw"
    disks.make_empty(next_one, MIB)
    scene.api.calls.clear()
    asyncio.run(scene.volumes.switch(WRITE, next_one))
    assert scene.newest() == {WRITE: "next"}
    states = [body["state"] for _, path, body in scene.api.calls if path == "/vm"]
    assert states == ["Paused", "Resumed"]
    os.pwrite(scene.has(WRITE), b"new", 0)
    assert (scene.layers / "active.raw").read_bytes() == b"b" * MIB
    assert next_one.read_bytes() == b"new" + b"b" * (MIB - 3)
    scene.api.state = "Paused"
    third = scene.layers / "third.raw"
    disks.make_empty(third, MIB)
    asyncio.run(scene.volumes.switch(WRITE, third))
    assert scene.api.state == "Paused", "it was before"
    with pytest.raises(VmmFailed, match="no volume in place"):
        asyncio.run(scene.volumes.switch(WRITE + 1, third))


@pytest.mark.parametrize("error", [Refused("no"), VmmFailed("no answer")])
def test_a_switch_that_fails_leaves_the_volume_as_it_was(scene: Scene, error: VmmFailed) -> None:
    asyncio.run(scene.volumes.attach(scene.disk()))
    next_one = scene.layers / "next.raw"
    disks.make_empty(next_one, MIB)
    scene.api.fails[f"/drives/{volume_name(WRITE)}"] = error
    with pytest.raises(VmmFailed):
        asyncio.run(scene.volumes.switch(WRITE, next_one))
    assert scene.newest() == {WRITE: "active"}
    assert scene.api.state == "Running"
    is_empty = next_one.stat().st_blocks == 0
    assert is_empty == isinstance(error, Refused), "what may have been heard may be in use"
    assert next_one.stat().st_size == MIB


def test_an_attach_that_fails_leaves_an_empty_place(scene: Scene) -> None:
    scene.api.fails[f"/drives/{volume_name(WRITE)}"] = Refused("no")
    with pytest.raises(Refused):
        asyncio.run(scene.volumes.attach(scene.disk()))
    assert scene.newest() == {}
    assert not (scene.inner / volume_name(WRITE)).is_symlink()


def test_what_is_open_counts_and_not_where_a_name_leads(scene: Scene) -> None:
    asyncio.run(scene.volumes.attach(scene.disk()))
    drives.lead(scene.inner, volume_name(WRITE), scene.file("soon", b"s" * MIB))
    assert scene.newest() == {WRITE: "active"}, "a daemon that dies here finds it"
    drives.lead_nowhere(scene.inner, WRITE)
    assert scene.newest() == {WRITE: "active"}
    drives.lead(scene.inner, volume_name(WRITE), scene.layers / "active.raw")
    drives.lead(scene.inner, DISK, scene.layers / "soon.raw")
    assert drives.opened(scene.inner, os.getpid())[DISK].path == scene.layers / "root.raw"
    drives.lead(scene.inner, DISK, scene.layers / "root.raw")
    (scene.layers / "active.raw").unlink()
    assert scene.newest() == {WRITE: "active"}, "also a file that was collected"


def test_what_lies_in_a_machines_folder_is_not_in_the_way(scene: Scene, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    for name in (volume_name(WRITE), f".{volume_name(WRITE)}"):
        (scene.inner / name).unlink(missing_ok=True)
        (scene.inner / name).mkdir()
        (scene.inner / name / "link").symlink_to(mine)
    asyncio.run(scene.volumes.attach(scene.disk()))
    assert scene.newest() == {WRITE: "active"}
    (scene.inner / f".{volume_name(WRITE)}").symlink_to(mine)
    asyncio.run(scene.volumes.detach(WRITE))
    assert mine.read_bytes() == b"mine"
    assert scene.api.size(WRITE) == 4096


def test_no_disk_that_it_made_itself_is_believed_without_a_jail_either(
    scene: Scene, tmp_path: Path
) -> None:
    asyncio.run(scene.volumes.attach(scene.disk()))
    secret, evil = tmp_path / "secret", scene.inner / "evil.raw"
    secret.write_bytes(b"secret")
    evil.touch()
    drives.lead(scene.inner, volume_name(WRITE), evil)
    scene.api.open(volume_name(WRITE))
    evil.unlink()
    evil.symlink_to(secret)
    next_one = scene.layers / "next.raw"
    disks.make_empty(next_one, MIB)
    for ask in (scene.volumes.switch(WRITE, next_one), scene.volumes.resize(WRITE, 2 * MIB)):
        with pytest.raises(VmmFailed, match="was not given"):
            asyncio.run(ask)
    assert next_one.stat().st_blocks == 0
    assert secret.read_bytes() == b"secret"


def test_growing(scene: Scene) -> None:
    asyncio.run(scene.volumes.attach(scene.disk()))
    asyncio.run(scene.volumes.resize(WRITE, 2 * MIB))
    assert scene.api.size(WRITE) == 2 * MIB
    asyncio.run(scene.volumes.resize(WRITE, MIB))
    assert scene.api.size(WRITE) == 2 * MIB, "never smaller"
    with pytest.raises(VmmFailed, match="no volume in place"):
        asyncio.run(scene.volumes.resize(WRITE + 1, 2 * MIB))


def test_a_volume_begins_with_an_ext4(tmp_path: Path) -> None:
    path = tmp_path / "lyr.raw"
    asyncio.run(FirecrackerDriver().format_volume(path, 64 * MIB))
    assert [p.name for p in tmp_path.iterdir()] == ["lyr.raw"]
    assert path.stat().st_size == 64 * MIB
    assert path.stat().st_blocks * 512 < 16 * MIB
    tool = shutil.which("e2fsck") or "/usr/sbin/e2fsck"
    done = subprocess.run([tool, "-fn", path], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    with pytest.raises(VmmFailed):
        asyncio.run(FirecrackerDriver().format_volume(tmp_path / "no.raw", 4096))
    assert not (tmp_path / "no.raw").exists()
