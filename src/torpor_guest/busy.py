"""Who holds a file system: processes with an open file, a folder, a program or a mapping on it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_MOST = 20


def holders(device: tuple[int, int], proc: Path = Path("/proc")) -> list[str]:
    """Return `PID NAME` of the processes that hold the file system on a block device, at most 20."""
    found = []
    for entry in sorted((e for e in proc.iterdir() if e.name.isdigit()), key=lambda e: int(e.name)):
        if _holds(entry, device):
            name = "?"
            with contextlib.suppress(OSError):
                name = (entry / "comm").read_text(errors="replace").strip()[:32]
            found.append(f"{entry.name} {name}")
            if len(found) == _MOST:
                break
    return found


def _holds(entry: Path, device: tuple[int, int]) -> bool:
    for name in ("cwd", "root", "exe"):
        if _is_on(entry / name, device):
            return True
    with contextlib.suppress(OSError):  # it ended, or is not ours to look at
        if any(_is_on(link, device) for link in (entry / "fd").iterdir()):
            return True
    number = f"{device[0]:02x}:{device[1]:02x}"
    with contextlib.suppress(OSError):
        for line in (entry / "maps").read_text(errors="replace").splitlines():
            fields = line.split(None, 5)
            if len(fields) > 3 and fields[3] == number:
                return True
    return False


def _is_on(path: Path, device: tuple[int, int]) -> bool:
    try:
        number = os.stat(path).st_dev
    except OSError:
        return False
    return (os.major(number), os.minor(number)) == device
