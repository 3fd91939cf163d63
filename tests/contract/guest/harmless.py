"""The real agent, run as a program, over a kernel that is only written down.

Whatever would freeze a file system, set a clock or change the identity of this machine goes into `root/calls`
(JSON lines) instead, and `root/refuse` names the calls that fail: {"freeze": [errno, how many succeed before]}.
While "frozen", every write to a disk by the agent's own loop is noted in `root/blocked`, because in a real guest
it would have blocked there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.modules["ssl"] = None  # type: ignore[assignment]  # as the program itself does

from torpor_guest import spool  # noqa: E402
from torpor_guest.kernel import Kernel  # noqa: E402
from torpor_guest.main import main  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import override
else:  # the agent has the standard library alone

    def override(method):
        return method


_WRITES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")


def mount_line(place: str, kind: str = "", options: str = "rw") -> str:
    """Return the line of mountinfo for a disk that is mounted at a folder of this machine."""
    number = Path(place).stat().st_dev
    kind = kind or ("ext4" if os.major(number) else "btrfs")  # whose device number is nobody's
    device = f"{os.major(number)}:{os.minor(number)}"
    return f"29 1 {device} / {place} rw,noatime - {kind} /dev/{device} {options}\n"


def _place(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


class Paper(Kernel):
    """A kernel on paper."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.frozen: list[str] = []
        self._done: dict[str, int] = {}
        root.mkdir(parents=True, exist_ok=True)

    def note(self, name: str, *args: Any) -> None:
        """Write a call down, or refuse it."""
        refuse: dict[str, list[int]] = {}
        with contextlib.suppress(FileNotFoundError):
            refuse = json.loads((self.root / "refuse").read_text())
        count = self._done[name] = self._done.get(name, 0) + 1
        line = json.dumps([name, *args]) + "\n"
        fd = os.open(self.root / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, line.encode())
        os.close(fd)
        if name in refuse and count > refuse[name][1]:
            raise OSError(refuse[name][0], os.strerror(refuse[name][0]))

    @override
    def mounts(self) -> str:
        """Return what a test wrote down; else one disk, this machine's root."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / "mounts").read_text()
        return mount_line("/")

    @override
    def sync_all(self) -> None:
        self.note("sync_all")

    @override
    def sync(self, fd: int) -> None:
        self.note("sync", _place(fd))

    @override
    def freeze(self, fd: int) -> None:
        place = _place(fd)
        self.note("freeze", place)
        with contextlib.suppress(FileNotFoundError):
            time.sleep(float((self.root / "slow").read_text()))
        self.frozen.append(place)

    @override
    def thaw(self, fd: int) -> None:
        place = _place(fd)
        self.note("thaw", place)
        if place not in self.frozen:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.frozen.remove(place)

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


def watch_loop(kernel: Paper) -> None:
    """Note each write to a disk by the loop's thread while it is frozen."""

    def blocked(what: str) -> None:
        if kernel.frozen and threading.current_thread() is threading.main_thread():
            fd = os.open(kernel.root / "blocked", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, f"{what}\n".encode())
            os.close(fd)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _WRITES:
            blocked(f"{event} {args}")
        elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_ACCMODE | os.O_CREAT):
            is_disk = not str(args[0]).startswith(("/proc/", "/sys/", "/dev/", str(kernel.root)))
            if is_disk:
                blocked(f"open {args}")

    def append(self: spool.Spool, data: bytes) -> int:
        blocked(f"append to {self.path}")
        return original(self, data)

    original = spool.Spool.append
    spool.Spool.append = append  # type: ignore[method-assign]
    sys.addaudithook(hook)


if __name__ == "__main__":
    paper = Paper(Path(os.environ.pop("TORPOR_TEST_ROOT")))
    watch_loop(paper)
    main(paper)
