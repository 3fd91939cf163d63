"""The console log of a machine, as those see it who read along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from torpor.model import SandboxId, SandboxInfo
from torpor.sandboxes import folder as files
from torpor.sandboxes.lifecycle import WITH_MACHINE
from torpor.sandboxes.parts import Parts

_CHUNK = 64 << 10
_POLL_S = 0.5
"""QEMU appends to a file and tells nobody; a log that is followed is looked at this often."""


async def console(
    parts: Parts,
    sandbox_id: SandboxId,
    get: Callable[[SandboxId], Awaitable[SandboxInfo]],
    *,
    follow: bool,
) -> AsyncIterator[bytes]:
    """Yield the console log; with `follow`, go on until `get` says that the machine ended."""
    info = await get(sandbox_id)
    path = parts.driver.console(files.folder_of(parts.home, sandbox_id))
    offset = 0
    while True:
        lives = info.state in WITH_MACHINE
        data, offset = await asyncio.to_thread(files.read_console, path, offset, _CHUNK)
        if data:
            yield data
        elif not (follow and lives):
            return
        else:
            await asyncio.sleep(_POLL_S)
            info = await get(sandbox_id)
