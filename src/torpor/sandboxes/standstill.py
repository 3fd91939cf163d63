"""Work in a machine that stands still meanwhile: QEMU stops one whose write finds no room on the host's disk.

Upkeep lets such a machine go on when there is room again, but not while its sandbox's task does something. What waits
for the guest in that task therefore does it itself; else it would wait for a machine that waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Final, TypeVar

from torpor.errors import InsufficientResources, VmmFailed
from torpor.sandboxes.machine import SandboxMachine
from torpor.sandboxes.room import check_start

T = TypeVar("T")

_LOOK_S: Final = 1.0
"""That a disk has room again is told by nobody."""


async def through_standstills(m: SandboxMachine, work: Awaitable[T]) -> T:
    """Await `work` in a machine that is meant to run, as `SandboxMachine.until_end` does; let it go on when it stopped."""
    watching = m.begin(_let_run(m), "standstill")
    try:
        return await m.until_end(work)
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _let_run(m: SandboxMachine) -> None:
    vmm = m.running_vmm()
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(InsufficientResources, VmmFailed):  # at the next look again
            if await vmm.status() == "paused":
                await check_start(m.parts)
                await vmm.resume()
