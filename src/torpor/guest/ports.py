"""Ports in the guest, from the host's side: what listens, and byte streams to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from torpor.errors import GuestFailed, GuestUnreachable, HostNotReady, InvalidRequest, PortClosed
from torpor.guest.answers import port_info
from torpor.guest.calls import Calls
from torpor.guest.channel import Channel
from torpor.model_ports import LOOPBACK, PortInfo
from torpor_guest import protocol
from torpor_guest.stream import Stream, StreamBroken

CAPABILITY: Final = "ports"
_MAX_PORTS: Final = 10_000
_CONNECT_LIMIT_S: Final = 30.0
_CLOSE_LIMIT_S: Final = 5.0


class PortCalls(Calls):
    """List what listens, and connect to it."""

    async def ports(self) -> list[PortInfo]:
        """See `Guest.ports`."""
        self._check_ports()
        return await self._all_items("port.list", {}, port_info, limit=_MAX_PORTS)

    @contextlib.asynccontextmanager
    async def open_port(
        self, port: int, *, address: str | None = None
    ) -> AsyncIterator[PortConnection]:
        """See `Guest.open_port`."""
        self._check_ports()
        check_port(port, address)
        params: dict[str, object] = {"port": port, "address": address}
        with self._stream("port.connect", params) as stream:
            connection = PortConnection(self._channel, stream, port)
            await connection.begin()
            yield connection
            await connection.finish()

    def _check_ports(self) -> None:
        if CAPABILITY not in self._capabilities():
            raise HostNotReady(
                "the agent in this machine is too old for connections to its ports",
                hint="build its template anew, and make the sandbox again from it",
            )


class PortConnection:
    """See `torpor.guest.port.PortStream`."""

    def __init__(self, channel: Channel, stream: Stream, port: int) -> None:
        self._channel = channel
        self._stream = stream
        self._port = port
        self._has_ended = False

    async def begin(self) -> None:
        """Wait until the guest is connected; raise what it refuses with."""
        piece = await self._channel.receive(self._stream, limit_s=_CONNECT_LIMIT_S)
        if piece is None:
            self._channel.result(self._stream)
        if piece is None or piece[0] != protocol.CHANNEL_ITEMS:
            raise GuestFailed("the guest agent did not say that it is connected")

    async def read(self) -> bytes:
        """See `PortStream.read`."""
        piece = await self._channel.receive(self._stream, limit_s=None)
        if piece is None:
            if self._stream.result is not None:
                self._channel.result(self._stream)
            return b""
        if piece[0] != protocol.CHANNEL_BYTES:
            raise GuestFailed(f"the guest agent sent bytes of a port on channel {piece[0]}")
        return piece[1]

    async def write(self, data: bytes) -> None:
        """See `PortStream.write`."""
        try:
            await self._stream.send(protocol.CHANNEL_BYTES, data)
        except StreamBroken as exc:
            self._channel.result(self._stream)
            raise PortClosed(
                f"the program on port {self._port} takes no more", port=self._port
            ) from exc

    async def end(self) -> None:
        """See `PortStream.end`."""
        if not self._has_ended:
            self._has_ended = True
            self._stream.send_frame(protocol.END)

    async def finish(self) -> None:
        """Wait a moment for the guest's answer, if both directions have ended, so that nothing is cut."""
        if self._has_ended and self._stream.is_ended:
            with contextlib.suppress(TimeoutError, GuestUnreachable, StreamBroken):
                async with asyncio.timeout(_CLOSE_LIMIT_S):
                    await self._stream.until_closed()


def check_port(port: int, address: str | None = None) -> None:
    """Raise `InvalidRequest` unless that can be connected to in a guest."""
    if not 1 <= port <= 65535:
        raise InvalidRequest(f"{port} is no port", hint="a port is 1 to 65535")
    if address not in (None, *LOOPBACK):
        raise InvalidRequest(
            f"{address!r} cannot be reached in a machine", hint=f"one of {', '.join(LOOPBACK)}"
        )
