"""The ports of a guest that is no guest: those of this machine's own loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from torpor.errors import GuestUnreachable, PortClosed
from torpor.guest.ports import check_port
from torpor.model_ports import LOOPBACK, PortInfo


class FakePorts:
    """Lists and opens ports of the host."""

    is_cut: Any
    """Whether the channel is cut; or an event that says so."""

    async def ports(self) -> list[PortInfo]:
        """What `/proc/net` of this machine says, without whose it is."""
        self._check_cut()
        return await asyncio.to_thread(self._listed)

    def _listed(self) -> list[PortInfo]:
        found = []
        for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A":
                    host, _, port = words[1].partition(":")
                    raw = b"".join(
                        struct.pack("=I", int(host[at : at + 8], 16))
                        for at in range(0, len(host), 8)
                    )
                    found.append(
                        PortInfo(
                            port=int(port, 16),
                            address=socket.inet_ntop(family, raw),
                            user=words[7],
                            pid=None,
                            process=None,
                        )
                    )
        return sorted(found, key=lambda info: (info.port, info.address))

    @contextlib.asynccontextmanager
    async def open_port(
        self, port: int, *, address: str | None = None
    ) -> AsyncIterator[FakePortStream]:
        """A connection to this machine's own port."""
        self._check_cut()
        check_port(port, address)
        for host in (address,) if address else LOOPBACK:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port)
                break
        else:
            raise PortClosed(f"nothing listens on port {port} of the machine's loopback", port=port)
        stream = FakePortStream(self, reader, writer, port)
        try:
            yield stream
            await stream.finish()
        finally:
            stream.reset()

    def _check_cut(self) -> None:
        if self.is_cut.is_set() if isinstance(self.is_cut, asyncio.Event) else self.is_cut:
            raise GuestUnreachable("the guest channel was cut")


class FakePortStream:
    """See `torpor.guest.port.PortStream`."""

    def __init__(
        self,
        guest: FakePorts,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        port: int,
    ) -> None:
        self._guest = guest
        self._reader = reader
        self._writer = writer
        self._port = port
        self._ended = [False, False]

    async def read(self) -> bytes:
        """The next bytes."""
        waiting = asyncio.ensure_future(self._reader.read(65536))
        try:
            while not (await asyncio.wait({waiting}, timeout=0.02))[0]:
                self._guest._check_cut()
            data = waiting.result()
        except ConnectionError as exc:
            raise PortClosed("the program broke the connection off", port=self._port) from exc
        finally:
            waiting.cancel()
        self._ended[0] = not data
        return data

    async def write(self, data: bytes) -> None:
        """Send."""
        self._guest._check_cut()
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as exc:
            raise PortClosed("the program takes no more", port=self._port) from exc

    async def end(self) -> None:
        """Say that no more is sent."""
        if not self._ended[1]:
            self._ended[1] = True
            with contextlib.suppress(OSError):
                self._writer.write_eof()

    async def finish(self) -> None:
        """Close well if both directions have ended."""
        if all(self._ended):
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    def reset(self) -> None:
        """Close, so that the program notices that it was cut."""
        with contextlib.suppress(OSError):
            self._writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", int(not all(self._ended)), 0)
            )
        self._writer.transport.abort()
