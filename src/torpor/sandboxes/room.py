"""Room on the disk: RAM images, which can be made again, go before anything is refused for lack of space."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from torpor.base.fsio import free_bytes
from torpor.base.units import GIB, MIB, format_bytes
from torpor.errors import InsufficientResources
from torpor.layers.manifest import Manifest
from torpor.sandboxes.parts import Parts
from torpor.vmm.base import Vmm

CAPTURE_MARGIN_BYTES = 8 * MIB
"""What a snapshot writes beside the changed pages: devices, the next overlay, digests, manifest, rows."""
START_MARGIN_BYTES = 4 * MIB
"""What a machine's start writes: its overlay, sockets and logs, and the first things that it does."""
WORK_MARGIN_BYTES = 64 * MIB
"""What is to be free beside a snapshot before work in the machine begins that the snapshot is to undo."""
LOW_BYTES = 2 * GIB
"""Free space below which images that nobody needs now are removed (on small disks: a tenth of the disk)."""


async def check_capture(parts: Parts, vmm: Vmm, ram_mib: int, *, more_bytes: int = 0) -> None:
    """Raise `InsufficientResources`, with the numbers, when a snapshot of `vmm` may not fit on the disk.

    How much a machine changed is only looked at when the disk could not take all of it. `more_bytes` are to
    be free beside it.
    """
    root = parts.home.root
    margin = CAPTURE_MARGIN_BYTES + more_bytes
    need = await vmm.capture_bytes(ram_mib * MIB) + margin
    free = await asyncio.to_thread(free_bytes, root)
    if free >= need:
        return
    need = min(need, await vmm.capture_bytes() + margin)
    if free < need:
        await make_room(parts, need)
        free = await asyncio.to_thread(free_bytes, root)
    if free < need:
        raise InsufficientResources(
            f"a snapshot may write {format_bytes(need)} to the disk and {format_bytes(free)} are free at {root}",
            hint="free disk space: delete snapshots or sandboxes that are not needed (torpor layers)",
            needed_bytes=need,
            free_bytes=free,
        )


async def check_start(parts: Parts, layers: Sequence[Path] = (), *, more_bytes: int = 0) -> None:
    """Raise `InsufficientResources` when the disk has no room for what the start of a machine, over `layers`, writes."""
    root = parts.home.root
    need = START_MARGIN_BYTES + more_bytes
    if layers:
        need += await parts.driver.start_bytes(layers)
    free = await asyncio.to_thread(free_bytes, root)
    if free < need:
        await make_room(parts, need)
        free = await asyncio.to_thread(free_bytes, root)
    if free < need:
        raise InsufficientResources(
            f"a machine needs {format_bytes(need)} of disk to start and {format_bytes(free)} are free at {root}",
            hint="free disk space: delete snapshots or sandboxes that are not needed (torpor layers)",
            needed_bytes=need,
            free_bytes=free,
        )


async def make_room(parts: Parts, want_free_bytes: int) -> int:
    """Remove images that no machine maps and no wake needs soon until so much is free; return the bytes freed."""

    def work() -> int:
        missing = want_free_bytes - free_bytes(parts.home.root)
        return 0 if missing <= 0 else parts.layers.images.evict(missing, parts.images_in_use)

    return await asyncio.to_thread(work)


async def keep_room(parts: Parts) -> int:
    """Make room when little is left; return the bytes freed."""
    return await make_room(parts, min(LOW_BYTES, await asyncio.to_thread(_tenth, parts.home.root)))


async def image_of(parts: Parts, manifest: Manifest) -> Path:
    """Return a snapshot's RAM image, made if need be; others make room for it. Raises as `LayerStore.image`."""
    try:
        return await asyncio.to_thread(parts.layers.image, manifest)
    except InsufficientResources:
        need = manifest.info.ram_mib * MIB + CAPTURE_MARGIN_BYTES
        if not await make_room(parts, need):
            raise
    return await asyncio.to_thread(parts.layers.image, manifest)


def _tenth(root: Path) -> int:
    found = os.statvfs(root)
    return found.f_blocks * found.f_frsize // 10
