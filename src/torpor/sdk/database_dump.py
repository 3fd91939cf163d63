"""Writing a dump to a file: whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from torpor.base.aio import closing
from torpor.base.fsio import replacing


async def write_dump(source: AsyncGenerator[bytes, None], path: Path) -> int:
    """Write what comes to a file that takes the place of `path` when all is there; return the bytes."""
    size = 0
    scope = replacing(path)
    file = await asyncio.to_thread(scope.__enter__)
    try:
        async with closing(source) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
                size += len(chunk)
    except BaseException as exc:
        scope.__exit__(type(exc), exc, exc.__traceback__)
        raise
    await asyncio.to_thread(scope.__exit__, None, None, None)
    return size
