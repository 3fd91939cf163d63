"""Volumes in the guest, on a kernel of paper: found by place and serial, mounted, let go, and never formatted."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.fakes.guest_kernel import PaperKernel
from torpor_guest import volumes
from torpor_guest.busy import holders
from torpor_guest.errors import AgentError
from torpor_guest.uevents import uevents
from torpor_guest.users import Image
from torpor_guest.volumes import VolumeMethods

SERIAL = "abcdefghij0123456789"
WISH = {"path": "/data", "slot": 3, "serial": SERIAL}


class ScsiKernel(PaperKernel):
    """Has a SCSI controller, and disks on it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.claimed = False
        self.path("/sys/class/scsi_host/host0").mkdir(parents=True)
        self.path("/sys/class/scsi_host/host0/scan").touch()
        self.path("/sys/bus/scsi/devices").mkdir(parents=True)
        self.path("/dev").mkdir()
        self.path("/proc").mkdir()

    def plug(
        self, slot: int, name: str = "sda", serial: str = SERIAL, *, blocks: int = 256
    ) -> None:
        block = self.path(f"/sys/block/{name}/device")
        block.mkdir(parents=True)
        (block / "vpd_pg80").write_bytes(b"\0\x80\0\x14" + serial.encode())
        (block / "rescan").touch()
        (block / "delete").touch()
        (block.parent / "size").write_text(str(256 * 8))
        (block.parent / "dev").write_text("8:0\n")
        link = self.path("/sys/dev/block/8:0")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../block/{name}")
        superblock = bytearray(1024)
        struct.pack_into("<I", superblock, 4, blocks)
        struct.pack_into("<I", superblock, 24, 2)
        self.path(f"/dev/{name}").write_bytes(bytes(1024) + superblock)
        self.path(f"/sys/bus/scsi/devices/0:0:{slot}:0/block/{name}").mkdir(parents=True)

    @override
    def mount(self, device: Path, target: Path, *, read_only: bool) -> None:
        self.note("mount", device.name, str(target.relative_to(self.root)), read_only)
        options = "ro" if read_only else "rw"
        place = f"/{target.relative_to(self.root)}"
        self.text += f"40 1 8:0 / {place} {options} - ext4 /dev/{device.name} {options}\n"

    @override
    def unmount(self, target: Path) -> None:
        self.note("unmount", str(target.relative_to(self.root)))
        place = f"/{target.relative_to(self.root)}"
        lines = [line for line in self.text.splitlines(keepends=True) if f" {place} " not in line]
        self.text = "".join(lines)

    @override
    def is_claimed(self, device: tuple[int, int]) -> bool:
        return self.claimed


class PaperPrograms:
    """Notes what would be run."""

    def __init__(self) -> None:
        self.ran: list[Sequence[str]] = []
        self.status = 0

    async def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        self.ran.append([Path(word).name for word in argv])
        return self.status, "what it said"


class Scene:
    def __init__(self, root: Path, image: Image | None = None) -> None:
        self.kernel = ScsiKernel(root)
        self.programs = PaperPrograms()
        self.methods = VolumeMethods(self.kernel, self.programs, image or Image())  # type: ignore[arg-type]

    def ask(self, name: str, **params: Any) -> dict[str, Any]:
        method = getattr(self.methods, name)
        result: dict[str, Any] = asyncio.run(method(None, {**WISH, **params}))
        return result

    def refuses(self, name: str, match: str, **params: Any) -> AgentError:
        with pytest.raises(AgentError, match=match) as caught:
            self.ask(name, **params)
        return caught.value


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_disk_is_mounted_and_let_go(scene: Scene) -> None:
    scene.kernel.plug(3)
    found = scene.ask("mount")
    assert found["total_bytes"] >= found["used_bytes"] >= 0
    assert ("mount", "sda", "data", False) in scene.kernel.calls
    assert scene.programs.ran == [], "it has its size, and is not made anew"
    scene.ask("mount")
    assert len([c for c in scene.kernel.calls if c[0] == "mount"]) == 1, "it is mounted already"
    assert scene.ask("usage")["total_bytes"] == found["total_bytes"]
    assert scene.ask("unmount")["was_mounted"] is True
    assert scene.kernel.path("/sys/block/sda/device/delete").read_text() == "1"
    assert scene.ask("unmount")["was_mounted"] is False
    assert scene.refuses("usage", "no volume is mounted").code == "not_found"


