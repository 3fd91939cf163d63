"""The last of what a terminal has shown, in memory, so that who comes back can read on where they were."""

from __future__ import annotations

LIMIT_BYTES = 1 << 20
"""How much of a terminal's output is kept at least; a quarter more at most."""
REST_BYTES = 128 << 10
"""How much of it, some time after the command's end."""


class Scrollback:
    """As a spool, but of the newest bytes: `total` were written, those from `begin` on are here.

    It is not on the disk: a terminal works when that is full, and is in a snapshot as its processes are.
    """

    path = ""
    is_quick = True

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self.limit = limit
        self.total = 0
        self.begin = 0
        self._data = bytearray()

    @property
    def kept(self) -> int:
        """Where what is kept ends."""
        return self.total

    def append(self, data: bytes) -> int:
        """Keep `data`, and no more of the oldest than there is room for."""
        self._data += data
        self.total += len(data)
        if len(self._data) > self.limit + self.limit // 4:
            self._keep(self.limit)
        return len(data)

    def shrink(self) -> None:
        """Keep only what is worth it of a command that has ended a while ago."""
        self._keep(min(self.limit, REST_BYTES))

    def _keep(self, most: int) -> None:
        gone = max(0, len(self._data) - most)
        self._data = self._data[gone:]
        self.begin += gone

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset` on, which is not before `begin`."""
        start = max(0, offset - self.begin)
        return bytes(self._data[start : start + size])

    def close(self) -> None:
        """Do nothing: there is no file."""

    def restore(self, total: int, kept: int) -> None:
        """Take over how much an agent before us had counted; none of it is here."""
        self.total = self.begin = total
