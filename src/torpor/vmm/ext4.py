"""An empty ext4 file system in a plain file, made without mounting anything and without root."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from torpor.base import proc
from torpor.errors import HostNotReady, InsufficientResources, VmmFailed
from torpor.layers.space import full_disk_told

_LIMIT_S = 300.0


async def make_ext4(path: Path, size_bytes: int) -> None:
    """Write an empty ext4 of that size to a sparse file at `path` (new). On any failure it is gone. Not fsynced.

    Tables that the guest's kernel can make later are left to it.

    Raises:
        HostNotReady: mke2fs is missing.
        InsufficientResources: the disk is full.
        VmmFailed: mke2fs fails.
    """
    tool = shutil.which("mke2fs") or shutil.which("mke2fs", path="/usr/sbin:/sbin")
    if tool is None:
        raise HostNotReady(
            "mke2fs is needed to make volumes", hint="run: sudo apt-get install e2fsprogs"
        )
    argv = [tool, "-q", "-F", "-t", "ext4", "-m", "0"]
    try:
        await asyncio.to_thread(_sparse, path, size_bytes)
        await run([*argv, "-E", "lazy_itable_init=1,lazy_journal_init=1", str(path)], path)
    except BaseException:
        await asyncio.to_thread(path.unlink, missing_ok=True)
        raise


async def run(argv: list[str], path: Path) -> None:
    """Run a tool that makes `path`. Raises `InsufficientResources` or `VmmFailed`, with what the tool said."""
    try:
        await proc.run(argv, timeout_s=_LIMIT_S)
    except proc.HostCommandFailed as exc:
        text = str(exc.facts.get("stderr"))
        if "No space left" in text:
            raise InsufficientResources(f"no disk space for {path}", path=path) from exc
        raise VmmFailed(f"{path} could not be made: {text.strip()[-500:]}", path=path) from exc


def _sparse(path: Path, size_bytes: int) -> None:
    with full_disk_told(str(path)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size_bytes)
        finally:
            os.close(fd)
