"""An async iterator that runs in a task of its own, so that a reader can wait for it with a limit.

The source is entered, iterated and closed in that one task. A reader that is cancelled, also by a scope
that cancels again at each await, never cuts the source's own cleanup short.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

from torpor.base.aio import Supervisor, finish

T = TypeVar("T")


class _End:
    """Marks the end of the items in the queue."""


_END = _End()


class Pump(Generic[T]):
    """Hands over the items of `source`, with at most `ahead` of them waiting; `aclose` must be called."""

    def __init__(self, source: AsyncGenerator[T, None], *, ahead: int = 4) -> None:
        self._source = source
        self._queue: asyncio.Queue[T | _End] = asyncio.Queue()
        self._slots = asyncio.Semaphore(ahead)
        self._stopped = False
        supervisor = Supervisor(lambda _name, _error: None)  # its failure is raised by `get`
        self._task = supervisor.spawn(self._run(), name="pump")
        self._task.add_done_callback(lambda _task: self._queue.put_nowait(_END))

    async def get(self, *, within_s: float | None = None) -> T:
        """Return the next item.

        Raises:
            StopAsyncIteration: there is no more, or `stop` was called.
            TimeoutError: nothing came in `within_s` seconds; nothing is lost, ask again.
            Exception: whatever the source raised.
        """
        async with asyncio.timeout(within_s):
            item = await self._queue.get()
        if self._stopped:
            raise StopAsyncIteration
        if isinstance(item, _End):
            self._queue.put_nowait(_END)  # for whoever asks again
            self._task.result()
            raise StopAsyncIteration
        self._slots.release()
        return item

    async def get_ready(self, *, within_s: float | None = None) -> list[T]:
        """Return the next item and those behind it that are there already. Raises as `get`."""
        items = [await self.get(within_s=within_s)]
        while not self._stopped and not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, _End):
                self._queue.put_nowait(_END)  # the next call says how it ended
                break
            self._slots.release()
            items.append(item)
        return items

    def stop(self) -> None:
        """End the source and wake the reader; what is still queued is dropped."""
        self._stopped = True
        self._task.cancel()
        self._queue.put_nowait(_END)

    async def aclose(self, *, within_s: float = 10.0) -> None:
        """End the source and return when its cleanup is done, at most `within_s` seconds later."""
        self._task.cancel()
        if not self._task.done():
            await finish(self._ended(), within_s=within_s)

    async def _ended(self) -> None:
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        async with contextlib.aclosing(self._source) as items:
            async for item in items:
                await self._slots.acquire()
                self._queue.put_nowait(item)
