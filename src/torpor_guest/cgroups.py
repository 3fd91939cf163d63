"""The agent's part of the cgroup v2 tree: one group a command, so that kill and accounting take the whole tree."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_ROOT_LINE = "0::"


class Cgroups:
    """Groups below the agent's own one; `parent` is None where there is no cgroup v2 for us to use."""

    def __init__(self, parent: Path | None, home: Path | None = None) -> None:
        self.parent = parent
        self.home = home
        """The group that the agent itself is in, and the spawner between two commands."""

    @staticmethod
    def open(choice: str) -> Cgroups:
        """Return the groups for the command line's `--cgroup`: `auto`, `none` or a folder."""
        if choice == "none":
            return Cgroups(None)
        own = _own_group() if choice == "auto" else Path(choice)
        if own is None:
            return Cgroups(None)
        try:
            parent = _prepare(own, move_us=choice == "auto")
        except OSError:
            return Cgroups(None)
        home = _current_group()
        return Cgroups(None) if home is None else Cgroups(parent, home)

    def kill(self, group: str) -> None:
        """Kill every process in `group` and below it."""
        folder = Path(group)
        try:
            (folder / "cgroup.kill").write_bytes(b"1")
        except FileNotFoundError:  # Linux < 5.14, or the group is gone
            for _ in range(50):
                pids = _members(folder)
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if not pids:
                    break
        except OSError:
            pass

    def oom_kills(self, group: str) -> int:
        """Return how many processes of `group` the kernel killed for want of memory."""
        try:
            fd = os.open(f"{group}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            text = os.read(fd, 4096)
        finally:
            os.close(fd)
        _, found, rest = text.partition(b"\noom_kill ")
        return int(rest.split(b"\n", 1)[0]) if found else 0

    def remove(self, group: str) -> bool:
        """Remove `group` if nothing runs in it; return whether it is gone."""
        folder = Path(group)
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return self._remove_empty(folder)
        return True

    def _remove_empty(self, folder: Path) -> bool:
        try:
            if "populated 0" not in (folder / "cgroup.events").read_text():
                return False
            for child in sorted(folder.glob("**/"), key=lambda p: -len(p.parts)):
                child.rmdir()
        except OSError:
            return not folder.exists()
        return True

    def kill_leftovers(self) -> int:
        """Kill what an agent before us left running in our groups; return how many groups there were."""
        if self.parent is None:
            return 0
        groups = [child for child in self.parent.iterdir() if child.is_dir()]
        for group in groups:
            self.kill(str(group))
        deadline = time.monotonic() + 5
        while groups and time.monotonic() < deadline:
            groups = [group for group in groups if not self.remove(str(group))]
            if groups:
                time.sleep(0.01)  # the loop does not run yet
        return len(groups)


def _current_group() -> Path | None:
    """Return the folder of the group that we are in; None without cgroup v2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    name = next((line[len(_ROOT_LINE) :] for line in lines if line.startswith(_ROOT_LINE)), "/")
    mount = next((line.split()[4] for line in mounts if " - cgroup2 " in line), None)
    return None if mount is None else Path(mount + name.rstrip("/"))


def _own_group() -> Path | None:
    """Return our own group's folder when systemd delegated it to us."""
    found = _current_group()
    if found is None or not found.name.endswith((".service", "agent")):
        return None
    return found.parent if found.name == "agent" else found


def _prepare(own: Path, *, move_us: bool) -> Path:
    """Make room for the commands' groups below `own`; return the folder they go into."""
    parent = own / "exec"
    parent.mkdir(parents=True, exist_ok=True)
    if move_us:  # a group with members may not hand controllers down
        (own / "agent").mkdir(exist_ok=True)
        (own / "agent/cgroup.procs").write_bytes(b"0")
    for folder in (own, parent):
        for controller in (b"+memory", b"+pids"):
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_bytes(controller)
    return parent


def _members(folder: Path) -> list[int]:
    pids: list[int] = []
    for group in [folder, *folder.glob("**/")]:
        with contextlib.suppress(OSError):
            pids += map(int, (group / "cgroup.procs").read_text().split())
    return pids
