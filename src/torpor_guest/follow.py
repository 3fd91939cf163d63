"""Following a command's output from any offset, at the reader's pace."""

from __future__ import annotations

import asyncio
from typing import Any

from torpor_guest import errors
from torpor_guest.command import Command
from torpor_guest.errors import AgentError
from torpor_guest.files import send_items
from torpor_guest.paths import number
from torpor_guest.stream import Stream

_BLOCK = 64 << 10


async def follow(stream: Stream, command: Command, params: dict[str, Any]) -> dict[str, Any]:
    """Send what a command has written and writes from the offsets on; return its end."""
    follower = _Follower(stream, command, params)
    offset = follower.offset
    await send_items(stream, [{"started": command.info(), "stdout_offset": offset}])
    command.followers.add(follower.on_output)
    try:
        await follower.run()
    finally:
        command.followers.discard(follower.on_output)
        command.rest()
    if command.state == "lost":
        raise AgentError(
            errors.LOST,
            f"how exec {command.request.exec_id} ended is not known: the guest agent,"
            " or the process with which it starts commands, ended meanwhile",
            exec_id=command.request.exec_id,
        )
    return {"exec": command.info()}


class _Follower:
    def __init__(self, stream: Stream, command: Command, params: dict[str, Any]) -> None:
        self._stream = stream
        self._command = command
        self._changed = asyncio.Event()
        self._offsets = [
            self._offset(which, number(params, f"{name}_offset", 0) or 0)
            for which, name in enumerate(("stdout", "stderr"))
        ]

    def _offset(self, which: int, offset: int) -> int:
        total = self._command.spools[which].total
        if self._command.request.has_terminal:  # who has seen more saw it before a rollback
            return min(offset, total)
        if offset > total:
            raise AgentError(
                errors.INVALID,
                f"exec {self._command.request.exec_id} has written {total} bytes;"
                f" offset {offset} is beyond them",
            )
        return offset

    @property
    def offset(self) -> int:
        """Which byte of stdout is the next."""
        return self._offsets[0]

    def on_output(self, which: int, offset: int, data: bytes) -> None:
        """Send new bytes at once to who is up to date, with no task and no file in between."""
        if which >= 0 and offset == self._offsets[which] and self._stream.try_send(which + 1, data):
            self._offsets[which] += len(data)
        else:
            self._changed.set()

    async def run(self) -> None:
        """Send until the command has ended and all that is kept was sent."""
        while True:
            self._changed.clear()
            is_running = self._command.is_running
            if await self._catch_up():
                continue
            if not is_running:
                return
            await self._changed.wait()

    async def _catch_up(self) -> bool:
        is_behind = False
        for which, spool in enumerate(self._command.spools):
            if self._offsets[which] < spool.begin:
                self._offsets[which] = spool.begin
                await send_items(self._stream, [{"skipped_to": spool.begin}])
            data = spool.read(self._offsets[which], _BLOCK)
            if data:
                is_behind = True
                await self._stream.send(which + 1, data)
                self._offsets[which] += len(data)
        return is_behind
