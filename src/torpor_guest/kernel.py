"""What the agent asks of the guest's kernel as its root and nobody else may. Tests put another in its place."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import time
from pathlib import Path

_FIFREEZE = 0xC0045877
_FITHAW = 0xC0045878
_BLKFLSBUF = 0x1261
_RNDADDENTROPY = 0x40085203
_RNDRESEEDCRNG = 0x5207
_MS_BIND = 4096
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOATIME = 1, 2, 4, 1024

_libc = ctypes.CDLL(None, use_errno=True)


class Kernel:
    """The kernel, and the tree of files that belongs to it. All methods raise `OSError` when it refuses."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """Return where the machine's `name` (absolute) lies."""
        return self.root / name.lstrip("/")

    def mounts(self) -> str:
        """Return the mounts, as the kernel lists them."""
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")

    def sync_all(self) -> None:
        """Write all dirty pages and wait for them; says nothing of failures."""
        os.sync()

    def sync(self, fd: int) -> None:
        """Write the dirty pages of the file system that `fd` is on.

        Raises:
            OSError: a page could not be written, now or since somebody last asked.
        """
        _check(_libc.syncfs(ctypes.c_int(fd)))

    def freeze(self, fd: int) -> None:
        """Stop all writing to the file system that `fd` is on, when what is under way has ended."""
        fcntl.ioctl(fd, _FIFREEZE, 0)

    def thaw(self, fd: int) -> None:
        """Let the file system that `fd` is on be written again. EINVAL: it was not frozen."""
        fcntl.ioctl(fd, _FITHAW, 0)

    def reseed(self, entropy: bytes) -> None:
        """Mix `entropy` into the kernel's randomness and have all that is drawn from now on depend on it."""
        fd = os.open("/dev/urandom", os.O_RDWR | os.O_CLOEXEC)
        try:
            head = struct.pack("ii", 8 * len(entropy), len(entropy))
            fcntl.ioctl(fd, _RNDADDENTROPY, head + entropy)
            fcntl.ioctl(fd, _RNDRESEEDCRNG, 0)
        finally:
            os.close(fd)

    def set_clock(self, now_ns: int) -> None:
        """Set the time of day."""
        time.clock_settime_ns(time.CLOCK_REALTIME, now_ns)

    def set_hostname(self, name: str) -> None:
        """Set the name that the kernel has."""
        socket.sethostname(name)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process of the machine that no exec started."""
        os.kill(pid, number)

    def bind(self, source: Path, target: Path) -> None:
        """Let `target` show what `source` is."""
        paths = os.fsencode(source), os.fsencode(target)
        _check(_libc.mount(*paths, None, ctypes.c_ulong(_MS_BIND), None))

    def mount(self, device: Path, target: Path, *, read_only: bool) -> None:
        """Mount the ext4 file system on a block device; its set-uid bits and device files mean nothing."""
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOATIME | (_MS_RDONLY if read_only else 0)
        paths = os.fsencode(device), os.fsencode(target)
        _check(_libc.mount(*paths, b"ext4", ctypes.c_ulong(flags), None))

    def unmount(self, target: Path) -> None:
        """Write out and unmount what is mounted at `target`. EBUSY: somebody uses it."""
        _check(_libc.umount2(os.fsencode(target), ctypes.c_int(0)))

    def forget_pages(self, device: Path) -> None:
        """Write out and forget what is remembered of a block device's content: its disk is another now."""
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _BLKFLSBUF, 0)
        finally:
            os.close(fd)

    def is_claimed(self, device: tuple[int, int]) -> bool:
        """Return whether a block device is in use, such as mounted in any mount namespace."""
        link = f"/sys/dev/block/{device[0]}:{device[1]}"
        try:
            node = f"/dev/{os.path.basename(os.readlink(link))}"
            os.close(os.open(node, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
        except OSError as exc:
            return exc.errno == errno.EBUSY
        return False


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
