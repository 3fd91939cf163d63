"""Which version a program says it is: asked once for each file, since starting one takes some 40 ms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

_said: dict[tuple[str, int, int, int], str] = {}
"""By path, inode, size and time of change: another program at the same path is asked anew."""


async def remembered(binary: Path, ask: Callable[[Path], Awaitable[str]]) -> str:
    """Return what `ask` says of a program, or said before of the very same file.

    Raises:
        OSError: there is no such file. Besides, whatever `ask` raises, which is not remembered.
    """
    found = await asyncio.to_thread(binary.stat)
    key = (str(binary), found.st_ino, found.st_size, found.st_mtime_ns)
    if key not in _said:
        _said[key] = await ask(binary)
    return _said[key]
