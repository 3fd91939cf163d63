"""The one event loop that serves all synchronous calls, in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_CANCEL_LIMIT_S = 5.0


class LoopThread:
    """An event loop in a daemon thread; started with the first call, closed when the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and return what it returns; an interrupt cancels it and waits for that."""
        loop = self._started()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of the asynchronous SDK cannot make synchronous calls")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                with contextlib.suppress(BaseException):
                    concurrent.futures.wait({future}, timeout=_CANCEL_LIMIT_S)
            raise

    def iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of `source`; it is closed when the caller stops early."""
        try:
            while True:
                try:
                    item = self.run(_next(source))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.run(source.aclose())

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop's thread, where `asyncio.get_running_loop` works."""

        async def work() -> T:
            return function()

        return self.run(work())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a fork has no threads but its own
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="torpor-sdk", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def close(self) -> None:
        """End the loop and close its connections; the next call starts another."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or self._pid != os.getpid():
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not None:
            thread.join(_CANCEL_LIMIT_S)
        atexit.unregister(self.close)


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await anext(source)


loop_thread = LoopThread()
