"""`sandbox.hold()`: keeps a sandbox from falling asleep by itself while a block runs."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from torpor.base.aio import Supervisor, finish
from torpor.base.ids import new_id
from torpor.errors import DaemonUnreachable, GuestUnreachable, OperationTimeout, TorporError
from torpor.sdk.client import Client, connection, quote_part
from torpor.sdk.loop import loop_thread

LEASE_SECONDS = 60
"""How long a hold outlives a client that died."""
_RENEWALS = 3
"""Renewals a lease; so two may be lost."""
_RETRY_S = 1.0
_RELEASE_LIMIT_S = 5.0
_PASSING = (DaemonUnreachable, GuestUnreachable, OperationTimeout)
"""Failures that the next renewal may not meet."""


class AsyncHold:
    """A lease that is renewed in the background; leaving the block ends it."""

    def __init__(self, client: Client, sandbox_id: str, *, lease_seconds: int) -> None:
        self._id = new_id("hold")
        self._lost: TorporError | None = None
        self._client = client
        self._path = f"/v1/sandboxes/{quote_part(sandbox_id)}/holds/{self._id}"
        self._seconds = lease_seconds
        self._supervisor = Supervisor(self._failed)

    @property
    def id(self) -> str:
        """The hold's id."""
        return self._id

    @property
    def lost(self) -> TorporError | None:
        """Why the hold could not be renewed and was given up; None: it holds."""
        return self._lost

    async def acquire(self) -> None:
        """Hold the sandbox, which is woken for it, and renew that until `release`.

        Raises:
            NotFound: there is no such sandbox.
            WrongState: it is neither running nor asleep.
        """
        await self._renew()
        self._supervisor.launch(self._keep(), name=f"renew {self._id}")

    async def release(self) -> None:
        """Let the sandbox sleep when it will."""
        await self._supervisor.aclose(within_s=_RELEASE_LIMIT_S)
        try:
            await connection(self._client).call("DELETE", self._path, limit_s=_RELEASE_LIMIT_S)
        except TorporError:
            return  # the sandbox is gone, or the lease will run out

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await finish(self.release(), within_s=2 * _RELEASE_LIMIT_S)

    async def _renew(self) -> None:
        await connection(self._client).call("POST", self._path, body={"seconds": self._seconds})

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / _RENEWALS)
            await self._renew_again()

    async def _renew_again(self) -> None:
        while True:
            try:
                await self._renew()
            except _PASSING:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _failed(self, _name: str, error: BaseException) -> None:
        self._lost = error if isinstance(error, TorporError) else TorporError(repr(error))


class Hold:
    """The synchronous face of `AsyncHold`."""

    def __init__(self, hold: AsyncHold) -> None:
        self._hold = hold

    @property
    def id(self) -> str:
        """The hold's id."""
        return self._hold.id

    @property
    def lost(self) -> TorporError | None:
        """Why the hold could not be renewed and was given up; None: it holds."""
        return self._hold.lost

    def acquire(self) -> None:
        """Hold the sandbox until `release`. Raises `NotFound`, `WrongState`."""
        loop_thread.run(self._hold.acquire())

    def release(self) -> None:
        """Let the sandbox sleep when it will."""
        loop_thread.run(self._hold.release())

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
