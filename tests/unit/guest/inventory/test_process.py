"""An inventory's process that is killed before it has answered: that is what is said."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest

from torpor_guest.errors import TIMEOUT
from torpor_guest.inventories import _Cut, _Worker
from torpor_guest.launcher import Child, Launcher

pytestmark = pytest.mark.anyio


async def _read_nothing(_theirs: socket.socket) -> None:
    """Leave the request unread, so that the kernel resets the connection."""


async def _read_it(theirs: socket.socket) -> None:
    assert await asyncio.get_running_loop().sock_recv(theirs, 1000)


async def _say_something(theirs: socket.socket) -> None:
    await asyncio.get_running_loop().sock_sendall(theirs, b'{"entry": ')


@pytest.mark.parametrize("reads", [_read_nothing, _read_it, _say_something, None])
async def test_a_process_that_is_killed_is_told_as_that(reads: object) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        worker = _Worker(cast(Launcher, None), cast(Child, None), ours)
        if reads is None:  # it is gone before it is asked
            theirs.close()
        asked = asyncio.create_task(worker.ask({"do": "take"}, None))
        await asyncio.sleep(0)  # the request is sent
        if callable(reads):
            await reads(theirs)
            theirs.close()
        with pytest.raises(_Cut, match="or its process was ended") as caught:
            await asyncio.wait_for(asked, 10)
        assert caught.value.code == TIMEOUT
        assert caught.value.is_silent == (reads is not _say_something)