def test_read_only(scene: Scene) -> None:
    scene.kernel.plug(3, blocks=1)
    scene.ask("mount", read_only=True)
    assert ("mount", "sda", "data", True) in scene.kernel.calls
    assert scene.programs.ran == [], "what cannot be written is not made larger"


def test_a_disk_that_grew_while_it_was_away_is_used_whole(scene: Scene) -> None:
    scene.kernel.plug(3, blocks=128)
    scene.ask("mount")
    assert scene.programs.ran == [["resize2fs", "sda"]]


def test_growing(scene: Scene) -> None:
    scene.kernel.plug(3)
    assert scene.refuses("grow", "no volume is mounted").code == "not_found"
    scene.ask("mount")
    scene.ask("grow")
    assert scene.kernel.path("/sys/block/sda/device/rescan").read_text() == "1"
    assert scene.programs.ran == [["resize2fs", "sda"]]
    scene.programs.status = 1
    scene.refuses("grow", "what it said")


def test_another_disk_in_its_place_is_not_taken(scene: Scene) -> None:
    scene.kernel.plug(3, serial="another")
    scene.refuses("mount", "'another'")
    assert not [c for c in scene.kernel.calls if c[0] == "mount"]


def test_a_disk_that_comes_late_is_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, "_LOOK_S", 0.01)

    async def both() -> None:
        asking = asyncio.ensure_future(scene.methods.mount(None, dict(WISH)))  # type: ignore[arg-type]
        await asyncio.sleep(0.03)
        assert not asking.done()
        assert scene.kernel.path("/sys/class/scsi_host/host0/scan").read_text() == "0 3 0"
        scene.kernel.plug(3)
        await asking

    asyncio.run(both())


def test_a_disk_of_which_the_kernel_has_not_said_all_is_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, "_LOOK_S", 0.01)
    scene.kernel.plug(3)
    block, hidden = scene.kernel.path("/sys/block/sda"), scene.kernel.path("/sys/block-later")
    block.rename(hidden)

    async def both() -> None:
        asking = asyncio.ensure_future(scene.methods.mount(None, dict(WISH)))  # type: ignore[arg-type]
        await asyncio.sleep(0.03)
        assert not asking.done()
        hidden.rename(block)
        await asking

    asyncio.run(both())


def test_a_disk_that_never_comes_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "_LOOK_S", 0.01)
    monkeypatch.setattr(volumes, "_APPEAR_S", 0.03)
    assert "dmesg" in scene.refuses("mount", "no disk came in place 3").hint
    scene.kernel.path("/sys/class/scsi_host/host0/scan").unlink()
    scene.kernel.path("/sys/class/scsi_host/host0").rmdir()
    scene.kernel.path("/sys/class/scsi_host").rmdir()
    assert "template" in scene.refuses("mount", "no disk came").hint


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.EINVAL, "--repair"), (errno.EUCLEAN, "--repair"), (errno.EROFS, "read-write once")],
)
def test_what_cannot_be_mounted_is_an_error_with_a_hint(
    scene: Scene, number: int, hint: str
) -> None:
    scene.kernel.plug(3)
    scene.kernel.refusals["mount"] = (number, 0)
    error = scene.refuses("mount", "cannot be mounted at /data")
    assert (error.code, hint in error.hint) == ("failed", True)
    assert scene.programs.ran == [], "no program touched it"


