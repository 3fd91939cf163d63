"""Ports of the guest that lead to the host: what a program connects to them, the host serves."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from tests.contract.guest.agent import Agent, eventually
from torpor.errors import Conflict, GuestUnreachable, InvalidRequest
from torpor.guest.client import GuestClient
from torpor.guest.port import PortStream
from torpor_guest import inlets
from torpor_guest.errors import AgentError
from torpor_guest.stream import Stream

pytestmark = pytest.mark.anyio


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listened_on(port: int) -> bool:
    """Whether a connection is taken there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def shout(stream: PortStream) -> None:
    """Send back what comes in capitals, until its end."""
    while data := await stream.read():
        await stream.write(data.upper())
    await stream.end()


@contextlib.asynccontextmanager
async def inlet(client: GuestClient, port: int) -> AsyncIterator[asyncio.Task[None]]:
    listens = asyncio.Event()
    task = asyncio.create_task(client.serve_inlet(port, shout, listens=listens.set))
    await asyncio.wait_for(listens.wait(), 10)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, GuestUnreachable):
            await task


async def asked(port: int, text: bytes) -> bytes:
    """What a program in the machine hears on that port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    writer.write_eof()
    found = await reader.read()
    writer.close()
    return found


async def test_programs_reach_the_host_many_at_once(client: GuestClient) -> None:
    port = free_port()
    async with inlet(client, port):
        texts = [f"hello {n} ".encode() * 1000 for n in range(20)]
        answers = await asyncio.wait_for(asyncio.gather(*(asked(port, t) for t in texts)), 30)
        assert answers == [t.upper() for t in texts]
        await client.ping()


async def test_it_listens_as_long_as_it_is_served_and_no_longer(client: GuestClient) -> None:
    port = free_port()
    async with inlet(client, port):
        assert await asked(port, b"a") == b"A"
    await eventually(lambda: not listened_on(port))
    async with inlet(client, port):
        assert await asked(port, b"b") == b"B"


async def test_a_connection_that_fails_ends_alone_and_is_reset(client: GuestClient) -> None:
    port = free_port()

    async def fails(stream: PortStream) -> None:
        if await stream.read() == b"bad":
            raise Conflict("this one is not served")
        await stream.write(b"good")
        await stream.end()
        while await stream.read():  # who leaves before the program has ended resets it
            pass

    listens = asyncio.Event()
    task = asyncio.create_task(client.serve_inlet(port, fails, listens=listens.set))
    await asyncio.wait_for(listens.wait(), 10)
    with pytest.raises(ConnectionResetError):
        await asked(port, b"bad")
    assert await asked(port, b"x") == b"good"
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_what_cannot_be_is_refused(client: GuestClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Conflict, match="cannot be listened on"):
            await client.serve_inlet(taken.getsockname()[1], shout)
    with pytest.raises(InvalidRequest):
        await client.serve_inlet(0, shout)
    port = free_port()
    async with inlet(client, port):
        with pytest.raises(Conflict):
            await client.serve_inlet(port, shout)
        assert await asked(port, b"a") == b"A"


async def test_a_machine_without_room_for_files_takes_connections_again(
    client: GuestClient, agent: Agent
) -> None:
    assert agent.process is not None
    pid, port = agent.process.pid, free_port()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    async with inlet(client, port):
        assert await asked(port, b"a") == b"A"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        answers = [asyncio.create_task(asked(port, b"b%d" % n)) for n in range(3)]
        await eventually(lambda: "accepts nothing for now: Too many open files" in agent.log())
        await client.ping()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert await asyncio.wait_for(asyncio.gather(*answers), 20) == [b"B0", b"B1", b"B2"]


class Host:
    """The host's end: it hears that the port is there, and does not end it."""

    def __init__(self) -> None:
        self.hears = asyncio.Event()

    async def send(self, _channel: int, _data: bytes) -> None:
        self.hears.set()

    async def receive(self) -> None:
        await asyncio.Event().wait()


async def test_who_connects_anew_has_the_port_at_once() -> None:
    """As after a wake: what the old channel had is ended, and the new one's request may be read next."""
    methods, port = inlets.InletMethods(), free_port()
    for _ in range(3):
        host = Host()
        serving = asyncio.create_task(methods.serve(cast(Stream, host), {"port": port}))
        await asyncio.wait_for(host.hears.wait(), 10)
        serving.cancel()
        await asyncio.sleep(0)  # one turn of the loop, in which a request cannot have been read yet
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_a_port_that_breaks_ends_it_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners: list[socket.socket] = []
    listening = inlets._listening

    def kept(port: int) -> socket.socket:
        listeners.append(listening(port))
        return listeners[-1]

    monkeypatch.setattr(inlets, "_listening", kept)
    host = Host()
    methods = inlets.InletMethods()
    serving = asyncio.create_task(methods.serve(cast(Stream, host), {"port": free_port()}))
    await asyncio.wait_for(host.hears.wait(), 10)
    listeners[0].shutdown(socket.SHUT_RDWR)  # as a kernel does that takes it away
    with pytest.raises(AgentError, match="of the machine broke: Invalid argument"):
        await asyncio.wait_for(serving, 10)
    assert listeners[0].fileno() == -1


async def test_a_cut_channel_ends_it(client: GuestClient, agent: Agent) -> None:
    port = free_port()
    listens = asyncio.Event()
    task = asyncio.create_task(client.serve_inlet(port, shout, listens=listens.set))
    await asyncio.wait_for(listens.wait(), 10)
    await client.aclose()
    with pytest.raises(GuestUnreachable):
        await task
