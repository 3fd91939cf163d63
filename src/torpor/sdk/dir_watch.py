"""`files.watch_dir`: what happens in a folder of a sandbox, as it happens."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from torpor.base.aio import Supervisor, closing
from torpor.errors import InvalidRequest, NotFound, OperationTimeout, TorporError, error_from_wire
from torpor.model_file_events import FileEvent, FileEventType
from torpor.sdk.client import Client, connection, quote_part, raw_bytes
from torpor.sdk.loop import loop_thread
from torpor.sdk.sse import sse_events

EVENTS_MOST: Final = 10_000
"""Events that are kept for who does not ask for them; of more, `MISSED` alone."""
WATCH_S: Final = 60.0
"""Seconds that an asynchronous watch lasts unless its caller says otherwise; as it is there."""
_BEGIN_LIMIT_S: Final = 60.0
_MISSED: Final = FileEvent(name="", type=FileEventType.MISSED)

OnEvent = Callable[[FileEvent], Awaitable[None] | None]
OnExit = Callable[[Exception], Awaitable[None] | None]


class AsyncWatchHandle:
    """A folder that is watched; `stop` ends it. It keeps the sandbox from falling asleep by itself."""

    def __init__(
        self,
        client: Client,
        sandbox_id: str,
        path: str,
        *,
        recursive: bool,
        on_event: OnEvent | None = None,
        on_exit: OnExit | None = None,
        timeout: float | None = None,
    ) -> None:
        self._client = client
        self._url = f"/v1/sandboxes/{quote_part(sandbox_id)}/fs/events"
        self._query = {"path": path, "recursive": recursive}
        self._what = f"the watch of {path} in {sandbox_id}"
        self._on_event = on_event or self._keep
        self._on_exit = on_exit
        self._timeout = timeout or None
        self._kept: deque[FileEvent] = deque()
        self._failure: Exception | None = None
        self._supervisor = Supervisor(lambda _name, _error: None)  # `_run` tells its own failure
        self._is_stopped = False

    async def start(self) -> None:
        """Return when whatever happens from now on will be told; a sandbox that sleeps is woken.

        Raises:
            NotFound: there is no such sandbox or folder.
            InvalidRequest: it is no folder.
            LimitExceeded: too much is watched already, or it has too many folders below it.
        """
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor.launch(self._run(begun), name=self._what)
        try:
            async with asyncio.timeout(_BEGIN_LIMIT_S):
                await begun
        except TimeoutError as exc:
            raise OperationTimeout(f"timeout: {self._what} did not begin") from exc
        finally:
            if not begun.done() or begun.cancelled() or begun.exception() is not None:
                await self.stop()

    async def stop(self) -> None:
        """End it. Idempotent."""
        self._is_stopped = True
        await self._supervisor.aclose()

    def take(self) -> list[FileEvent]:
        """Return what happened since the last call.

        Raises:
            NotFound: the folder was removed or moved away, and all that was told of it was taken.
            InvalidRequest: it was stopped.
            TorporError: why nothing more is told, such as a sandbox that was put down meanwhile.
        """
        if self._is_stopped:
            raise InvalidRequest(f"{self._what} was stopped", hint="begin another: files.watch_dir")
        if not self._kept and self._failure is not None:
            raise self._failure
        found = list(self._kept)
        self._kept.clear()
        return found

    def _keep(self, event: FileEvent) -> None:
        if len(self._kept) < EVENTS_MOST:
            self._kept.append(event)
        elif self._kept[-1] is not _MISSED:
            self._kept.append(_MISSED)

    async def _run(self, begun: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._follow(begun)
        except TimeoutError:
            self._failure = OperationTimeout(
                f"timeout: {self._what} lasted {self._timeout:g} s, as it was to",
                hint="give it more time (timeout=0: no limit)",
            )
        except Exception as error:  # noqa: BLE001 - a callback's, too: it is told to who asks
            self._failure = error
        if self._failure is not None and not begun.done():
            begun.set_exception(self._failure)
        elif self._failure is not None and self._on_exit is not None:
            await _called(self._on_exit(self._failure))

    async def _follow(self, begun: asyncio.Future[None]) -> None:
        reply = connection(self._client).stream("GET", self._url, query=self._query)
        async with reply as body, closing(sse_events(raw_bytes(body))) as events:
            async for event in events:
                if event.name == "error":
                    raise error_from_wire(event.data)
                if event.name == "gone":
                    raise NotFound(
                        f"{self._what} is over: the folder was removed or moved away",
                        hint="watch the one that is there now",
                    )
                if event.name == "following":
                    begun.set_result(None)
                elif event.name == "change":
                    await _called(self._on_event(_event(event.data)))
        raise TorporError(f"{self._what} ended without a word")


class WatchHandle:
    """The synchronous face of `AsyncWatchHandle`, with `get_new_events` in place of a callback."""

    def __init__(self, handle: AsyncWatchHandle) -> None:
        self._handle = handle

    def get_new_events(self) -> list[FileEvent]:
        """Return what was told since the last call; it may come some milliseconds after what happened.

        Raises:
            NotFound: the folder was removed or moved away, and all that was told of it was taken.
            InvalidRequest: it was stopped.
            TorporError: why nothing more is told, such as a sandbox that was put down meanwhile.
        """
        return loop_thread.call(self._handle.take)

    def stop(self) -> None:
        """End it. Idempotent."""
        loop_thread.run(self._handle.stop())


async def _called(answer: Awaitable[None] | None) -> None:
    if inspect.isawaitable(answer):
        await answer


def _event(body: dict[str, Any]) -> FileEvent:
    return FileEvent(name=body["name"], type=FileEventType(body["type"]))
