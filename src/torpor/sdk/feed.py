"""Follows one exec across lost connections: every byte once, in order, and never a made-up end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from torpor.base.aio import closing
from torpor.errors import (
    CommandLost,
    DaemonUnreachable,
    GuestUnreachable,
    NotFound,
    TorporError,
    error_from_wire,
)
from torpor.model import ExecEnded, ExecEvent, ExecId, ExecOutput, ExecStarted
from torpor.sdk.client import Connection, ConnectionLost, DaemonSilent, raw_bytes
from torpor.sdk.parse import chunk_bytes, exec_info
from torpor.sdk.sse import SseEvent, sse_events

RETRY_LIMIT_S = 60.0
"""Seconds without any progress after which a lost exec is given up."""

StreamName = Literal["stdout", "stderr"]

_LOST = (ConnectionLost, DaemonSilent, DaemonUnreachable, GuestUnreachable)
"""What attaching again may mend."""


class ExecFeed:
    """The events of one exec, from byte offsets on."""

    def __init__(
        self,
        connection: Connection,
        sandbox_id: str,
        exec_id: ExecId,
        *,
        start: dict[str, Any] | None = None,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        limit_bytes: int | None = None,
        streams: str = "stdout,stderr",
    ) -> None:
        """Prepare to follow; with `start` (the body of a request that has `exec_id`) the command is started."""
        self._connection = connection
        self._base = f"/v1/sandboxes/{sandbox_id}"
        self._exec_id = exec_id
        self._start = start
        self._limit = limit_bytes
        self._streams = streams
        self._next: dict[StreamName, int] = {"stdout": stdout_offset, "stderr": stderr_offset}
        self._generation: int | None = None
        """Which life of the machine this follows; bytes of another are never taken for its own."""
        self._is_fed = not (start and (start.get("stdin_b64") or start.get("stdin")))

    async def events(self) -> AsyncGenerator[ExecEvent, None]:
        """Yield `ExecStarted` once, output as it comes, `ExecEnded` last.

        Raises:
            OperationTimeout: the command was killed at its time limit.
            CommandLost: its end cannot be known.
            GenerationChanged: the machine was put back or slept meanwhile.
            TorporError: as starting or attaching fails.
        """
        sends_start = self._start is not None
        is_announced = False
        was_sent = False
        gives_up_at = time.monotonic() + RETRY_LIMIT_S
        pause_s = 0.05
        while True:
            try:
                async with closing(self._connected(sends_start)) as events:
                    async for event in events:
                        gives_up_at, pause_s = time.monotonic() + RETRY_LIMIT_S, 0.05
                        if not isinstance(event, ExecStarted) or not is_announced:
                            is_announced = True
                            yield event
                        if isinstance(event, ExecEnded):
                            return
                raise ConnectionLost("the stream ended before the command did")
            except NotFound as error:
                if is_announced:
                    raise CommandLost(
                        f"{self._exec_id} is no longer known: {error.message}",
                        exec_id=self._exec_id,
                    ) from error
                if self._start is None or sends_start:
                    raise
                sends_start = True  # the request that broke never got there
                continue
            except _LOST as error:
                was_sent = was_sent or isinstance(error, (ConnectionLost, DaemonSilent))
                if not (is_announced or was_sent) or time.monotonic() > gives_up_at:
                    raise
            sends_start = False
            await asyncio.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)

    async def _connected(self, sends_start: bool) -> AsyncGenerator[ExecEvent, None]:
        """Yield the events that one connection brings."""
        if sends_start:
            opened = self._connection.stream("POST", f"{self._base}/exec/stream", body=self._start)
        else:
            opened = self._connection.stream(
                "GET",
                f"{self._base}/execs/{self._exec_id}/stream",
                query={
                    "stdout_offset": self._next["stdout"],
                    "stderr_offset": self._next["stderr"],
                    "output_limit_bytes": self._limit,
                    "streams": self._streams,
                    "generation": self._generation,
                },
            )
        ended: ExecEnded | None = None
        try:
            async with opened as reply, closing(sse_events(raw_bytes(reply))) as events:
                async for event in events:
                    if event.name == "started":
                        self._generation = event.data.get("generation")
                        if not self._is_fed:
                            await self._check_feeding(event.data.get("stdin_done"))
                    found = self._event(event)
                    if isinstance(found, ExecEnded):
                        ended = found  # read on to the stream's end, so that the connection is used again
                    elif found is not None:
                        yield found
        except (ConnectionLost, DaemonSilent):
            if ended is None:
                raise
        if ended is not None:
            yield ended

    def _event(self, event: SseEvent) -> ExecEvent | None:
        data = event.data
        if event.name == "started":
            return ExecStarted(ExecId(data["exec_id"]), data["pid"])
        if event.name in ("stdout", "stderr"):
            return self._output("stdout" if event.name == "stdout" else "stderr", data)
        if event.name == "exit":
            return ExecEnded(exec_info(data))
        if event.name == "error":
            raise error_from_wire(data)
        return None  # an event of a newer daemon

    def _output(self, stream: StreamName, data: dict[str, Any]) -> ExecOutput | None:
        content, offset = chunk_bytes(data), int(data["offset"])
        wanted = self._next[stream]
        if offset > wanted:
            raise TorporError(
                f"{self._exec_id}: bytes {wanted} to {offset} of {stream} are missing",
                exec_id=self._exec_id,
            )
        content = content[wanted - offset :]
        if not content:
            return None
        self._next[stream] = wanted + len(content)
        return ExecOutput(stream, wanted, content)

    async def _check_feeding(self, stdin_done: bool | None) -> None:
        """Note how far stdin is fed; kill a command whose feeding daemon is gone: it would wait for ever."""
        if stdin_done is not None:
            self._is_fed = stdin_done
            return
        await self._connection.call(
            "POST", f"{self._base}/execs/{self._exec_id}/signal", body={"signal": 9}
        )
        raise CommandLost(
            f"the daemon ended while it fed the stdin of {self._exec_id}; the command was killed",
            hint="run it again, or put the input into a file first",
            exec_id=self._exec_id,
        )