def test_it_is_mended_only_when_asked(scene: Scene) -> None:
    scene.kernel.plug(3)
    scene.ask("mount", repair=True)
    assert scene.programs.ran == [["e2fsck", "-f", "-y", "sda"]]
    scene.ask("unmount")
    scene.programs.status = 1
    scene.ask("mount", repair=True)
    scene.ask("unmount")
    scene.programs.status = 8
    scene.refuses("mount", "e2fsck ends with 8", repair=True)


def test_who_uses_it_is_named(scene: Scene) -> None:
    scene.kernel.plug(3)
    scene.ask("mount")
    number = Path("/").stat().st_dev
    entry = scene.kernel.path("/proc/17")
    entry.mkdir(parents=True)
    (entry / "comm").write_text("sleep\n")
    (entry / "cwd").symlink_to("/")
    device = f"{os.major(number) or 8}:{os.minor(number)}"
    scene.kernel.text = scene.kernel.text.replace("8:0 / /data", f"{device} / /data")
    scene.kernel.path("/sys/block/sda/dev").write_text(f"{device}\n")
    scene.kernel.refusals["unmount"] = (errno.EBUSY, 0)
    error = scene.refuses("unmount", "in use by")
    assert error.code == "conflict"
    if os.major(number):
        assert error.facts["holders"] == "17 sleep"
    assert not scene.kernel.path("/sys/block/sda/device/delete").read_text(), "the disk stays"


def test_one_that_is_mounted_in_another_namespace_is_mounted_again(scene: Scene) -> None:
    scene.kernel.plug(3)
    scene.ask("mount")
    scene.kernel.claimed = True
    scene.refuses("unmount", "another mount namespace")
    assert scene.kernel.calls[-1] == ("mount", "sda", "data", False)
    assert scene.ask("usage")


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "data"},
        {"path": "/"},
        {"path": "/a/../b"},
        {"path": "//data"},
        {"path": "/data/"},
        {"path": "/proc/1"},
        {"path": "/etc/torpor"},
        {"path": None},
        {"slot": 0},
        {"slot": 17},
        {"slot": "3"},
        {"serial": ""},
        {"serial": "a b"},
        {"serial": "x" * 21},
    ],
)
def test_nonsense_is_refused(scene: Scene, wrong: dict[str, Any]) -> None:
    scene.kernel.plug(3)
    assert scene.refuses("mount", r"path|mounted|place|serial", **wrong).code == "invalid"
    assert not [c for c in scene.kernel.calls if c[0] == "mount"]


def test_a_link_in_the_place_of_the_folder_is_refused(scene: Scene) -> None:
    scene.kernel.plug(3)
    scene.kernel.path("/real").mkdir()
    scene.kernel.path("/data").symlink_to(scene.kernel.path("/real"))
    assert scene.refuses("mount", "symlink").code == "invalid"


@pytest.mark.parametrize("there", [True, False])
def test_a_path_that_leads_through_a_link_is_refused(scene: Scene, there: bool) -> None:
    """It could not be found again at its path, and its disk would be torn from it."""
    scene.kernel.plug(3)
    scene.kernel.path("/run").mkdir()
    if there:
        scene.kernel.path("/run/data").mkdir()
    scene.kernel.path("/var").mkdir()
    scene.kernel.path("/var/run").symlink_to("../run")
    error = scene.refuses("mount", "leads through, a symlink", path="/var/run/data")
    assert (error.code, error.hint.endswith("/run/data")) == ("invalid", True)
    assert scene.kernel.path("/run/data").exists() == there, "nothing is made there"


