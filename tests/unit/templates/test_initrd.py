"""The initrd: cpio bytes, order of modules, and the busybox it is made of."""

from __future__ import annotations

import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from torpor.errors import BuildFailed, HostNotReady
from torpor.templates import cpio, initrd

DEP = """kernel/net/core/failover.ko.xz:
kernel/drivers/net/net_failover.ko.xz: kernel/net/core/failover.ko.xz
kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko.xz kernel/net/core/failover.ko.xz
kernel/drivers/char/hw_random/virtio-rng.ko.xz:
kernel/drivers/block/virtio_blk.ko.xz:
kernel/drivers/scsi/scsi_mod.ko.xz:
kernel/drivers/scsi/virtio_scsi.ko.xz: kernel/drivers/scsi/scsi_mod.ko.xz
kernel/drivers/scsi/sd_mod.ko.xz: kernel/drivers/scsi/scsi_mod.ko.xz
kernel/drivers/virtio/virtio_balloon.ko.xz:
kernel/net/vmw_vsock/vsock.ko.xz:
kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko.xz: kernel/net/vmw_vsock/vsock.ko.xz
"""
BUILTIN = "\n".join(
    f"kernel/{name}.ko"
    for name in ("fs/ext4", "v/virtio_pci", "c/virtio_console", "v/vmgenid", "v/virtio_mmio")
)


def elf(*segments: int) -> bytes:
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    header[32:40] = (64).to_bytes(8, "little")
    header[54:56] = (56).to_bytes(2, "little")
    header[56:58] = len(segments).to_bytes(2, "little")
    return bytes(header) + b"".join(kind.to_bytes(4, "little") + bytes(52) for kind in segments)


def modules(folder: Path) -> Path:
    for line in DEP.splitlines():
        path = folder / line.partition(":")[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(b"\x7fELF" + path.name.encode()))
    (folder / "modules.dep").write_text(DEP)
    (folder / "modules.builtin").write_text(BUILTIN)
    return folder


def test_needs_come_first_and_builtin_ones_not_at_all(tmp_path: Path) -> None:
    folder = modules(tmp_path)
    found = initrd.order(folder / "modules.dep", folder / "modules.builtin", initrd.MODULES)
    names = [initrd.module_name(path) for path in found]
    assert names == [
        "virtio_blk", "scsi_mod", "virtio_scsi", "sd_mod", "failover", "net_failover", "virtio_net", "virtio_rng", "virtio_balloon",
        "vsock", "vmw_vsock_virtio_transport",
    ]  # fmt: skip


def test_missing_module(tmp_path: Path) -> None:
    folder = modules(tmp_path)
    with pytest.raises(BuildFailed, match="no module nvme"):
        initrd.order(folder / "modules.dep", folder / "modules.builtin", ["nvme"])


def test_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    tool = shutil.which("cpio")
    entries = [cpio.folder("a"), cpio.file("a/odd", b"12345", mode=0o755), cpio.file("e", b"")]
    data = cpio.archive(entries)
    assert len(data) % 512 == 0
    assert data == cpio.archive(entries)
    # the fields of the second entry, which begins after the first one's header and name
    second = data[112 : 112 + 110]
    assert second[:6] == b"070701"
    assert int(second[14:22], 16) == 0o100755
    assert int(second[54:62], 16) == 5
    if tool is None:
        pytest.skip("the rest reads the archive with cpio, which is not installed")
    subprocess.run([tool, "-id", "--quiet"], input=data, cwd=tmp_path, check=True)
    assert (tmp_path / "a/odd").read_bytes() == b"12345"
    assert (tmp_path / "a/odd").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "e").read_bytes() == b""


def test_build(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(elf(1))
    data = initrd.build(modules(tmp_path / "m"), busybox)
    for part in (b"lib/virtio_rng.ko\0", b"lib/order\0", b"bin/busybox\0", b"#!/bin/busybox sh"):
        assert part in data
    assert b"\x7fELFvirtio-rng.ko.xz" in data  # unpacked


def test_busybox_must_be_static(tmp_path: Path) -> None:
    path = tmp_path / "busybox"
    path.write_bytes(elf(1, 3))
    with pytest.raises(HostNotReady, match="shared libraries") as caught:
        initrd.find_busybox([path])
    assert caught.value.hint == "run: sudo apt-get install busybox-static"
    path.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(HostNotReady, match="64-bit"):
        initrd.find_busybox([path])
    with pytest.raises(HostNotReady, match="not installed"):
        initrd.find_busybox([tmp_path / "nowhere"])


def test_unknown_compression(tmp_path: Path) -> None:
    path = tmp_path / "a.ko.zzz"
    path.write_bytes(b"")
    with pytest.raises(BuildFailed, match="not known"):
        initrd.unpacked(path)
