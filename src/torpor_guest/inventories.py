"""The methods on the machine's inventory: they ask the process that takes it, and send on what it finds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from torpor_guest import errors, protocol
from torpor_guest.errors import AgentError
from torpor_guest.launcher import Child, Launcher, Program
from torpor_guest.stream import Stream
from torpor_guest.users import BASE_PATH

_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from torpor_guest.inventory.worker import main; main(sys.argv[2], sys.argv[3])"
)
_DEADLINE_MOST_S = 3600.0
_MARGIN_S = 5.0
"""What the process has beyond its own deadline before it is killed."""
_LINE_MOST = 2 << 20
_BATCH = 48 << 10


class InventoryMethods:
    """Owns the process; it is started when it is first needed and stays, with what it knows of the files."""

    def __init__(self, launcher: Launcher, state_dir: Path, root: str = "") -> None:
        self._launcher = launcher
        self._key_path = str(state_dir / "inventory.key")
        self._root = root
        self._turn = asyncio.Lock()
        self._worker: _Worker | None = None

    async def detect(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Say which profiles fit the machine, and what its own says."""
        return await self._ask("detect", params, None)

    async def take(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Send the machine's inventory, one entry an item; answer what is said of the whole."""
        return await self._ask("take", params, stream)

    async def _ask(
        self, what: str, params: dict[str, Any], stream: Stream | None
    ) -> dict[str, Any]:
        deadline_s = params.get("deadline_s")
        if not isinstance(deadline_s, (int, float)) or not 0 < deadline_s <= _DEADLINE_MOST_S:
            raise AgentError(errors.INVALID, f"a deadline of {deadline_s!r} seconds cannot be")
        async with self._turn:
            is_kept = self._worker is not None and not self._worker.has_ended
            try:
                end = await self._ask_worker(what, params, stream, deadline_s + _MARGIN_S)
            except _Cut as cut:
                if not is_kept or not cut.is_silent:
                    raise
                # it had ended since the last time, which was not known yet
                end = await self._ask_worker(what, params, stream, deadline_s + _MARGIN_S)
        if "error" in end:
            raise AgentError(errors.FAILED, f"the inventory failed: {str(end['error'])[:500]}")
        return end

    async def _ask_worker(
        self, what: str, params: dict[str, Any], stream: Stream | None, limit_s: float
    ) -> dict[str, Any]:
        if self._worker is None or self._worker.has_ended:
            self._worker = await _Worker.start(self._launcher, self._root, self._key_path)
        worker = self._worker
        timer = asyncio.get_running_loop().call_later(limit_s, worker.kill)
        try:
            return await worker.ask({**params, "do": what}, stream)
        except BaseException:
            self._worker = None
            worker.kill()
            raise
        finally:
            timer.cancel()


class _Cut(AgentError):
    """Raised when the process ended before its answer did."""

    def __init__(self, *, is_silent: bool) -> None:
        super().__init__(errors.TIMEOUT, "the inventory took too long, or its process was ended")
        self.is_silent = is_silent
        """It said nothing, and nobody ended it for being late."""


class _Worker:
    """The process, and the socket that it listens to."""

    def __init__(self, launcher: Launcher, child: Child, link: socket.socket) -> None:
        self._launcher = launcher
        self._child = child
        self._link = link
        self._rest = bytearray()
        self.has_ended = False
        self._was_killed = False

    @staticmethod
    async def start(launcher: Launcher, root: str, key_path: str) -> _Worker:
        """Start the process."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        ended: list[int | None] = []
        found: list[_Worker] = []

        def on_exit(status: int | None) -> None:
            ended.append(status)
            for worker in found:
                worker.ended()

        source = str(Path(__file__).parent.parent)
        argv = [sys.executable, "-I", "-S", "-B", "-c", _CODE, source, root, key_path]
        program = Program(
            argv=[os.fsencode(word) for word in argv],
            programs=[os.fsencode(sys.executable)],
            env={b"PATH": os.fsencode(os.environ.get("PATH") or BASE_PATH), b"LANG": b"C.UTF-8"},
        )
        try:
            child = await launcher.launch(program, (theirs.fileno(), null, null), on_exit)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(null)
        found.append(_Worker(launcher, child, ours))
        if ended:
            found[0].ended()
        return found[0]

    def ended(self) -> None:
        """Note that the process has ended."""
        self.has_ended = True
        self._launcher.release(self._child.cgroup)
        with contextlib.suppress(OSError):
            self._link.shutdown(
                socket.SHUT_RDWR
            )  # who reads from it reads its end; it is closed with the last name

    def kill(self) -> None:
        """End the process, and what it has started."""
        self._was_killed = True
        if not self.has_ended:
            self._launcher.kill(self._child)

    async def ask(self, request: dict[str, Any], stream: Stream | None) -> dict[str, Any]:
        """Ask, send on the items of the answer, and return its end.

        Raises:
            AgentError: the process ended, or answered what makes no sense.
        """
        loop, is_silent = asyncio.get_running_loop(), True
        try:
            await loop.sock_sendall(self._link, protocol.pack_json(request) + b"\n")
            while True:
                *lines, rest = self._rest.split(b"\n")
                end = lines.pop() if lines and lines[-1].startswith(b'{"end":') else None
                self._rest = bytearray(rest) if end is None else bytearray()
                if lines and stream is not None:
                    await stream.send(protocol.CHANNEL_ITEMS, b"\n".join(lines) + b"\n")
                if end is not None:
                    return dict(json.loads(end)["end"])
                data = await loop.sock_recv(self._link, _BATCH)
                if not data:
                    raise _Cut(is_silent=is_silent and not self._was_killed)
                is_silent = False
                if len(self._rest) > _LINE_MOST:
                    raise AgentError(errors.FAILED, "the inventory's process sent too long a line")
                self._rest += data
        except ConnectionError as exc:  # it ended with something of ours unread
            raise _Cut(is_silent=is_silent and not self._was_killed) from exc
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise AgentError(errors.FAILED, f"the inventory's process failed: {exc!r}") from exc
