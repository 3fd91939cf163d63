"""Writing a dump to a file: whole, or not at all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from torpor.base.aio import closing
from torpor.base.fsio import replacing
from torpor.errors import InvalidRequest


async def check_place(path: Path) -> None:
    """Raise `InvalidRequest` unless a file could be there."""
    if not await asyncio.to_thread(os.path.isdir, path.parent):
        raise InvalidRequest(
            f"cannot write {path}: there is no folder {path.parent}",
            hint="make it first",
            path=path,
        )
    if await asyncio.to_thread(os.path.isdir, path):
        raise InvalidRequest(
            f"cannot write {path}: it is a folder", hint=f"such as {path}/NAME.dump", path=path
        )


async def write_dump(source: AsyncGenerator[bytes, None], path: Path) -> int:
    """Write what comes to a file that takes the place of `path` when all is there; return the bytes.

    Raises:
        InvalidRequest: no file can be written there; what was there stays.
    """
    try:
        return await _written(source, path)
    except OSError as exc:
        raise InvalidRequest(f"cannot write {path}: {exc.strerror}", path=path) from exc


async def _written(source: AsyncGenerator[bytes, None], path: Path) -> int:
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
