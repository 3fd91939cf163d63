"""One stream of a command's output, kept in a file up to a limit and readable from any offset."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

DEFAULT_LIMIT = 1 << 30
INLINE_BYTES = 1 << 20
"""Beyond this a spool is written in a thread."""


class Spool:
    """Output of one command: `total` bytes were written, the first `kept` of them are in the file.

    The file is made when the first byte comes. When it cannot be written (limit, full disk) the rest is counted
    and not kept: there is never a hole.
    """

    begin = 0
    """Where what is kept begins."""

    def __init__(self, path: str, *, limit: int, owner: tuple[int, int] | None) -> None:
        self.path = path
        self.limit = limit
        self.total = 0
        self.kept = 0
        self._is_full = False
        self._owner = owner
        self._fd = -1

    @property
    def is_truncated(self) -> bool:
        """Whether more was written than is kept."""
        return self.kept < self.total

    @property
    def is_quick(self) -> bool:
        """Whether writing to it makes nobody wait: the kernel holds up heavy writers."""
        return self.kept < INLINE_BYTES

    def append(self, data: bytes) -> int:
        """Keep what of `data` there is room for; return how many bytes that was."""
        self.total += len(data)
        room = 0 if self._is_full else self.limit - self.kept
        piece = data[:room] if room < len(data) else data
        written = 0
        try:
            if piece:
                if self._fd < 0:
                    self._create()
                while written < len(piece):
                    written += os.write(self._fd, piece[written:] if written else piece)
        except OSError:
            self._is_full = True
        self.kept += written
        return written

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` kept bytes from `offset` on."""
        if offset >= self.kept:
            return b""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return os.pread(self._fd, min(size, self.kept - offset), offset)

    def _create(self) -> None:
        """Open the file for more; a new one is readable for the command's user."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o400)
        if self._owner:
            os.fchown(self._fd, *self._owner)

    def close(self) -> None:
        """Close the file; it can still be read after."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def restore(self, total: int, kept: int) -> None:
        """Take over what an agent before us had counted, as far as the file bears it out."""
        try:
            size = Path(self.path).lstat().st_size
        except OSError:
            size = 0
        self.kept = min(kept, size)
        self.total = max(total, self.kept)
        self._is_full = True
