"""A sandbox's folder: disk, machine and logs of one sandbox, and their removal."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from torpor.base.fsio import fsync_dir, open_plain, remove_all, remove_tree
from torpor.base.home import Home
from torpor.base.sparse import make_hole
from torpor.base.units import MIB
from torpor.layers.space import full_disk_told
from torpor.model import SandboxId

CONSOLE_LIMIT_BYTES = 16 << 20
"""A console log is cut when it is larger: the guest writes it, and must not fill our disk."""
_CONSOLE_KEEP_BYTES = 1 << 20
_VMM_FILES_BYTES = 64 * MIB
_VMM_FILES_MOST = 1000
"""What lies in a VMM's own folder beside its memory: a log, sockets, the state of its devices."""


def folder_of(home: Home, sandbox_id: SandboxId) -> Path:
    """Return where a sandbox's things are."""
    return home.sandboxes / sandbox_id


def make_folder(folder: Path) -> None:
    """Make a sandbox's folder if it is missing, durably; passable for its VMM's user, readable for none."""
    with full_disk_told(f"the folder {folder}"):
        folder.mkdir(mode=0o711, exist_ok=True)
        folder.chmod(0o711)
        fsync_dir(folder.parent)


def release_machine(folder: Path) -> None:
    """Remove what only a running machine needs (RAM, sockets); logs and the disk stay."""
    for name in ("agent.sock", "qmp.sock", "vmm.json"):
        (folder / name).unlink(missing_ok=True)
    ram = folder / "vm" / "ram"
    try:
        ram.unlink(missing_ok=True)
    except OSError:  # a folder: `vm` is the VMM's to fill
        with contextlib.suppress(OSError):
            remove_all(ram)


async def remove_folder(folder: Path) -> None:
    """Remove a sandbox's folder with all in it; no failure if it is gone."""
    await asyncio.to_thread(remove_tree, folder)


def read_console(path: Path, offset: int, limit_bytes: int) -> tuple[bytes, int]:
    """Return up to `limit_bytes` of a console log from `offset` on, and where to go on.

    The log belongs to the VMM, so a link in its place is not followed. After a cut (see `trim_logs`) the
    offset starts at the beginning again.
    """
    try:
        file = open_plain(path, os.O_RDONLY)
    except OSError:
        return b"", 0
    with file:
        size = os.fstat(file.fileno()).st_size
        start = 0 if offset > size else offset
        file.seek(start)
        data = file.read(limit_bytes)
    return data, start + len(data)


def console_tail(path: Path, *, lines: int = 15, limit_bytes: int = 8192) -> str:
    """Return the last lines of a console log as text."""
    with contextlib.suppress(OSError):
        size = path.lstat().st_size
        data, _ = read_console(path, max(0, size - limit_bytes), limit_bytes)
        return "\n".join(data.decode("utf-8", "replace").splitlines()[-lines:]).strip()
    return ""


def trim_logs(folder: Path, console: Path) -> None:
    """Cut what a machine and its VMM log to its last part where it is over its limit. Blocks."""
    _trim(console)
    _empty_beginning(folder / "vmm.log")


def is_overfull(folder: Path, ram_mib: int) -> bool:
    """Return whether a VMM has put more into its own folder than one has to: its memory, twice, and some files.

    Only one that its guest took over does. Blocks.
    """
    allowed = 2 * ram_mib * MIB + _VMM_FILES_BYTES
    names = 0
    pending = [folder / "vm"]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    names += 1
                    allowed -= entry.stat(follow_symlinks=False).st_blocks * 512
                    if allowed < 0 or names > _VMM_FILES_MOST:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
        except OSError:  # gone meanwhile, or closed to us
            continue
    return False


def _trim(path: Path) -> None:
    """Cut a log that is over its limit to its last part; QEMU appends, so it writes on behind it."""
    try:
        file = open_plain(path, os.O_RDWR)
    except OSError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        if size > CONSOLE_LIMIT_BYTES:
            _keep_last(file, size)


def _keep_last(file: BinaryIO, size: int) -> None:
    file.seek(size - _CONSOLE_KEEP_BYTES)
    tail = file.read(_CONSOLE_KEEP_BYTES)
    file.truncate(0)
    file.seek(0)
    file.write(tail)


def _empty_beginning(path: Path) -> None:
    """Give back the space of a log but its last part, where it takes too much; Firecracker writes on where it was."""
    try:
        file = open_plain(path, os.O_RDWR)
    except OSError:
        return
    with file:
        found = os.fstat(file.fileno())
        before = found.st_size - _CONSOLE_KEEP_BYTES
        if found.st_blocks * 512 <= CONSOLE_LIMIT_BYTES or before <= 0:
            return
        try:
            make_hole(file.fileno(), 0, before)
        except OSError:  # this file system has no holes
            _keep_last(file, found.st_size)
