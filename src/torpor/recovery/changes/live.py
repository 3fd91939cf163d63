"""What a command writes, as it comes, without what looks like a secret.

A secret may come in two pieces. So what is told ends where a line does; a line that does not end is told when it is
long, or when the command has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from torpor.base.masking import masked

CHUNK_BYTES: Final = 32 << 10
HELD_MOST: Final = 4096
KEY_MOST: Final = 16 << 10
"""What follows on the first line of a private key is left out up to its last, or for so long."""
_OPEN: Final = (b"=", b":", b"bearer", b"basic")
"""Ends of lines whose value may be on the next one."""
_KEY: Final = re.compile(r"-----(BEGIN|END) [A-Z ]{0,30}PRIVATE KEY-----")


class LiveText:
    """One stream of output."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._offset = 0
        self._key_left = 0

    def feed(self, data: bytes, offset: int) -> Iterator[tuple[int, str]]:
        """Take in bytes from `offset` on, and yield texts with their offsets in what was written."""
        if not self._held:
            self._offset = offset
        self._held += data
        yield from self._pieces(self._ready())

    def end(self) -> Iterator[tuple[int, str]]:
        """Yield what was held back."""
        yield from self._pieces(len(self._held))

    def _ready(self) -> int:
        """Return how much of what is held can be told."""
        held, floor = self._held, max(0, len(self._held) - HELD_MOST)
        end = len(held)
        while (end := _last(held, floor, end)) >= 0:
            if not _is_open(held[max(_last(held, max(0, end - HELD_MOST), end) + 1, 0) : end]):
                return end + 1
        cut = floor
        while cut and (cut := held.rfind(b" ", max(0, floor - HELD_MOST), cut)) > 0:
            if not _is_open(held[max(0, cut - HELD_MOST) : cut]):
                return cut + 1
        return max(0, floor - HELD_MOST)

    def _pieces(self, size: int) -> Iterator[tuple[int, str]]:
        while size > 0:
            piece = bytes(self._held[: min(size, CHUNK_BYTES)])
            if len(piece) < size and (cut := piece.rfind(b"\n") + 1):
                piece = piece[:cut]
            if shown := self._shown(piece.decode("utf-8", "replace")):
                yield self._offset, shown
            del self._held[: len(piece)]
            self._offset += len(piece)
            size -= len(piece)

    def _shown(self, text: str) -> str:
        marks = list(_KEY.finditer(text))
        if self._key_left > 0:
            self._key_left -= len(text)
            if not marks:
                return ""
            text = text[marks[0].start() :]
        if marks:
            self._key_left = KEY_MOST if marks[-1][1] == "BEGIN" else 0
        return masked(text)


def _last(held: bytearray, begin: int, end: int) -> int:
    """Return where the last end of a line is, -1 if there is none."""
    return max(held.rfind(b"\n", begin, end), held.rfind(b"\r", begin, end))


def _is_open(line: bytearray) -> bool:
    return line.rstrip(b" \t\r\"'").lower().endswith(_OPEN)
