"""Raw disks. A layer is a whole disk: a clone of the one before, by reflink where the file system can.

An empty overlay is a sparse file of the disk's size. It is filled from the chain's newest layer when a machine starts
on it, or from the disk that the machine writes when it is switched to it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from torpor.base import proc
from torpor.base.aio import finish
from torpor.base.fsio import clone_file, fsync_dir, fsync_file
from torpor.errors import HostNotReady, InsufficientResources, VmmFailed
from torpor.layers.lowly import bounded, make_for_reader
from torpor.layers.space import full_disk_told
from torpor.layers.whole import is_empty
from torpor.vmm.chains import chain, check_plain, needed

_CONVERT_S = 3600.0


def make_empty(path: Path, size_bytes: int) -> None:
    """Make an empty disk of that size at `path` (new). Blocks. Raises `InsufficientResources` on a full disk."""
    with full_disk_told(str(path)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size_bytes)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(fd)


async def fill(path: Path, layers: Sequence[Path], *, durable: bool = False) -> None:
    """Let an empty disk hold what `layers`, the oldest first, are; one that was filled before stays as it is.

    On any failure it is as empty as it was. Fsynced before it is there with `durable`.

    Raises:
        DataDamaged: a layer is qcow2, and is none or wants a file beside it.
        HostNotReady: a layer is qcow2, and there is no qemu-img.
        InsufficientResources: the disk is full.
        VmmFailed: a layer cannot be read.
    """
    found = await asyncio.to_thread(path.stat)
    if not layers or not await asyncio.to_thread(is_empty, path):
        return
    fresh = path.with_name(f".{path.name}")
    try:
        if layers[-1].suffix == ".qcow2":
            await _convert(layers, fresh)
        else:
            await finish(asyncio.to_thread(_clone, layers[-1], fresh), within_s=None)
        await asyncio.to_thread(_take_place, fresh, path, found, durable)
    except BaseException:
        await asyncio.to_thread(fresh.unlink, missing_ok=True)
        raise


def _clone(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with full_disk_told(str(target)):
        clone_file(source, target)


def _take_place(fresh: Path, path: Path, before: os.stat_result, durable: bool) -> None:
    """Let `fresh` be the disk at `path`, as large as that is, and its owner's."""
    if fresh.stat().st_size < before.st_size:
        os.truncate(fresh, before.st_size)
    os.chown(fresh, before.st_uid, before.st_gid)
    fresh.chmod(0o600)
    if durable:
        with full_disk_told(str(path)):
            fsync_file(fresh)
    fresh.rename(path)
    if durable:
        fsync_dir(path.parent)


def empty_again(path: Path) -> None:
    """Let a disk that nobody has open hold nothing, as before it was filled. Blocks."""
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


async def make_larger(path: Path, size_bytes: int) -> None:
    """Let a disk have that size; never a smaller one.

    Raises:
        InsufficientResources: the disk is full.
        VmmFailed: it cannot be.
    """
    await asyncio.to_thread(grow, path, size_bytes, path)


def grow(file: Path, size_bytes: int, path: Path) -> None:
    """Let the disk `path`, which `file` is a name of, have that size; see `make_larger`. Blocks."""
    try:
        with full_disk_told(str(path)):
            if file.stat().st_size < size_bytes:
                os.truncate(file, size_bytes)
    except OSError as exc:
        raise VmmFailed(f"{path} cannot be made larger: {exc}", path=path) from exc


async def _convert(layers: Sequence[Path], out: Path) -> None:
    """Write the disk that a chain with qcow2 layers is, as raw.

    A QEMU that was taken over may have written them, so whoever reads them may read layers and nothing else.
    """
    tool = shutil.which("qemu-img")
    if tool is None:
        raise HostNotReady(
            "a disk that QEMU made needs qemu-img to be read",
            hint="run: sudo apt-get install qemu-utils",
        )
    await finish(asyncio.to_thread(_begin, needed(layers), out), within_s=None)
    source = f"json:{json.dumps(chain(layers))}"
    words = [tool, "convert", "-O", "raw", "-S", "4k", source, str(out)]
    try:
        await proc.run([*bounded(confined=True), *words], timeout_s=_CONVERT_S)
    except proc.HostCommandFailed as exc:
        text = str(exc.facts.get("stderr"))
        if "No space left" in text:
            raise InsufficientResources(f"no disk space for {out}", path=out) from exc
        raise VmmFailed(f"{layers[-1]} cannot be made raw: {text}") from exc


def _begin(layers: Sequence[Path], out: Path) -> None:
    """Make the file that a chain is written to, when no layer of it leads out of it."""
    for path in layers:
        if path.suffix == ".qcow2":
            check_plain(path)
    out.unlink(missing_ok=True)
    with full_disk_told(str(out)):
        make_for_reader(out)
