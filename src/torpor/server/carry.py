"""A limit on silence, which every connection through the daemon needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from torpor.errors import OperationTimeout

IDLE_S: Final = 3600.0
"""Seconds without a byte in either direction after which a connection into a machine is closed."""
IDLE_MOST_S: Final = 7 * 86400.0
HEAD_WAIT_S: Final = 600.0
"""How long a program in a machine may think before it answers a request."""


@contextlib.asynccontextmanager
async def not_idle(
    limit_s: float, what: str = "the connection was idle"
) -> AsyncIterator[Callable[[], None]]:
    """Enter with what notes that something happened.

    Raises:
        OperationTimeout: nothing did for `limit_s` seconds.
    """
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield lambda: limit.reschedule(loop.time() + limit_s)
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise OperationTimeout(f"timeout: {what} for {limit_s:g} s", hint="connect again") from exc
