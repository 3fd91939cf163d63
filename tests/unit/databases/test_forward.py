"""Ports that lead to databases: bytes both ways, ends that are ends, and breaks that are breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from torpor.databases.forward import CONNECTIONS_MOST, Client, Forwards, carry
from torpor.errors import GenerationChanged, PortClosed, VmmFailed
from torpor.model_databases import DatabaseId

pytestmark = pytest.mark.anyio

ONE = DatabaseId("db_00000000000000000001")


class Echo:
    """A server at the far end that sends back what comes, in capitals."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        return await self._queue.get()

    async def write(self, data: bytes) -> None:
        await self._queue.put(data.upper())

    async def end(self) -> None:
        await self._queue.put(b"")


class World:
    def __init__(self) -> None:
        self.reports: list[str] = []
        self.failure: Exception | None = None
        self.served = 0
        self.forwards = Forwards(self.serve, lambda name, exc: self.reports.append(str(exc)))

    async def serve(self, _database_id: DatabaseId, client: Client) -> None:
        self.served += 1
        if self.failure is not None:
            raise self.failure
        await carry(client, Echo())


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    yield found
    await found.forwards.aclose()


async def asked(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    writer.write_eof()
    found = await reader.read()
    writer.close()
    return found


async def test_bytes_go_both_ways_to_their_end(world: World) -> None:
    port = await world.forwards.listen(ONE, None)
    text = b"select 1;" * 100_000
    assert await asyncio.wait_for(asked(port, text), 20) == text.upper()
    many = await asyncio.wait_for(asyncio.gather(*(asked(port, b"a") for _ in range(50))), 20)
    assert many == [b"A"] * 50
    assert world.reports == []


async def test_it_listens_on_its_port_again_or_on_another(world: World) -> None:
    port = await world.forwards.listen(ONE, None)
    assert await world.forwards.listen(ONE, None) == port
    await world.forwards.close(ONE)
    with pytest.raises(ConnectionRefusedError):
        await asked(port, b"a")
    assert await world.forwards.listen(ONE, port) == port
    await world.forwards.close(ONE)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert await world.forwards.listen(ONE, port) != port


@pytest.mark.parametrize(
    "failure", [PortClosed("gone"), GenerationChanged("it slept"), VmmFailed("it ended")]
)
async def test_a_failure_breaks_the_connection_off(world: World, failure: Exception) -> None:
    port = await world.forwards.listen(ONE, None)
    world.failure = failure
    with pytest.raises(ConnectionResetError):
        await asked(port, b"a")
    world.failure = None
    assert await asked(port, b"a") == b"A", "and the next is served"
    assert world.reports == (["it ended"] if isinstance(failure, VmmFailed) else [])


async def test_closing_breaks_off_what_is_open(world: World) -> None:
    port = await world.forwards.listen(ONE, None)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"a")
    assert await reader.read(1) == b"A"
    await world.forwards.close(ONE)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(1), 10)
    writer.close()


async def test_too_many_are_turned_away(world: World) -> None:
    port = await world.forwards.listen(ONE, None)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MOST)]
    for reader, writer in held:
        writer.write(b"a")
        await reader.read(1)
    with pytest.raises(ConnectionResetError):
        await asked(port, b"a")
    held[0][1].write_eof()
    assert await held[0][0].read() == b""
    while True:  # until that one is let go of
        try:
            assert await asked(port, b"a") == b"A"
            break
        except ConnectionResetError:
            await asyncio.sleep(0.01)
    for _, writer in held:
        writer.close()
