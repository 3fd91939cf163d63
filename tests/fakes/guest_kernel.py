"""A guest's kernel on paper: what would freeze, set or rename this machine is written down instead."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torpor_guest.kernel import Kernel

if TYPE_CHECKING:
    from typing_extensions import override
else:  # also used where the standard library is all there is

    def override(method):
        return method


def mount_line(place: str, kind: str = "", options: str = "rw") -> str:
    """Return the line of mountinfo for a disk that is mounted at a folder of this machine."""
    number = Path(place).stat().st_dev
    kind = kind or ("ext4" if os.major(number) else "btrfs")  # whose device number is nobody's
    device = f"{os.major(number)}:{os.minor(number)}"
    return f"29 1 {device} / {place} rw,noatime - {kind} /dev/{device} {options}\n"


class PaperKernel(Kernel):
    """See `torpor_guest.kernel.Kernel`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: list[tuple[Any, ...]] = []
        self.refusals: dict[str, tuple[int, int]] = {}
        """Which calls fail: with which errno, and how many succeed before."""
        self.text = mount_line("/")
        self.frozen: list[str] = []
        self.stuck: threading.Event | None = None
        """What the next freeze waits for."""
        self._counts: dict[str, int] = {}

    def note(self, name: str, *args: Any) -> None:
        """Write a call down, or refuse it."""
        self.calls.append((name, *args))
        count = self._counts[name] = self._counts.get(name, 0) + 1
        number, good = self.refusals.get(name, (0, count))
        if count > good:
            raise OSError(number, os.strerror(number))

    @override
    def mounts(self) -> str:
        return self.text

    @override
    def sync_all(self) -> None:
        self.note("sync_all")

    @override
    def forget_pages(self, device: Path) -> None:
        self.note("forget_pages", device.name)

    @override
    def sync(self, fd: int) -> None:
        self.note("sync", place_of(fd))

    @override
    def freeze(self, fd: int) -> None:
        self.note("freeze", place_of(fd))
        stuck, self.stuck = self.stuck, None
        if stuck:
            stuck.wait(20)
        self.frozen.append(place_of(fd))

    @override
    def thaw(self, fd: int) -> None:
        self.note("thaw", place_of(fd))
        if place_of(fd) not in self.frozen:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.frozen.remove(place_of(fd))

    @override
    def reseed(self, entropy: bytes) -> None:
        self.note("reseed", entropy.hex())

    @override
    def set_clock(self, now_ns: int) -> None:
        self.note("set_clock", now_ns)

    @override
    def set_hostname(self, name: str) -> None:
        self.note("set_hostname", name)

    @override
    def signal(self, pid: int, number: int) -> None:
        self.note("signal", pid, number)

    @override
    def bind(self, source: Path, target: Path) -> None:
        self.note("bind", str(source), str(target))
        target.unlink()
        os.link(source, target)


def place_of(fd: int) -> str:
    """Return what an open file is called."""
    return str(Path(f"/proc/self/fd/{fd}").readlink())
