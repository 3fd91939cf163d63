"""Firecracker's control socket: one HTTP request a connection, nothing of the answer believed.

The socket lies in a folder of the user that Firecracker runs as, who may have put anything in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from torpor.base.fsio import foreign_socket_name
from torpor.errors import VmmFailed

_HEAD_MOST = 16 << 10
_BODY_MOST = 1 << 20
_LOOK_AGAIN_S = 0.002
"""Firecracker tells nobody when it listens, which is a few milliseconds after its start."""


class Refused(VmmFailed):
    """Raised when Firecracker answered that it will not, or cannot; the message is its own."""


class Api:
    """Calls of one Firecracker."""

    def __init__(self, socket: Path, pid: int) -> None:
        self._socket = socket
        self._pid = pid
        self._turn = asyncio.Lock()

    async def until_listening(self, alive: Any, *, timeout_s: float) -> None:
        """Return when the socket takes connections.

        Raises:
            VmmFailed: the process ended (`alive()` says so), or the time is over.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        _, writer = await self._connect()
                    except OSError:
                        if not alive():
                            raise VmmFailed(
                                f"Firecracker (process {self._pid}) ended", pid=self._pid
                            ) from None
                        await asyncio.sleep(_LOOK_AGAIN_S)
                        continue
                    writer.close()
                    return
        except TimeoutError as exc:
            raise VmmFailed(
                f"Firecracker (process {self._pid}) did not listen within {timeout_s:g} s",
                pid=self._pid,
            ) from exc

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout_s: float = 10.0,
        in_turn: bool = True,
    ) -> Any:
        """Ask, and return the answer's JSON; None when it has none.

        Not `in_turn` it is sent at once, whatever else is not answered yet. What Firecracker has not read by the end of
        the time it never will: it drops a connection that was closed.

        Raises:
            Refused: Firecracker says no.
            VmmFailed: it does not answer, or not in HTTP.
        """
        what = f"{method} {path}"
        turn = self._turn if in_turn else contextlib.nullcontext()
        try:
            async with asyncio.timeout(timeout_s), turn:  # it serves one after the other anyway
                status, data = await self._ask(method, path, body)
        except TimeoutError as exc:
            raise VmmFailed(
                f"Firecracker (process {self._pid}) did not answer {what!r} within {timeout_s:g} s",
                hint="look at its log in the sandbox's folder, or delete the sandbox",
                pid=self._pid,
            ) from exc
        except (OSError, EOFError, ValueError) as exc:
            raise VmmFailed(
                f"Firecracker (process {self._pid}) cannot be asked {what!r}: {exc}",
                pid=self._pid,
            ) from exc
        if status >= 300:
            raise Refused(
                f"Firecracker (process {self._pid}) refused {what!r}: {_fault(data)}", pid=self._pid
            )
        return _parsed(data) if data else None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with foreign_socket_name(self._socket) as name:
            return await asyncio.open_unix_connection(name, limit=_HEAD_MOST)

    async def _ask(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
        if data:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        reader, writer = await self._connect()
        try:
            writer.write(head.encode() + b"\r\n" + data)
            await writer.drain()
            return await _answer(reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.LimitOverrunError as exc:
        raise ValueError("its answer has no end") from exc
    words = head[0].split(" ")
    if len(words) < 2 or not words[0].startswith("HTTP/1."):
        raise ValueError(f"{head[0][:100]!r} is no HTTP")
    length = 0
    for line in head[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
    if not 0 <= length <= _BODY_MOST:
        raise ValueError(f"its answer has {length} bytes")
    return int(words[1]), await reader.readexactly(length) if length else b""


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as exc:
        raise VmmFailed(f"Firecracker answered no JSON: {data[:200]!r}") from exc


def _fault(data: bytes) -> str:
    try:
        return str(json.loads(data)["fault_message"])[:2000]
    except (ValueError, KeyError, TypeError):
        return repr(data[:200])
