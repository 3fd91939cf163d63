"""What a driver could leave on a host: processes, mounts, links, network namespaces, control groups and rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from torpor.base.home import Home


def traces(home: Home) -> dict[str, frozenset[str]]:
    """Return the names of all that could be left over, by kind."""
    return {
        "machines": frozenset(str(pid) for pid in machines(home)),
        "mounts": _names(Path("/proc/mounts"), 1),
        "links": frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        "namespaces": _below(Path("/run/netns")) | _entered_namespaces(),
        "tables": _tables(),
        "groups": frozenset(
            str(path) for path in Path("/sys/fs/cgroup").rglob("*") if path.is_dir()
        ),
    }


def machines(home: Home) -> dict[int, str]:
    """Return the VMMs that run in `home`: process number and command line."""
    found = {}
    folders = {_identity(folder) for folder in home.sandboxes.glob("*/vm")}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            place = (entry / "cwd").readlink()
            is_inside = _identity(entry / "cwd") in folders  # which may be its root
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            program = Path((entry / "exe").readlink()).name
        except OSError:
            continue
        below = place.is_relative_to(home.sandboxes) or str(home.sandboxes) in line or is_inside
        if below and ("qemu-system" in program or "firecracker" in program):
            found[int(entry.name)] = line
    return found


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _entered_namespaces() -> frozenset[str]:
    """Return the network namespaces that processes are in."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(str(entry.readlink()))
        except OSError:  # it ended, or is another user's
            continue
    return frozenset(found)


def _tables() -> frozenset[str]:
    """Return our tables of nftables; none where they cannot be looked at."""
    tool = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if tool is None or os.geteuid() != 0:
        return frozenset()
    done = subprocess.run([tool, "list", "tables"], capture_output=True, text=True, check=True)
    return frozenset(line for line in done.stdout.splitlines() if "torpor" in line)


def _names(table: Path, column: int) -> frozenset[str]:
    return frozenset(line.split()[column] for line in table.read_text().splitlines())


def _below(folder: Path) -> frozenset[str]:
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()
