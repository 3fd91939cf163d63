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
        self._sources: set[AsyncGenerator[Any, None]] = set()
        """What is iterated and not yet closed; touched in the loop's thread only."""

    def run(self, work: Coroutine[Any, Any, T], *, cleanup_limit_s: float = _CANCEL_LIMIT_S) -> T:
        """Run `work` in the loop and return what it returns; an interrupt cancels it and waits for its end.

        It waits `cleanup_limit_s` seconds at most; a second interrupt breaks that off.
        """
        loop = self._started()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of the asynchronous SDK cannot make synchronous calls")
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(loop.create_task(work))
            tasks[0].add_done_callback(lambda task: _settle(done, task))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        loop.call_soon_threadsafe(begin)
        try:
            return done.result()
        except BaseException:
            if not done.done():
                loop.call_soon_threadsafe(cancel)
                concurrent.futures.wait({done}, timeout=cleanup_limit_s)
            raise

    def iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of `source`; it is closed when the caller stops early."""
        try:
            while True:
                try:
                    item = self.run(self._next(source))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._close_soon(source)

    def _close_soon(self, source: AsyncGenerator[T, None]) -> None:
        """Close `source` without waiting: the garbage collector may call this in any thread, also the loop's."""
        loop = self._loop
        if loop is not None and self._pid == os.getpid():
            closing = self._close(source)
            try:
                asyncio.run_coroutine_threadsafe(closing, loop)
            except RuntimeError:  # the loop is closed, and the source with it
                closing.close()

    async def _next(self, source: AsyncGenerator[T, None]) -> T:
        self._sources.add(source)
        return await anext(source)

    async def _close(self, source: AsyncGenerator[Any, None]) -> None:
        if source in self._sources:
            self._sources.discard(source)
            await source.aclose()

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
            loop.run_until_complete(self._finish())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    async def _finish(self) -> None:
        """End what still runs, then close what is still iterated, one by one."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CANCEL_LIMIT_S)
        for source in list(self._sources):
            with contextlib.suppress(Exception):
                await self._close(source)

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


def _settle(done: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        done.set_exception(concurrent.futures.CancelledError())
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


loop_thread = LoopThread()
