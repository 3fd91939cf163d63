"""Commands in the guest, from the host's side."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Final, Literal

from typing_extensions import override

from torpor.errors import GuestFailed, HostNotReady
from torpor.guest.answers import count, exec_info, offset, process_info
from torpor.guest.calls import Calls
from torpor.guest.channel import Channel
from torpor.model import (
    ExecEnded,
    ExecEvent,
    ExecId,
    ExecInfo,
    ExecOutput,
    ExecSpec,
    ExecStarted,
    ProcessInfo,
)
from torpor_guest import protocol
from torpor_guest.protocol import ItemBuffer, ProtocolError
from torpor_guest.stream import Stream

_MAX_EXECS: Final = 10_000
_MAX_PROCESSES: Final = 100_000
_NAMES: Final[dict[int, Literal["stdout", "stderr"]]] = {
    protocol.CHANNEL_STDOUT: "stdout",
    protocol.CHANNEL_STDERR: "stderr",
}


class ExecCalls(Calls):
    """Start, follow, feed, signal and list commands."""

    async def exec_start(
        self, exec_id: ExecId, spec: ExecSpec, *, output_limit_bytes: int | None = None
    ) -> ExecInfo:
        """See `Guest.exec_start`."""
        if spec.terminal is not None:
            check_terminals(self._capabilities())
        answer = await self._channel.call("exec.start", _start(exec_id, spec, output_limit_bytes))
        return exec_info(answer.get("exec"), exec_id)

    @contextlib.asynccontextmanager
    async def exec_run(
        self, exec_id: ExecId, spec: ExecSpec, *, output_limit_bytes: int | None = None
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        """See `Guest.exec_run`."""
        params = _start(exec_id, spec, output_limit_bytes)
        with self._stream("exec.run", params) as stream:
            events = _Events(self._channel, stream, exec_id, 0, 0)
            await events.begin()
            yield events

    @contextlib.asynccontextmanager
    async def exec_attach(
        self, exec_id: ExecId, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncIterator[AsyncIterator[ExecEvent]]:
        """See `Guest.exec_attach`."""
        params: dict[str, object] = {
            "exec_id": exec_id,
            "stdout_offset": stdout_offset,
            "stderr_offset": stderr_offset,
        }
        with self._stream("exec.attach", params) as stream:
            events = _Events(self._channel, stream, exec_id, stdout_offset, stderr_offset)
            await events.begin()
            yield events

    async def exec_stdin(self, exec_id: ExecId, data: bytes, *, eof: bool = False) -> None:
        """See `Guest.exec_stdin`."""
        with self._stream("exec.stdin", {"exec_id": exec_id, "eof": eof}) as stream:
            for start in range(0, len(data), protocol.MAX_PAYLOAD):
                piece = data[start : start + protocol.MAX_PAYLOAD]
                if not await self._channel.send(stream, piece):
                    break
            stream.send_frame(protocol.END)
            while await self._channel.receive(stream) is not None:
                pass
            self._channel.result(stream)

    async def exec_signal(self, exec_id: ExecId, signal: int) -> None:
        """See `Guest.exec_signal`."""
        await self._channel.call("exec.signal", {"exec_id": exec_id, "signal": signal})

    async def exec_resize(self, exec_id: ExecId, columns: int, rows: int) -> None:
        """See `Guest.exec_resize`."""
        check_terminals(self._capabilities())
        params: dict[str, object] = {"exec_id": exec_id, "columns": columns, "rows": rows}
        await self._channel.call("exec.resize", params)

    async def exec_get(self, exec_id: ExecId) -> ExecInfo:
        """See `Guest.exec_get`."""
        answer = await self._channel.call("exec.get", {"exec_id": exec_id})
        return exec_info(answer.get("exec"), exec_id)

    async def exec_list(self) -> list[ExecInfo]:
        """See `Guest.exec_list`."""
        return await self._all_items("exec.list", {}, exec_info, limit=_MAX_EXECS)

    async def exec_forget(self) -> int:
        """See `Guest.exec_forget`."""
        return count(await self._channel.call("exec.forget", {}), "count")

    async def exec_drop(self, exec_id: ExecId) -> bool:
        """See `Guest.exec_drop`."""
        return count(await self._channel.call("exec.drop", {"exec_id": exec_id}), "count") > 0

    async def processes(self) -> list[ProcessInfo]:
        """See `Guest.processes`."""
        return await self._all_items("processes", {}, process_info, limit=_MAX_PROCESSES)


class _Events(AsyncIterator[ExecEvent]):
    """What happens to one exec, from its stream."""

    def __init__(
        self,
        channel: Channel,
        stream: Stream,
        exec_id: ExecId,
        stdout_offset: int,
        stderr_offset: int,
    ) -> None:
        self._channel = channel
        self._stream = stream
        self._exec_id = exec_id
        self._offsets = {
            protocol.CHANNEL_STDOUT: stdout_offset,
            protocol.CHANNEL_STDERR: stderr_offset,
        }
        self._started: ExecStarted | None = None
        self._skips = ItemBuffer()
        self._is_over = False

    async def begin(self) -> None:
        """Wait until the guest says that it follows; raise what it refuses with."""
        items = ItemBuffer()
        while (piece := await self._channel.receive(self._stream)) is not None:
            if piece[0] != protocol.CHANNEL_ITEMS:
                break
            try:
                for item in items.feed(piece[1]):
                    info = exec_info(item.get("started"), self._exec_id)
                    if info.terminal:
                        self._offsets[protocol.CHANNEL_STDOUT] = offset(item, "stdout_offset")
                    self._started = ExecStarted(self._exec_id, info.pid)
                    return
            except ProtocolError as exc:
                raise GuestFailed(f"the guest agent's answer makes no sense: {exc}") from exc
        self._channel.result(self._stream)
        raise GuestFailed("the guest agent sent output of an exec before its start")

    @override
    def __aiter__(self) -> _Events:
        return self

    @override
    async def __anext__(self) -> ExecEvent:
        if self._started:
            event, self._started = self._started, None
            return event
        if self._is_over:
            raise StopAsyncIteration
        channel, data = protocol.CHANNEL_ITEMS, b""
        while channel == protocol.CHANNEL_ITEMS:
            self._skip(data)
            piece = await self._channel.receive(self._stream, limit_s=None)
            if piece is None:
                self._is_over = True
                answer = self._channel.result(self._stream)
                return ExecEnded(exec_info(answer.get("exec"), self._exec_id))
            channel, data = piece
        if channel not in _NAMES:
            raise GuestFailed(f"the guest agent sent output on channel {channel}")
        begin = self._offsets[channel]
        self._offsets[channel] += len(data)
        return ExecOutput(_NAMES[channel], begin, data)

    def _skip(self, data: bytes) -> None:
        """Take in that a terminal's reader was too slow, and what it reads next."""
        try:
            for item in self._skips.feed(data):
                self._offsets[protocol.CHANNEL_STDOUT] = offset(item, "skipped_to")
        except ProtocolError as exc:
            raise GuestFailed(f"the guest agent's answer makes no sense: {exc}") from exc


def check_terminals(capabilities: frozenset[str]) -> None:
    """Raise `HostNotReady` unless the agent knows of terminals."""
    if "terminal" not in capabilities:
        raise HostNotReady(
            "the agent in this machine is too old for terminals",
            hint="build its template anew, and make the sandbox again from it",
        )


def _start(exec_id: ExecId, spec: ExecSpec, output_limit_bytes: int | None) -> dict[str, object]:
    return {
        "exec_id": exec_id,
        "command": spec.command if isinstance(spec.command, str) else list(spec.command),
        "terminal": None if spec.terminal is None else asdict(spec.terminal),
        "cwd": spec.cwd,
        "env": dict(spec.env),
        "user": spec.user,
        "timeout_s": spec.timeout_seconds,
        "stdin": spec.stdin,
        "background": spec.background,
        "output_limit_bytes": output_limit_bytes,
    }
