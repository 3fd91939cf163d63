"""Tasks that are never lost and cleanups that always run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def finish(cleanup: Coroutine[Any, Any, None], *, within_s: float | None) -> None:
    """Run `cleanup` to its end, at most `within_s` seconds, however often the caller is cancelled.

    None is for what a thread does to the disk: it cannot be broken off, and until it has ended nobody knows what is so.

    A cancellation that arrives meanwhile is raised again afterwards. The shield keeps anyio's scopes,
    which a streaming response runs in, from cancelling each await of the cleanup again.
    """

    async def bounded() -> None:
        async with asyncio.timeout(within_s):
            await cleanup

    task = asyncio.create_task(bounded(), name="cleanup")
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as exc:
                cancelled = exc
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            cancelled.add_note(f"cleanup also failed: {failure!r}")
        raise cancelled
    task.result()


async def both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Run two coroutines until both have ended; the failure of one ends the other, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(first)
            group.create_task(second)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


@contextlib.asynccontextmanager
async def closing(source: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Enter with `source`, and close it at the end (if it can be closed) before anything around it.

    A generator that is left half-way is otherwise closed by the garbage collector, later and elsewhere.
    """
    try:
        yield source
    finally:
        aclose = getattr(source, "aclose", None)
        if aclose is not None:
            await aclose()


class Supervisor:
    """Owns background tasks: keeps a reference, names them, reports their failures."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure

    def spawn(
        self, coro: Coroutine[Any, Any, T], *, name: str, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Start `coro` as a task called `name`, in `context` or the caller's; its failure goes to `on_failure`."""
        task = asyncio.create_task(coro, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._reaped)
        return task

    def launch(self, coro: Coroutine[Any, Any, Any], *, name: str) -> None:
        """Start `coro` as `spawn` does, for work whose end nobody waits for."""
        self._tasks.add(self.spawn(coro, name=name))

    async def aclose(self, *, within_s: float = 10.0) -> None:
        """Cancel all tasks and wait for them, at most `within_s` seconds."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def _reaped(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            self._on_failure(task.get_name(), exc)
