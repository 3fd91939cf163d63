"""Blocking work in threads, without leaving a thread behind at work on what its caller has closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

POOL = ThreadPoolExecutor(max_workers=8, thread_name_prefix="files")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Return `function(*args)`, run in a thread. When cancelled, wait for the thread before going on."""
    future = asyncio.get_running_loop().run_in_executor(POOL, function, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()
        raise
