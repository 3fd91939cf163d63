"""Blocking work in threads, without leaving a thread behind at work on what its caller has closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torpor_guest import errors
from torpor_guest.errors import AgentError

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


async def in_own_thread(function: Callable[..., T], *args: Any) -> T:
    """Return `function(*args)`, run in a thread that was never busy. When cancelled, leave it to itself."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            result = function(*args)
        except Exception as exc:  # noqa: BLE001  # handed to who waits
            tell(loop, ended, failure=exc)
        else:
            tell(loop, ended, result)

    start_thread(work)
    return await ended


def start_thread(work: Callable[[], None]) -> None:
    """Start a thread.

    Raises:
        AgentError: the machine has no room for one.
    """
    try:
        threading.Thread(target=work, name="disk", daemon=True).start()
    except RuntimeError as exc:
        raise AgentError(errors.FAILED, f"the agent cannot start a thread: {exc}") from exc


def tell(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    result: Any = None,
    *,
    failure: Exception | None = None,
) -> None:
    """Settle `future` from any thread; nobody needs to wait for it."""

    def settle() -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)
            future.exception()

    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(settle)
