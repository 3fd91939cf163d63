"""What a client is told that cannot be connected: an error of PostgreSQL's protocol, in the place of its server.

The client has proved nothing by then, so it is told no more than what anyone may know who sees the port.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from torpor.databases.forward import Client
from torpor.errors import DatabaseFull, PortClosed, TorporError

_ASKS: Final = frozenset({80877103, 80877104})
"""Codes of a packet that asks whether the connection can be encrypted (TLS, GSSAPI)."""
_CANCEL: Final = 80877102
_START_MOST: Final = 10_000
"""Bytes that PostgreSQL takes of a client before it knows who that is."""
_WITHIN_S: Final = 10.0
_NO_ROOM: Final = "53100"
_NOT_NOW: Final = "57P03"


async def refuse(client: Client, name: str, error: TorporError) -> None:
    """Tell a client why a database cannot be had, and end the connection; one that says nothing is cut off."""
    if isinstance(error, DatabaseFull):
        reply = error_response(_NO_ROOM, error.message, error.hint)
    else:
        words = f"database {name} cannot be connected to now: {error.code}"
        reply = error_response(_NOT_NOW, words, f"see what is so: torpor db show {name}")
    try:
        async with asyncio.timeout(_WITHIN_S):
            if await _has_begun(client):
                await client.write(reply)
                await client.end()
            else:
                client.cut()
    except (PortClosed, TimeoutError):
        client.cut()


async def _has_begun(client: Client) -> bool:
    """Read until the client has said who it is; False when it wants no answer, or is no client of PostgreSQL's."""
    got = b""
    while True:
        while len(got) < 8 or len(got) < _length(got):
            more = await client.read()
            got += more
            if not more or (len(got) >= 4 and _length(got) > _START_MOST):
                return False
        code = struct.unpack_from("!I", got, 4)[0]
        if code not in _ASKS:
            return bool(code != _CANCEL)
        got = got[8:]
        await client.write(b"N")


def _length(packet: bytes) -> int:
    return int(struct.unpack_from("!I", packet)[0])


def error_response(sqlstate: str, message: str, hint: str | None) -> bytes:
    """Return an `ErrorResponse` that ends a connection."""
    fields = {
        "S": "FATAL",
        "V": "FATAL",
        "C": sqlstate,
        "M": message,
        **({"H": hint} if hint else {}),
    }
    body = (
        b"".join(k.encode() + v.replace("\0", "").encode() + b"\0" for k, v in fields.items())
        + b"\0"
    )
    return b"E" + struct.pack("!I", len(body) + 4) + body
