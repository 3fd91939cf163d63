"""A VMM's process: who it runs as, how it is started and found again, and what it said last."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torpor.base import proc
from torpor.base.aio import finish
from torpor.base.fsio import read_json, remove_tree
from torpor.base.proc import ProcessId
from torpor.errors import DataDamaged, NotFound, TorporError
from torpor.vmm import confine
from torpor.vmm.base import MachineSpec
from torpor.vmm.handing import give_to_vmm

RECORD = "vmm.json"


def prepare(folder: Path, spec: MachineSpec) -> confine.User | None:
    """Make `folder/vm` and hand it, with the active layer, to the user that the VMM will run as.

    As root that is never another user than a machine's: what a daemon of an ordinary user left in there goes.
    """
    inner = folder / "vm"
    inner.mkdir(mode=0o700, exist_ok=True)
    owner = inner.stat().st_uid
    user = confine.choose_user(folder.parent)
    if user is not None:
        if confine.is_a_machines(owner):  # a second start keeps the user of the first
            user = confine.User(owner, owner, user.groups)
        elif owner != 0:
            remove_tree(inner)
            inner.mkdir(mode=0o700)
        os.chown(inner, user.uid, user.gid)
    for written in (spec.disk.active, *(disk.active for disk in spec.volumes)):
        if written is not None:
            give_to_vmm(folder, written)
    return user


async def start_process(argv: list[str], **how: Any) -> ProcessId:
    """Start a VMM; when the caller is cancelled while it starts, it does not run afterwards.

    `how` is what `proc.start_detached` takes.
    """
    start = functools.partial(proc.start_detached, argv, **how)
    starting = asyncio.get_running_loop().run_in_executor(None, start)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await finish(_ended(starting), within_s=30.0)
        raise


async def _ended(starting: asyncio.Future[ProcessId]) -> None:
    await asyncio.wait({starting})
    if starting.exception() is None:
        await starting.result().kill(within_s=15.0)


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return what was written about the machine in `folder` when it was started; None when nothing was. Blocks.

    Raises:
        DataDamaged: it is no such record.
    """
    try:
        record = read_json(folder / RECORD, limit_bytes=65536)
        assert isinstance(record, dict)
        process_in(record)
    except NotFound:
        return None
    except (AssertionError, KeyError, TypeError, ValueError) as exc:
        raise DataDamaged(f"{folder / RECORD} is not a process record: {exc}") from exc
    return record


def process_in(record: dict[str, Any]) -> ProcessId:
    """Return the process that a record tells of."""
    return ProcessId(int(record["pid"]), int(record["started_ticks"]))


def driver_in(record: dict[str, Any]) -> str:
    """Return the driver of the machine that a record tells of; the first of them did not say."""
    return str(record.get("driver", "qemu"))


def version_in(record: dict[str, Any]) -> str | None:
    """Return the version of the program that a record tells of; None: an earlier Torpor wrote it, and did not say."""
    found = record.get("version")
    return None if found is None else str(found)


def belonging(folder: Path, mark: bytes) -> list[ProcessId]:
    """Return the processes of `folder`: the recorded one, and any whose argv has `mark` in it and that runs inside it.

    The second kind exists when we died between starting a VMM and recording it; the folder may be its root. Blocks.
    """
    found: set[ProcessId] = set()
    with contextlib.suppress(TorporError):
        record = read_record(folder)
        if record is not None and process_in(record).alive():
            found.add(process_in(record))
    try:
        inside = (folder / "vm").stat()
    except FileNotFoundError:
        return sorted(found, key=lambda p: p.pid)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if not os.path.samestat((entry / "cwd").stat(), inside):
                continue
            if mark not in (entry / "cmdline").read_bytes():
                continue
        except OSError:  # gone, a kernel thread, or not ours to look at
            continue
        identity = ProcessId.of(int(entry.name))
        if identity is not None:
            found.add(identity)
    return sorted(found, key=lambda p: p.pid)


def tail(path: Path, *, lines: int, limit_bytes: int, harmless: Iterable[str] = ()) -> str:
    """Return the last lines of a VMM's log, without those that have something `harmless` in them. Blocks."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit_bytes))
        text = file.read(limit_bytes).decode("utf-8", "replace")
    useful = [line for line in text.splitlines() if not any(words in line for words in harmless)]
    return "\n".join(useful[-lines:]).strip()
