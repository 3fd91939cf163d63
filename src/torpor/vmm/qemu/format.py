"""Making an empty ext4 file system as a disk layer, without mounting anything and without root."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from torpor.base import proc
from torpor.errors import HostNotReady, InsufficientResources, VmmFailed
from torpor.layers.space import full_disk_told

_LIMIT_S = 300.0


async def format_volume(qemu_img: Path, path: Path, size_bytes: int) -> None:
    """Write a qcow2 layer with an empty ext4 of `size_bytes` to `path` (new). On any failure it is gone.

    The file system is made in a sparse file beside it; tables that the guest's kernel can make later are left to it.
    """
    tool = shutil.which("mke2fs") or shutil.which("mke2fs", path="/usr/sbin:/sbin")
    if tool is None:
        raise HostNotReady(
            "mke2fs is needed to make volumes", hint="run: sudo apt-get install e2fsprogs"
        )
    raw = path.with_name(f".{path.name}.raw")
    try:
        await asyncio.to_thread(_sparse, raw, size_bytes)
        argv = [tool, "-q", "-F", "-t", "ext4", "-m", "0"]
        await _run([*argv, "-E", "lazy_itable_init=1,lazy_journal_init=1", str(raw)], path)
        await _run(
            [str(qemu_img), "convert", "-f", "raw", "-O", "qcow2", str(raw), str(path)], path
        )
    except BaseException:
        await asyncio.to_thread(path.unlink, missing_ok=True)
        raise
    finally:
        await asyncio.to_thread(raw.unlink, missing_ok=True)


async def resize_overlay(qemu_img: Path, path: Path, size_bytes: int) -> None:
    """Make an overlay that nobody has open larger."""
    await _run([str(qemu_img), "resize", "-q", "-f", "qcow2", str(path), str(size_bytes)], path)


def _sparse(path: Path, size_bytes: int) -> None:
    with full_disk_told(str(path)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size_bytes)
        finally:
            os.close(fd)


async def _run(argv: list[str], path: Path) -> None:
    try:
        await proc.run(argv, timeout_s=_LIMIT_S)
    except proc.HostCommandFailed as exc:
        text = str(exc.facts.get("stderr"))
        if "No space left" in text:
            raise InsufficientResources(f"no disk space for {path}", path=path) from exc
        raise VmmFailed(f"{path} could not be made: {text.strip()[-500:]}", path=path) from exc
