"""Sandboxes that must not outlive the work they are for, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from torpor.base.aio import Supervisor, finish
from torpor.errors import NotFound, TorporError
from torpor.model import SandboxId

if TYPE_CHECKING:
    from torpor.sdk.sandbox import AsyncSandbox

T = TypeVar("T")

TTL_SECONDS = 86400
"""Of temporary sandboxes: if their maker is killed, they end by themselves after so long."""
CLEANUP_LIMIT_S = 900.0
"""For all that is still being made to be made, and all to be deleted."""
_TRIES = 3
_RETRY_S = 1.0


class Temporary:
    """Deletes at its end what was made in it and not kept, also what is still being made then."""

    def __init__(self) -> None:
        self.leftovers: dict[SandboxId, str] = {}
        """What could not be deleted, and why; its TTL ends it."""
        self._supervisor = Supervisor(lambda _name, _error: None)  # raised to whoever asked for it
        self._making: set[asyncio.Task[Any]] = set()
        self._made: dict[SandboxId, AsyncSandbox] = {}

    async def make(
        self, work: Coroutine[Any, Any, list[AsyncSandbox | TorporError]]
    ) -> list[AsyncSandbox | TorporError]:
        """Return what `work` makes; if the caller is cancelled, it is deleted when it is there."""
        task = self._supervisor.spawn(work, name="make temporary sandboxes")
        self._making.add(task)
        task.add_done_callback(self._note)
        return await asyncio.shield(task)

    def _note(self, task: asyncio.Task[list[AsyncSandbox | TorporError]]) -> None:
        if task.cancelled() or task.exception() is not None:
            return
        for made in task.result():
            if not isinstance(made, TorporError):
                self._made[made.id] = made

    def keep(self, sandbox_id: SandboxId) -> None:
        """Do not delete this one."""
        self._made.pop(sandbox_id, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await finish(self._end(), within_s=CLEANUP_LIMIT_S)
        except TimeoutError:
            self.leftovers.update(dict.fromkeys(self._made, "deleting it took too long"))

    async def _end(self) -> None:
        if self._making:
            await asyncio.wait(self._making)
        await asyncio.gather(*(self._delete(made) for made in list(self._made.values())))

    async def _delete(self, sandbox: AsyncSandbox) -> None:
        for turn in range(_TRIES):
            try:
                await sandbox.delete()
            except NotFound:
                pass
            except TorporError as error:
                if turn + 1 < _TRIES and error.retryable:
                    await asyncio.sleep(_RETRY_S)
                    continue
                self.leftovers[sandbox.id] = error.message
            self._made.pop(sandbox.id, None)
            return


async def answer_of(function: Callable[..., Any], *args: object) -> Any:
    """Return what a function returns; what can be awaited is awaited."""
    found = function(*args)
    return await found if inspect.isawaitable(found) else found


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function that may block in a thread of its own, which does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def settle(value: T | None, error: Exception | None) -> None:
        if done.done():
            return  # nobody waits any more
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value: T | None = None
        failure: Exception | None = None
        try:
            value = context.run(function)
        except Exception as error:  # noqa: BLE001 - raised to the caller, in the loop
            failure = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
        except BaseException as error:  # noqa: BLE001 - must not end the loop
            failure = TorporError(f"the call was ended by {error!r}")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name="torpor-callback", daemon=True).start()
    return await done
