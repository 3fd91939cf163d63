"""The agent's end of the byte stream, on a socket pair that behaves as a virtio-serial port does."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor_guest import device
from torpor_guest.device import Device, find_port

pytestmark = pytest.mark.anyio


class Owner:
    def __init__(self) -> None:
        self.data = bytearray()
        self.clogs: list[bool] = []
        self.left = 0
        self.news = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.data += data
        self.news.set()

    def clogged(self, is_clogged: bool) -> None:
        self.clogs.append(is_clogged)

    def host_left(self) -> None:
        self.left += 1
        self.news.set()


class Pair:
    def __init__(self, *, is_port: bool) -> None:
        self.host, guest = socket.socketpair()
        self.host.setblocking(False)
        self.owner = Owner()
        self.device = Device(guest.detach(), self.owner, is_port=is_port)

    async def get(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(self.host, 1 << 16)
        return data


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    found = Pair(is_port=True)
    yield found
    found.device.close()
    found.host.close()


async def test_bytes_go_both_ways_in_order(pair: Pair) -> None:
    for i in range(100):
        pair.device.write(b"%03d" % i)
    assert await pair.get(300) == b"".join(b"%03d" % i for i in range(100))
    pair.host.send(b"to the guest")
    await pair.owner.news.wait()
    assert pair.owner.data == b"to the guest"


async def test_small_writes_of_one_turn_go_out_together(pair: Pair) -> None:
    pair.device.write(b"one")
    pair.device.write(b"two")
    assert await asyncio.get_running_loop().sock_recv(pair.host, 100) == b"onetwo"


async def test_a_full_queue_says_so_and_drains(pair: Pair) -> None:
    for _ in range(40):
        pair.device.write(bytes(64 << 10))
    assert pair.owner.clogs == [True]
    await pair.get(40 * (64 << 10))
    await asyncio.sleep(0.01)
    assert pair.owner.clogs == [True, False]


async def test_a_dropped_queue_is_not_sent(pair: Pair) -> None:
    for _ in range(40):
        pair.device.write(bytes(64 << 10))
    pair.device.drop_queue()
    assert pair.owner.clogs == [True, False]
    pair.device.write(b"end")
    got = b""
    while not got.endswith(b"end"):
        got += await asyncio.get_running_loop().sock_recv(pair.host, 1 << 16)
    assert len(got) < 40 * (64 << 10)


async def test_a_host_that_is_away_costs_no_cpu(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    real_read = os.read

    def counting(fd: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return real_read(fd, size)

    monkeypatch.setattr(device, "_AWAY_CHECK_S", 0.1)
    monkeypatch.setattr(os, "read", counting)
    pair.host.close()
    await pair.owner.news.wait()
    await asyncio.sleep(0.5)
    assert pair.owner.left == 1
    assert 2 <= reads <= 12  # a few slow looks, no busy loop
    pair.device.write(b"nobody listens")  # is no error


async def test_a_socket_is_closed_when_the_host_leaves() -> None:
    pair = Pair(is_port=False)
    pair.host.close()
    await pair.device.closed
    assert pair.owner.left == 1


async def test_a_port_that_fails_says_so(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def unplugged(fd: int, size: int) -> bytes:
        raise OSError(19, "No such device")

    monkeypatch.setattr(os, "read", unplugged)
    pair.host.send(b"x")
    with pytest.raises(OSError, match="No such device"):
        await pair.device.closed


def test_the_port_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_PORTS", tmp_path)
    assert find_port() is None
    for number, name in ((1, "org.other"), (2, "torpor.agent0")):
        (tmp_path / f"vport0p{number}").mkdir()
        (tmp_path / f"vport0p{number}/name").write_text(f"{name}\n")
    assert find_port() == Path("/dev/vport0p2")


async def _heard(owner: Owner, data: bytes) -> None:
    async with asyncio.timeout(5):
        while bytes(owner.data) != data:
            owner.news.clear()
            await owner.news.wait()


async def test_a_listener_serves_the_newest_connection_of_the_host_alone() -> None:
    """As vsock does; a snapshot resets what was connected, and a host that was lost leaves it open."""
    loop, owner, attached = asyncio.get_running_loop(), Owner(), list[Device]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        serving = loop.create_task(
            device.serve_vsock(listener, owner, attached.append, host="127.0.0.1")
        )
        one = socket.create_connection(place)
        one.sendall(b"one")
        await _heard(owner, b"one")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()  # a reset
        two = socket.create_connection(place)
        two.sendall(b"two")
        await _heard(owner, b"onetwo")
        left = owner.left
        assert left >= 1
        three = socket.create_connection(place)  # and the second is still open
        three.sendall(b"three")
        await _heard(owner, b"onetwothree")
        assert owner.left > left
        two.setblocking(False)
        assert two.recv(1) == b"", "it was closed for the third"
        attached[-1].write(b"answer")
        three.setblocking(False)
        assert await loop.sock_recv(three, 100) == b"answer"
        serving.cancel()
        await asyncio.wait({serving})
        assert len(attached) == 3
        strangers = loop.create_task(
            device.serve_vsock(listener, owner, attached.append, host="192.0.2.1")
        )
        four = socket.create_connection(place)
        four.setblocking(False)
        assert await loop.sock_recv(four, 1) == b"", "a program in the machine is not the host"
        strangers.cancel()
        await asyncio.wait({strangers})
        assert len(attached) == 3
        for link in (two, three, four):
            link.close()
