"""The real agent, run as a program, over a kernel that is only written down.

Whatever would freeze a file system, set a clock or change the identity of this machine goes into `root/calls`
(JSON lines) instead, and `root/refuse` names the calls that fail: {"freeze": [errno, how many succeed before]}.
While "frozen", every write to a disk by the agent's own loop is noted in `root/blocked`, because in a real guest
it would have blocked there, and every write by another of its threads in `root/waited`.

`TORPOR_TEST_SPAWNER` names another script for the spawner, `TORPOR_TEST_START_LIMIT_S` how long a start may take.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.modules["ssl"] = None  # type: ignore[assignment]  # as the program itself does

from tests.fakes.guest_kernel import PaperKernel, place_of  # noqa: E402
from torpor_guest import launcher, spawner_link  # noqa: E402
from torpor_guest.main import main  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method):
        return method


_WRITES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")


class FileKernel(PaperKernel):
    """A kernel on paper that its test reads in files."""

    @override
    def note(self, name: str, *args: Any) -> None:
        """Write a call down, or refuse it."""
        with contextlib.suppress(FileNotFoundError):
            self.refusals = json.loads((self.root / "refuse").read_text())
        self.add("calls", json.dumps([name, *args]))
        super().note(name, *args)

    @override
    def mounts(self) -> str:
        """Return what a test wrote down; else one disk, this machine's root."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / "mounts").read_text()
        return super().mounts()

    def add(self, name: str, line: str) -> None:
        """Add a line to a file of the test's."""
        fd = os.open(self.root / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, line.encode() + b"\n")
        os.close(fd)


class Watch:
    """Notes each write to a disk by the loop's thread while it is frozen."""

    def __init__(self, kernel: FileKernel) -> None:
        self._kernel = kernel
        self._harmless = ("/proc/", "/sys/", "/dev/", str(kernel.root))
        self._write, self._close = os.write, os.close
        os.write, os.close = self.write, self.close  # type: ignore[assignment]
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """See `sys.addaudithook`."""
        if event in _WRITES:
            self.note(event, str(args))
        elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_ACCMODE | os.O_CREAT):
            self.note("open", str(args[0]))

    def write(self, fd: int, data: bytes) -> int:
        """See `os.write`."""
        if self._kernel.frozen and stat.S_ISREG(os.fstat(fd).st_mode):
            self.note("write", place_of(fd))
        return self._write(fd, data)

    def close(self, fd: int) -> None:
        """See `os.close`: the last one of a file without a name frees its blocks."""
        if self._kernel.frozen and os.fstat(fd).st_nlink == 0:
            self.note("close", place_of(fd))
        self._close(fd)

    def note(self, what: str, where: str) -> None:
        """Note a write, if it is one that would have blocked the loop."""
        if self._kernel.frozen and not where.startswith(self._harmless):
            is_loop = threading.current_thread() is threading.main_thread()
            self._kernel.add("blocked" if is_loop else "waited", f"{what} {where}")


if __name__ == "__main__":
    root = Path(os.environ.pop("TORPOR_TEST_ROOT"))
    root.mkdir(parents=True, exist_ok=True)
    paper = FileKernel(root)
    Watch(paper)
    spawner_link.SCRIPT = os.environ.pop("TORPOR_TEST_SPAWNER", spawner_link.SCRIPT)
    if limit := os.environ.pop("TORPOR_TEST_START_LIMIT_S", ""):
        launcher.START_LIMIT_S = float(limit)
    main(paper)