def test_a_disk_that_was_mounted_elsewhere_is_not_torn_away(scene: Scene) -> None:
    scene.kernel.plug(3)
    scene.ask("mount")
    scene.kernel.text = scene.kernel.text.replace(" /data ", " /moved ")  # mount --move
    scene.kernel.claimed = True
    assert scene.refuses("unmount", "not at /data but at /moved").code == "conflict"
    assert not scene.kernel.path("/sys/block/sda/device/delete").read_text(), "the disk stays"
    assert ("unmount", "data") not in scene.kernel.calls
    scene.kernel.text = ""
    scene.refuses("unmount", "in use elsewhere")
    scene.kernel.claimed = False
    assert scene.ask("unmount")["was_mounted"] is False
    assert scene.kernel.path("/sys/block/sda/device/delete").read_text() == "1"


def test_what_lies_over_a_volume_or_in_its_stead_is_not_unmounted(scene: Scene) -> None:
    scene.kernel.plug(3)
    scene.ask("mount")
    ours = scene.kernel.text
    scene.kernel.text = ours + "41 40 0:50 / /data rw - tmpfs tmpfs rw\n"
    assert scene.refuses("unmount", "mounted over /data").code == "conflict"
    scene.kernel.text = "41 1 7:0 / /data rw - ext4 /dev/loop0 rw\n"
    assert scene.ask("unmount")["was_mounted"] is False
    assert [c for c in scene.kernel.calls if c[0] == "unmount"] == []


def test_a_new_volume_is_the_default_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append((Path(path).name, uid)))
    scene = Scene(tmp_path, Image(default_user="nobody"))
    scene.kernel.plug(3)
    place = scene.kernel.path("/data")
    place.mkdir()
    (place / "lost+found").mkdir()
    scene.ask("mount")
    if os.geteuid() == 0:
        assert [name for name, _ in given] == ["data"]
    given.clear()
    scene.ask("unmount")
    (place / "file").touch()
    scene.ask("mount")
    assert given == [], "one that is used belongs to whom it belongs"


