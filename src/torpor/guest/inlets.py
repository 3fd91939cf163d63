"""Ports of a guest's loopback that lead to the host, from the host's side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from torpor.base.aio import Supervisor
from torpor.errors import GuestFailed, HostNotReady, NotFound, TorporError
from torpor.guest.calls import Calls
from torpor.guest.port import PortStream
from torpor.guest.ports import PortConnection, check_port
from torpor_guest.protocol import ItemBuffer, ProtocolError

CAPABILITY: Final = "inlets"
AT_ONCE: Final = 64
"""Connections of one port that are carried at the same time; more wait in the guest, and are closed there in time."""


class InletCalls(Calls):
    """Take what programs in the machine connect to."""

    async def serve_inlet(
        self,
        port: int,
        serve: Callable[[PortStream], Awaitable[None]],
        *,
        listens: Callable[[], None] = lambda: None,
    ) -> None:
        """See `Guest.serve_inlet`."""
        if CAPABILITY not in self._capabilities():
            raise HostNotReady(
                "the agent in this machine is too old for ports that lead to the host",
                hint="build its template anew, and make the sandbox again from it",
            )
        check_port(port)
        supervisor = Supervisor(lambda _name, _error: None)  # whoever serves reports
        slots = asyncio.Semaphore(AT_ONCE)
        buffer = ItemBuffer()
        stream = self._channel.start("inlet.serve", {"port": port}, is_watched=False)

        async def one(connection: int) -> None:
            try:
                with contextlib.suppress(NotFound):  # it waited too long, or is gone
                    async with self._taken(connection, port) as taken:
                        await serve(taken)
            finally:
                slots.release()

        try:
            while (piece := await self._channel.receive(stream, limit_s=None)) is not None:
                for item in buffer.feed(piece[1]):
                    number = item.get("connection")
                    if number is None:
                        listens()
                    elif isinstance(number, int):
                        await slots.acquire()
                        supervisor.launch(_quiet(one(number)), name=f"inlet {port}")
            self._channel.result(stream)
        except ProtocolError as exc:
            raise GuestFailed(f"the guest's word on its port {port} makes no sense: {exc}") from exc
        finally:
            self._channel.release(stream)
            await supervisor.aclose()

    @contextlib.asynccontextmanager
    async def _taken(self, connection: int, port: int) -> AsyncIterator[PortConnection]:
        with self._stream("inlet.take", {"connection": connection}) as stream:
            found = PortConnection(self._channel, stream, port)
            await found.begin()
            yield found
            await found.finish()


async def _quiet(work: Awaitable[None]) -> None:
    with contextlib.suppress(TorporError):
        await work
