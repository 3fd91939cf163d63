"""A machine's places for volumes, as its kernel has them.

With QEMU a place is a target of a SCSI controller: its disk comes when the host plugs a volume in, and has the volume's
serial. With Firecracker it is one of the virtio disks behind the first, which is the root's. They are there from the
boot on; without a volume each is far smaller than any, and with one the kernel hears of its size, a moment later.
"""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

from torpor_guest import errors
from torpor_guest.kernel import Kernel

_EMPTY_BYTES = 1 << 20
"""Smaller than any volume, and larger than what an empty place has."""
_SECTOR = 512


class Places:
    """Finds what is in a place, and lets go of it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def find(self, slot: int) -> Path | None:
        """Return the device file of the disk in a place; None when none is there."""
        scsi = self._kernel.path("/sys/bus/scsi/devices")
        for block in sorted(scsi.glob(f"*:0:{slot}:0/block/*")):
            node = self._node(block)
            # the kernel makes the device's file a moment before its name in /sys/block
            if node.exists() and self._kernel.path(f"/sys/block/{block.name}").exists():
                return node
        virtio = self._virtio()
        if slot >= len(virtio):
            return None
        node = self._node(virtio[slot])
        return node if self.size_of(node) > _EMPTY_BYTES else None

    def _virtio(self) -> list[Path]:
        """Return the virtio disks in the order that the machine has them in, the root's first."""
        driver = self._kernel.path("/sys/bus/virtio/drivers/virtio_blk")
        found = []
        for block in driver.glob("virtio*/block/*"):
            number = re.fullmatch(r"virtio([0-9]{1,9})", block.parent.parent.name)
            if number:
                found.append((int(number[1]), block))
        return [block for _, block in sorted(found)]

    def _node(self, block: Path) -> Path:
        return self._kernel.path("/dev") / block.name

    def serial_of(self, device: Path) -> str | None:
        """Return a SCSI disk's serial; None for another disk, whose serial says nothing."""
        page = self._kernel.path(f"/sys/block/{device.name}/device/vpd_pg80")
        if not self._kernel.path(f"/sys/block/{device.name}/device/delete").exists():
            return None
        try:
            return page.read_bytes()[4:].rstrip(b"\0 ").decode("ascii", "replace")
        except OSError as exc:
            raise errors.from_os(exc, f"read the serial of {device}") from exc

    def size_of(self, device: Path) -> int:
        """Return how large the kernel thinks that a disk is."""
        return int(self._kernel.path(f"/sys/block/{device.name}/size").read_text()) * _SECTOR

    def is_settled(self, device: Path) -> bool:
        """Return whether what the kernel thinks of a virtio disk is of the volume in it, and of none before it.

        Its size is too large when its last sector cannot be read, and too small when its file system goes beyond.
        Forgets what was read before.
        """
        try:
            self._kernel.forget_pages(device)
            if not self.reads_to_its_end(device):
                return False
            blocks, block_bytes = blocks_of(device)
        except (OSError, struct.error):
            return False
        return blocks * block_bytes <= self.size_of(device) or not has_ext4(device)

    def reads_to_its_end(self, device: Path) -> bool:
        """Return whether a disk is as large as the kernel thinks, or larger."""
        try:
            with device.open("rb", buffering=0) as file:
                file.seek(self.size_of(device) - _SECTOR)
                return len(file.read(_SECTOR)) == _SECTOR
        except OSError:
            return False

    def scan(self, slot: int) -> None:
        """Ask the controller what is in a place: its own news of it may have been lost."""
        hosts = sorted(self._kernel.path("/sys/class/scsi_host").glob("host*/scan"))
        for scan in hosts:
            try:
                _write(scan, f"0 {slot} 0")
            except OSError:
                continue

    def ask_size(self, device: Path) -> None:
        """Have the kernel ask a SCSI disk how large it is; of a virtio disk it is told."""
        rescan = self._kernel.path(f"/sys/block/{device.name}/device/rescan")
        if rescan.exists():
            _write(rescan, "1")

    def let_go(self, slot: int) -> None:
        """Have the kernel forget the disk before the host takes it away."""
        found = self.find(slot)
        if found is None:
            return
        try:
            delete = self._kernel.path(f"/sys/block/{found.name}/device/delete")
            if delete.exists():
                _write(delete, "1")
            else:
                self._kernel.forget_pages(found)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENODEV):
                raise errors.from_os(exc, f"let go of {found}") from exc

    def hint(self) -> str:
        """Return what may be wrong when no disk comes."""
        if not self._kernel.path("/sys/class/scsi_host").is_dir() and len(self._virtio()) < 2:
            return "its kernel has no driver for the controller; build its template anew"
        return "look at the machine's kernel log: dmesg"


def blocks_of(device: Path) -> tuple[int, int]:
    """Return how many blocks the ext4 file system on a device has, and their size, as its superblock says."""
    block = _superblock(device)
    low, log_size = struct.unpack_from("<I", block, 4)[0], struct.unpack_from("<I", block, 24)[0]
    is_64bit = struct.unpack_from("<I", block, 96)[0] & 0x80
    high = struct.unpack_from("<I", block, 336)[0] if is_64bit else 0
    return (high << 32) + low, 1024 << min(log_size, 6)


def has_ext4(device: Path) -> bool:
    """Return whether a device has the superblock of an ext4 file system."""
    return _superblock(device)[56:58] == b"\x53\xef"


def _superblock(device: Path) -> bytes:
    with device.open("rb", buffering=0) as file:
        file.seek(1024)
        return file.read(1024)


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
