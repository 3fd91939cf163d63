"""Ports: listed and reached through the channel, each direction by itself, and never beyond the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.contract.guest.agent import Agent, eventually
from torpor.errors import GuestUnreachable, InvalidRequest, PortClosed
from torpor.guest.client import GuestClient
from torpor.guest.port import Guest, PortStream

pytestmark = pytest.mark.anyio

MIB = 1 << 20
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(serve: Serve, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server on this machine's loopback, which is the guest's here; enters with its port."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(served, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, until its end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def rest_of(stream: PortStream) -> bytes:
    """All that comes."""
    found = bytearray()
    while data := await stream.read():
        found += data
    return bytes(found)


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_bytes_go_both_ways_and_each_direction_ends_by_itself(guest: Guest) -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()  # to its end, before a word of answer
        writer.write(asked[::-1])

    async with serving(late) as port, guest.open_port(port) as stream:
        await stream.write(b"abc")
        await stream.write(bytes(range(256)))
        await stream.end()
        assert await rest_of(stream) == (b"abc" + bytes(range(256)))[::-1]


async def test_a_program_may_end_first_and_still_be_sent_to(guest: Guest) -> None:
    got = asyncio.get_running_loop().create_future()

    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.write_eof()
        got.set_result(await reader.read())

    async with serving(first) as port, guest.open_port(port) as stream:
        assert await rest_of(stream) == b"hello"
        await stream.write(b"and you")
        await stream.end()
        assert await asyncio.wait_for(got, 10) == b"and you"


async def test_an_answer_comes_though_the_program_takes_no_more(guest: Guest) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"too large")
        await writer.drain()
        writer.write_eof()
        while await reader.read(65536):
            pass

    async with serving(refuse) as port, guest.open_port(port) as stream:
        await stream.write(bytes(100_000))
        assert await rest_of(stream) == b"too large"


async def test_megabytes_arrive_as_they_were_sent(guest: Guest) -> None:
    content = os.urandom(3 * MIB)
    async with serving(echo) as port, guest.open_port(port) as stream:

        async def send() -> None:
            for start in range(0, len(content), 100_000):
                await stream.write(content[start : start + 100_000])
            await stream.end()

        sending = asyncio.ensure_future(send())
        assert await rest_of(stream) == content
        await sending


async def test_a_port_on_which_nothing_listens_is_told_so(guest: Guest) -> None:
    port = free_port()
    with pytest.raises(PortClosed, match=f"nothing listens on port {port}"):
        async with guest.open_port(port):
            raise AssertionError("it is connected")


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_what_is_no_port_is_refused(guest: Guest, port: int) -> None:
    with pytest.raises(InvalidRequest, match="no port"):
        async with guest.open_port(port):
            raise AssertionError("it is connected")


@pytest.mark.parametrize("address", ["10.0.2.2", "169.254.169.254", "0.0.0.0", "localhost", ""])
async def test_nothing_but_the_loopback_can_be_reached(guest: Guest, address: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be reached"):
        async with guest.open_port(80, address=address):
            raise AssertionError("it is connected")


@pytest.mark.parametrize("address", ["10.0.2.2", "0.0.0.0", 7, ["::1"], ""])
async def test_the_agent_itself_reaches_nothing_but_the_loopback(
    client: GuestClient, address: object
) -> None:
    with pytest.raises(InvalidRequest, match="can be reached"):
        await client._channel.call("port.connect", {"port": 80, "address": address})
    for port in (0, 70000, "80", None, True, -5):
        with pytest.raises(InvalidRequest):
            await client._channel.call("port.connect", {"port": port})


async def test_a_server_on_the_other_loopback_is_found(guest: Guest) -> None:
    try:
        async with serving(echo, "::1") as port, guest.open_port(port) as stream:
            await stream.write(b"six")
            await stream.end()
            assert await rest_of(stream) == b"six"
    except OSError:
        pytest.skip("this machine has no IPv6")


async def test_a_connection_that_the_program_resets_is_told_so(guest: Guest) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        link = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def talk(port: int) -> None:
        async with guest.open_port(port) as stream:
            await stream.write(b"x")
            await rest_of(stream)

    async with serving(reset) as port:
        with pytest.raises(PortClosed, match="broke the connection off"):
            await talk(port)


async def test_leaving_half_way_resets_so_that_a_part_is_not_taken_for_the_whole(
    guest: Guest,
) -> None:
    seen: asyncio.Future[bytes | str] = asyncio.get_running_loop().create_future()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seen.set_result(await reader.read())
        except ConnectionResetError:
            seen.set_result("reset")

    async with serving(watch) as port:
        async with guest.open_port(port) as stream:
            await stream.write(b"half of ")
        assert await asyncio.wait_for(seen, 10) == "reset"


async def test_what_listens_is_listed(guest: Guest) -> None:
    async with serving(echo) as port:
        found = next(info for info in await guest.ports() if info.port == port)
        assert found.address == "127.0.0.1"
        assert found.is_reachable
    assert port not in {info.port for info in await guest.ports()}


async def test_the_agent_names_the_process_that_listens(client: GuestClient) -> None:
    async with serving(echo) as port:
        found = next(info for info in await client.ports() if info.port == port)
        assert found.pid == os.getpid()
        assert found.process


async def test_a_reader_that_stalls_holds_up_neither_others_nor_memory(
    agent: Agent, client: GuestClient
) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        piece = bytes(MIB)
        for _ in range(64):
            writer.write(piece)
            await writer.drain()

    before = agent.rss_bytes(peak=True)
    async with (
        serving(flood) as flooding,
        serving(echo) as echoing,
        client.open_port(flooding) as stalled,
        client.open_port(echoing) as other,
    ):
        assert await stalled.read()
        for _ in range(50):
            await other.write(b"still quick")
            assert await other.read() == b"still quick"
        await client.ping()
        assert agent.rss_bytes(peak=True) - before < 24 * MIB


async def test_a_program_that_reads_nothing_stalls_its_sender_alone(
    agent: Agent, client: GuestClient
) -> None:
    release = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await release.wait()

    before = agent.rss_bytes(peak=True)

    async def send(stream: PortStream) -> None:
        for _ in range(128):
            await stream.write(bytes(MIB))

    async with serving(deaf) as port, client.open_port(port) as stream:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send(stream), 1)
        await client.ping()
        assert agent.rss_bytes(peak=True) - before < 24 * MIB
        release.set()


async def test_hundreds_of_connections_at_once_and_then_a_clear_limit(client: GuestClient) -> None:
    async with serving(echo) as port, contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(client.open_port(port)) for _ in range(512)]
        with pytest.raises(Exception, match="512 connections to ports are open") as refused:
            async with client.open_port(port):
                raise AssertionError("one too many")
        assert refused.value.code == "request.limit_exceeded"  # type: ignore[attr-defined]
        for index in (0, 200, 511):
            await streams[index].write(b"%d" % index)
            assert await streams[index].read() == b"%d" % index


async def test_when_the_channel_is_cut_both_ends_know(agent: Agent, client: GuestClient) -> None:
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
            seen.set_result("ended")
        except ConnectionResetError:
            seen.set_result("reset")

    async def cut(port: int) -> None:
        async with client.open_port(port) as stream:
            await client.aclose()
            await stream.read()

    async with serving(watch) as port:
        with pytest.raises(GuestUnreachable):
            await cut(port)
        assert await asyncio.wait_for(seen, 10) == "reset"


async def test_nothing_is_left_open_after_connections_that_were_dropped(
    agent: Agent, client: GuestClient
) -> None:
    async with serving(echo) as port:
        before = len(list(Path(f"/proc/{agent.pid}/fd").iterdir()))
        for _ in range(20):
            async with client.open_port(port) as stream:
                await stream.write(b"x")
        await eventually(lambda: len(list(Path(f"/proc/{agent.pid}/fd").iterdir())) <= before)
