"""A console's log: the machines of a folder write it one after another, and how the last one ended is read from it."""

from __future__ import annotations

from typing import BinaryIO

_BEGINS = "--- torpor: another machine begins ---"


def begin(log: BinaryIO) -> None:
    """Mark in a log, open to append, that what follows is another machine's; not in an empty one. Blocks."""
    if log.seek(0, 2):
        log.write(f"\n{_BEGINS}\n".encode())
        log.flush()


def of_the_last(said: str) -> str:
    """Return what of the end of a log the last machine said."""
    return said.rpartition(_BEGINS)[2].strip()
