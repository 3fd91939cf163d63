"""An agent that goes on in a restored machine: another host is at the other end, and nothing told it so."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from torpor_guest import protocol
from torpor_guest.device import Device
from torpor_guest.protocol import Decoder, Frame
from torpor_guest.session import Session
from torpor_guest.stream import Stream

pytestmark = pytest.mark.anyio

IN_THE_PIPE = 1 << 20
"""More than a socket pair holds."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Machine:
    """A session on a channel that never says that its host left."""

    def __init__(self) -> None:
        self.link, guest = socket.socketpair()
        self.link.setblocking(False)
        self.ended: list[str] = []
        self.session = Session({"flood": self.flood, "wait": self.wait, "echo": self.echo})
        self.device = Device(guest.detach(), self.session, is_port=True)
        self.session.attach(self.device)

    async def flood(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Send for ever."""
        try:
            while True:
                await stream.send(0, b"}~" * 20_000)
        finally:
            self.ended.append("flood")

    async def wait(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Wait for what never comes."""
        try:
            await stream.receive()
        finally:
            self.ended.append("wait")
        return {}

    async def echo(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Answer."""
        return params

    async def close(self) -> None:
        """End it."""
        self.device.close()
        self.link.close()
        await asyncio.sleep(0)


class Host:
    """One host after another at the same end of the channel."""

    def __init__(self, machine: Machine, epoch: int) -> None:
        self.machine = machine
        self.epoch = epoch
        self.decoder = Decoder(epoch)
        self.frames: list[Frame] = []
        self.read = 0

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await asyncio.get_running_loop().sock_sendall(self.machine.link, data)

    async def greet(self) -> None:
        """Connect, and wait for the answer."""
        nonce = secrets.token_hex(4)
        hello = protocol.hello(nonce, window=16 << 20)
        await self.send(protocol.encode(protocol.HELLO, 0, self.epoch, 0, hello))
        answer = await self.next()
        while answer.type in (protocol.ANNOUNCE, protocol.DATA):  # streams that it did not open
            answer = await self.next()
        assert (answer.type, answer.epoch) == (protocol.HELLO, self.epoch)
        assert protocol.unpack_json(answer.payload)["nonce"] == nonce

    async def open(self, number: int, method: str, **params: object) -> None:
        """Open a stream."""
        message = {"method": method, "params": params}
        await self.send(protocol.encode_message(protocol.OPEN, self.epoch, number, message))

    async def next(self) -> Frame:
        """Return the next frame that this host takes."""
        async with asyncio.timeout(5):
            while not self.frames:
                data = await asyncio.get_running_loop().sock_recv(self.machine.link, 1 << 16)
                self.read += len(data)
                self.frames += self.decoder.feed(data)
        return self.frames.pop(0)


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    found = Machine()
    yield found
    await found.close()


async def until(check: object) -> None:
    """Wait until `check()` is true."""
    assert callable(check)
    async with asyncio.timeout(5):
        while not check():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("epoch", [2, 1])
async def test_the_old_streams_end_and_the_new_host_sees_nothing_of_them(
    machine: Machine, epoch: int
) -> None:
    """Even one that counts from 1 again is told apart, by its nonce and by what comes before its greeting."""
    old = Host(machine, 1)
    await old.greet()
    await old.open(1, "flood")
    await old.open(2, "wait")
    await until(lambda: machine.session.is_clogged)  # and nobody reads
    new = Host(machine, epoch)
    await new.greet()
    await until(lambda: len(machine.ended) == 2)
    assert machine.session.streams == {}
    assert new.read < IN_THE_PIPE, "what was not written yet was dropped"
    assert not machine.session.is_clogged
    await new.open(1, "echo", word="new")
    answer = await new.next()
    assert (answer.type, answer.stream) == (protocol.CLOSE, 1)
    assert protocol.unpack_json(answer.payload) == {"ok": {"word": "new"}}
    assert new.frames == []


@pytest.mark.parametrize("cut", [1, 7, 20, 40])
async def test_half_a_frame_of_the_old_host(machine: Machine, cut: int) -> None:
    old = Host(machine, 1)
    await old.greet()
    whole = protocol.encode_message(
        protocol.OPEN, 1, 1, {"method": "echo", "params": {"word": "}~" * 20}}
    )
    await old.send(whole[:cut])
    await asyncio.sleep(0.01)
    new = Host(machine, 2)
    await new.greet()
    await new.open(1, "echo", word="new")
    assert protocol.unpack_json((await new.next()).payload) == {"ok": {"word": "new"}}


async def test_the_rest_of_a_message_of_the_old_host(machine: Machine) -> None:
    """An OPEN of many frames, of which the last come from before the restore, by way of the port's buffers."""
    old = Host(machine, 1)
    await old.greet()
    message = {"method": "echo", "params": {"word": "x" * 150_000}}
    frames = protocol.encode_message(protocol.OPEN, 1, 1, message)
    await old.send(frames[:100_000])
    new = Host(machine, 2)
    await new.greet()
    await new.send(frames[100_000:])
    await new.send(protocol.encode(protocol.CANCEL, 0, 1, 1))
    await new.open(1, "echo", word="new")
    assert protocol.unpack_json((await new.next()).payload) == {"ok": {"word": "new"}}


async def test_again_and_again(machine: Machine) -> None:
    """A snapshot of a restored machine, restored; forks may come with any higher epoch."""
    for epoch in (1, 2, 3, 50, 2**32 - 1):
        host = Host(machine, epoch)
        await host.greet()
        await host.open(1, "flood")
        await host.open(2, "echo", word=epoch)
        while (frame := await host.next()).stream != 2:
            assert frame.type == protocol.DATA
        assert protocol.unpack_json(frame.payload) == {"ok": {"word": epoch}}
    await machine.close()
    machine.session.host_left()
    await until(lambda: len(machine.ended) == 5)
