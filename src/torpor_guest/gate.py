"""The gate before the disk: shut while the file systems are frozen.

Rule: whatever the agent's loop does that may write to a disk goes through here. A write to a frozen file system
blocks until it is thawed, and a loop that blocks could not take the request to thaw. Reading never blocks, and
neither does writing to pipes, sockets, /proc, /run and cgroups. Even closing a file counts as a write, since its
last name may be gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

_MAX_HELD = 500

_log = logging.getLogger("torpor")


class Gate:
    """Lets work pass, or keeps it until it is opened again, in order. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self.is_shut = False
        self._waiting: deque[Callable[[], object]] = deque()

    def shut(self) -> None:
        """Let nothing pass from now on."""
        self.is_shut = True

    def open(self) -> None:
        """Let everything pass; what has waited goes first."""
        self.is_shut = False
        while self._waiting and not self.is_shut:
            action = self._waiting.popleft()
            try:
                action()
            except Exception:  # noqa: BLE001  # the others must not wait for ever
                _log.exception("what had waited for the thaw failed")

    async def passed(self) -> None:
        """Return when the gate is open; until the caller's next `await` it stays so."""
        while self.is_shut:
            opened = asyncio.get_running_loop().create_future()
            self._waiting.append(partial(_settle, opened))
            await opened

    def run(self, action: Callable[[], object]) -> None:
        """Run `action` now, or when the gate is opened."""
        if self.is_shut:
            self._waiting.append(action)
        else:
            action()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


DISK = Gate()
"""The gate that all of the agent shares."""


class HeldLog:
    """Keeps log records while a gate is shut: whoever stores them may sit on a frozen disk."""

    def __init__(self, gate: Gate, handler: logging.Handler) -> None:
        self._gate = gate
        self._handler = handler
        self._held: deque[logging.LogRecord] = deque(maxlen=_MAX_HELD)
        handler.addFilter(self._passes)

    def _passes(self, record: logging.LogRecord) -> bool:
        if self._gate.is_shut:
            if not self._held:
                self._gate.run(self._release)
            self._held.append(record)
            return False
        return True

    def _release(self) -> None:
        while self._held:
            self._handler.emit(self._held.popleft())
