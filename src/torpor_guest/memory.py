"""The socket by which programs in the machine reach their agent's memory, which lies on the host.

A program writes one JSON object a line, `{"id", "verb", "params"}`, and reads one a line, with the same `id` and either
`ok` or `error`. Whose memory is meant is not said here: the host knows which machine asks. The host keeps a stream
open (`memory.serve`) over which requests go out as items and answers come back; while there is none, requests
wait a while. When it breaks, what was asked and not answered is answered as lost: whether it was done is not known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from torpor_guest import errors, protocol
from torpor_guest.errors import AgentError
from torpor_guest.protocol import ItemBuffer, ProtocolError
from torpor_guest.stream import Stream

SOCKET = "/run/torpor/memory.sock"
MAX_LINE_BYTES = protocol.MAX_MESSAGE - (4 << 10)
"""Of a request as a program writes it; it is a little longer on its way to the host."""
MAX_CLIENTS = 64
WAIT_S = 30.0
"""How long a request waits for the host: a machine that was just woken is not connected yet."""
ANSWER_S = 600.0
"""How long for its answer."""

_log = logging.getLogger("torpor")


class MemorySocket:
    """Serves the socket, and the method by which the host takes requests."""

    def __init__(self, path: Path = Path(SOCKET)) -> None:
        self._path = path
        self._server: asyncio.AbstractServer | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._out: asyncio.Queue[bytes] | None = None
        self._served = asyncio.Event()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last = 0

    async def start(self) -> None:
        """Begin to listen; if that cannot be, say so and go on without."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
            try:  # by way of the folder: a socket's name is at most 107 bytes
                self._server = await asyncio.start_unix_server(
                    self._serve_client,
                    f"/proc/self/fd/{folder}/{self._path.name}",
                    limit=MAX_LINE_BYTES,
                )
            finally:
                os.close(folder)
            os.chmod(self._path, 0o666)  # every user of the machine: the machine is the boundary
        except OSError as exc:
            _log.error("programs cannot reach their memory: %s: %s", self._path, exc)

    async def aclose(self) -> None:
        """Stop listening and let go of all clients."""
        if self._server is None:
            return
        self._server.close()
        for task in self._clients:
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients, timeout=5.0)
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    # What the host calls

    async def serve(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Send requests as items and take answers as bytes, until the host ends it."""
        if self._out is not None:
            raise AgentError(errors.CONFLICT, "the memory is served already")
        self._out = asyncio.Queue(MAX_CLIENTS)
        self._served.set()
        sending = asyncio.get_running_loop().create_task(self._send(stream, self._out))
        try:
            buffer = ItemBuffer()
            while (piece := await stream.receive()) is not None:
                for answer in buffer.feed(piece[1]):
                    self._take(answer)
            return {}
        finally:
            sending.cancel()
            self._out = None
            self._served.clear()
            self._lose_all()

    async def _send(self, stream: Stream, queue: asyncio.Queue[bytes]) -> None:
        while True:
            await stream.send(protocol.CHANNEL_ITEMS, await queue.get())

    def _take(self, answer: dict[str, Any]) -> None:
        number = answer.get("id")
        waiting = self._answers.get(number) if isinstance(number, int) else None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _lose_all(self) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_result(
                    _refusal("lost", "the machine was put down or back, or its host began anew")
                )

    # What programs in the machine call

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._clients) >= MAX_CLIENTS:
                await _reply(writer, None, _refusal("limit", f"{MAX_CLIENTS} programs ask already"))
                return
            self._clients.add(task)
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await self._serve_lines(reader, writer)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve_lines(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as exc:
                if not exc.partial.strip():
                    return
                line = exc.partial
            except asyncio.LimitOverrunError:
                text = f"a request is over {MAX_LINE_BYTES} bytes"
                await _reply(writer, None, _refusal("limit", text))
                return
            if not line.strip():
                continue
            try:
                request = protocol.unpack_json(line)
            except ProtocolError as exc:
                await _reply(writer, None, _refusal("invalid", str(exc)))
                continue
            await _reply(writer, request.get("id"), await self._ask(request))

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the host's answer to a request, or why there is none."""
        verb, params = request.get("verb"), request.get("params", {})
        if not isinstance(verb, str) or not isinstance(params, dict):
            return _refusal("invalid", "a request has a `verb` and `params`")
        self._last += 1
        number = self._last
        item = protocol.pack_json({"id": number, "verb": verb, "params": params}) + b"\n"
        if len(item) > protocol.MAX_MESSAGE:
            return _refusal("limit", f"a request is over {protocol.MAX_MESSAGE} bytes")
        try:
            await asyncio.wait_for(self._served.wait(), WAIT_S)
        except TimeoutError:  # another class than TimeoutError before Python 3.11
            return _refusal("unreachable", f"the host did not come for {WAIT_S:g} s")
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(self._sent(item, answer), ANSWER_S)
        except TimeoutError:
            return _refusal("lost", f"the host did not answer within {ANSWER_S:g} s")
        finally:
            del self._answers[number]

    async def _sent(self, item: bytes, answer: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        if self._out is None:
            return _refusal("lost", "the host left")
        await self._out.put(item)
        return await answer


def _refusal(code: str, message: str) -> dict[str, Any]:
    """Return an answer of the agent's own; codes and form are those of the host's errors."""
    return {
        "error": {
            "error": message,
            "code": f"memory.{code}",
            "hint": "whether the request was carried out is not known" if code == "lost" else None,
            "retryable": code in ("lost", "unreachable"),
            "facts": {},
        }
    }


async def _reply(writer: asyncio.StreamWriter, asked: object, answer: dict[str, Any]) -> None:
    body = {key: answer[key] for key in ("ok", "error") if key in answer}
    writer.write(json.dumps({"id": asked, **body}, separators=(",", ":")).encode("ascii") + b"\n")
    await writer.drain()
