"""Making an empty ext4 file system as a qcow2 layer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from torpor.errors import VmmFailed
from torpor.vmm.chains import check_plain
from torpor.vmm.ext4 import make_ext4, run


async def format_volume(qemu_img: Path, path: Path, size_bytes: int) -> None:
    """Write a qcow2 layer with an empty ext4 of `size_bytes` to `path` (new). On any failure it is gone.

    The file system is made in a sparse file beside it.
    """
    raw = path.with_name(f".{path.name}.raw")
    try:
        await make_ext4(raw, size_bytes)
        await run([str(qemu_img), "convert", "-f", "raw", "-O", "qcow2", str(raw), str(path)], path)
    except BaseException:
        await asyncio.to_thread(path.unlink, missing_ok=True)
        raise
    finally:
        await asyncio.to_thread(raw.unlink, missing_ok=True)


async def resize_overlay(qemu_img: Path, path: Path, size_bytes: int) -> None:
    """Make an overlay that nobody has open larger; a VMM that was taken over may have written it.

    Raises:
        DataDamaged: it wants a file beside it, or is no qcow2 file.
        VmmFailed: it is gone, or cannot be made larger.
    """
    try:
        await asyncio.to_thread(check_plain, path)
    except FileNotFoundError as exc:
        raise VmmFailed(f"{path} is gone and cannot be made larger", path=path) from exc
    await run([str(qemu_img), "resize", "-q", "-f", "qcow2", str(path), str(size_bytes)], path)
