"""The real agent, run as a program, over a kernel that is only written down.

Whatever would freeze a file system, set a clock or change the identity of this machine goes into `root/calls`
(JSON lines) instead, and `root/refuse` names the calls that fail: {"freeze": [errno, how many succeed before]}.
While "frozen", every write to a disk by the agent's own loop is noted in `root/blocked`, because in a real guest
it would have blocked there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.modules["ssl"] = None  # type: ignore[assignment]  # as the program itself does

from tests.fakes.guest_kernel import PaperKernel  # noqa: E402
from torpor_guest import spool  # noqa: E402
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


def watch_loop(kernel: FileKernel) -> None:
    """Note each write to a disk by the loop's thread while it is frozen."""
    harmless = ("/proc/", "/sys/", "/dev/", str(kernel.root))

    def blocked(what: str) -> None:
        if kernel.frozen and threading.current_thread() is threading.main_thread():
            kernel.add("blocked", what)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _WRITES:
            blocked(f"{event} {args}")
        elif event == "open" and not str(args[0]).startswith(harmless):
            flags = args[2] if isinstance(args[2], int) else 0
            if flags & (os.O_ACCMODE | os.O_CREAT):
                blocked(f"open {args}")

    def append(self: spool.Spool, data: bytes) -> int:
        blocked(f"append to {self.path}")
        return original(self, data)

    def close(fd: int) -> None:
        if kernel.frozen and os.fstat(fd).st_nlink == 0:
            blocked(f"close of {os.readlink(f'/proc/self/fd/{fd}')}")  # noqa: PTH115
        original_close(fd)

    original, original_close = spool.Spool.append, os.close
    spool.Spool.append = append  # type: ignore[method-assign]
    os.close = close
    sys.addaudithook(hook)


if __name__ == "__main__":
    root = Path(os.environ.pop("TORPOR_TEST_ROOT"))
    root.mkdir(parents=True, exist_ok=True)
    paper = FileKernel(root)
    watch_loop(paper)
    main(paper)
