"""Connecting to a port of a guest's vsock through the Unix socket that a VMM leads it to.

The host writes `CONNECT PORT` and is answered `OK` and a number once the guest has accepted; where nobody listens yet,
the connection is closed instead.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Final

from torpor.base.fsio import foreign_socket_name

_ANSWER_MOST: Final = 32
_AGAIN_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1)
"""Nobody tells when a guest begins to listen."""


async def connect(path: Path, port: int) -> socket.socket:
    """Return a socket that is connected to the guest's `port`, as soon as somebody listens there.

    Raises:
        OSError: there is no such socket, or its VMM is gone.
    """
    waits = iter(_AGAIN_S)
    wait_s = next(waits)
    while True:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with foreign_socket_name(path) as name:
                await asyncio.get_running_loop().sock_connect(link, name)
            if await _is_accepted(link, port):
                return link
        except BaseException:
            link.close()
            raise
        link.close()
        await asyncio.sleep(wait_s)
        wait_s = next(waits, wait_s)


async def _is_accepted(link: socket.socket, port: int) -> bool:
    """Ask for the port; what the guest says first is left in the socket."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(link, f"CONNECT {port}\n".encode())
        answer = b""
        while not answer.endswith(b"\n") and len(answer) < _ANSWER_MOST:
            piece = await loop.sock_recv(link, 1)
            if not piece:
                return False
            answer += piece
    except (ConnectionResetError, BrokenPipeError):
        return False
    return answer.startswith(b"OK ")