def test_holders_are_found_by_what_they_have_open(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    device = (os.major(number), os.minor(number))
    for pid, kind in (("11", "fd"), ("12", "maps"), ("13", "none"), ("14", "cwd")):
        entry = tmp_path / "proc" / pid
        (entry / "fd").mkdir(parents=True)
        (entry / "comm").write_text(f"p{pid}\n")
        (entry / "maps").write_text("")
        if kind == "fd":
            (entry / "fd" / "3").symlink_to(tmp_path)
        elif kind == "maps":
            line = f"7f00-7f01 r--p 00000000 {device[0]:02x}:{device[1]:02x} 42 /data/lib.so\n"
            (entry / "maps").write_text(line)
        elif kind == "cwd":
            (entry / "cwd").symlink_to(tmp_path)
    assert holders(device, tmp_path / "proc") == ["11 p11", "12 p12", "14 p14"]


def test_news_of_devices_ends_the_wait_or_time_does() -> None:
    async def listen() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with uevents() as news:
            await news.next(0.01)
        return loop.time() - begun

    assert asyncio.run(listen()) < 5


class VirtioKernel(PaperKernel):
    """Has virtio disks that are always there, without a SCSI controller; the first is the root's."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.claimed = False
        self.path("/dev").mkdir()
        self.path("/proc").mkdir()
        names = ["vda", *(f"vd{letter}" for letter in "bcdefghijkl")]
        for number, name in enumerate(names):
            # in the order of numbers, which is not that of names
            disk = self.path(f"/sys/devices/virtio{number + 1}/block/{name}")
            disk.mkdir(parents=True)
            block = self.path(f"/sys/block/{name}")
            block.mkdir(parents=True)
            (block / "dev").write_text(f"254:{number}\n")
            driver = self.path("/sys/bus/virtio/drivers/virtio_blk")
            driver.mkdir(parents=True, exist_ok=True)
            (driver / f"virtio{number + 1}").symlink_to(disk.parent.parent)
            self.put(number, content=bytes(4096))

    def put(self, slot: int, *, content: bytes, known_bytes: int | None = None) -> None:
        """Let a disk hold `content`, of which the kernel knows the size, or still another's."""
        name = f"vd{'abcdefghijkl'[slot]}"
        self.path(f"/dev/{name}").write_bytes(content)
        size = len(content) if known_bytes is None else known_bytes
        self.path(f"/sys/block/{name}/size").write_text(f"{size // 512}\n")

    @override
    def mount(self, device: Path, target: Path, *, read_only: bool) -> None:
        self.note("mount", device.name)

    @override
    def is_claimed(self, device: tuple[int, int]) -> bool:
        return self.claimed


def ext4(blocks: int, mib: int = 2) -> bytes:
    content = bytearray(mib << 20)
    struct.pack_into("<I", content, 1024 + 4, blocks)
    struct.pack_into("<I", content, 1024 + 24, 2)
    content[1024 + 56 : 1024 + 58] = b"\x53\xef"
    return bytes(content)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(volumes, "_LOOK_S", 0.01)
    monkeypatch.setattr(volumes, "_APPEAR_S", 0.1)
    scene = Scene(tmp_path)
    (tmp_path / "virtio").mkdir()
    scene.kernel = VirtioKernel(tmp_path / "virtio")  # type: ignore[assignment]
    scene.methods = VolumeMethods(scene.kernel, scene.programs, Image())  # type: ignore[arg-type]
    return scene


def test_the_nth_disk_behind_the_roots_is_a_place(places: Scene) -> None:
    kernel = places.kernel
    assert isinstance(kernel, VirtioKernel)
    assert "dmesg" in places.refuses("mount", "no disk came in place 10", slot=10).hint
    kernel.put(10, content=ext4(512))
    places.ask("mount", slot=10)
    assert [call for call in kernel.calls if call[0] == "mount"] == [("mount", "vdk")]
    assert ("forget_pages", "vdk") in kernel.calls, "what was read of another is not believed"
    kernel.calls.clear()
    places.ask("unmount", slot=10)
    assert kernel.calls == [("forget_pages", "vdk")]
    places.refuses("mount", "no disk came in place 11", slot=11)
    kernel.claimed = True
    kernel.calls.clear()
    places.ask("mount", slot=10)
    assert ("forget_pages", "vdk") not in kernel.calls, "one that is in use is left alone"


@pytest.mark.parametrize("known", [1, 2, 4])
def test_the_size_of_another_volume_is_not_believed(places: Scene, known: int) -> None:
    """The kernel hears of a volume's size a moment later than the agent does of the volume."""
    kernel = places.kernel
    assert isinstance(kernel, VirtioKernel)
    kernel.put(3, content=ext4(2 * 256), known_bytes=known << 20)
    if known == 2:
        places.ask("mount")
    elif known == 4:
        places.refuses("mount", "no disk came")
        assert not [call for call in kernel.calls if call[0] == "mount"]
    assert places.programs.ran == [], "nothing is grown to what is not there"
    kernel.put(3, content=ext4(2 * 256))
    places.ask("mount")
    kernel.put(3, content=b"\xff" * (2 << 20))
    places.ask("mount")  # it is for mount to say what is no file system


def test_growing_waits_until_the_size_is_known(
    places: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = places.kernel
    assert isinstance(kernel, VirtioKernel)
    kernel.put(3, content=ext4(512))
    kernel.claimed = True
    kernel.path("/data").mkdir()
    kernel.text += "40 1 254:3 / /data rw - ext4 /dev/vdd rw\n"
    places.refuses("grow", f"has {2 << 20} bytes, and not {4 << 20}", size_bytes=4 << 20)
    assert places.programs.ran == []

    async def both() -> None:
        wish = {**WISH, "size_bytes": 4 << 20}
        asking = asyncio.ensure_future(places.methods.grow(None, wish))  # type: ignore[arg-type]
        await asyncio.sleep(0.03)
        assert not asking.done()
        kernel.put(3, content=ext4(512, mib=4))
        await asking

    asyncio.run(both())
    assert places.programs.ran == [["resize2fs", "vdd"]]
