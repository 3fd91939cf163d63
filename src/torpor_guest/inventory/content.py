"""Digests of files, read once: a file whose size, times and inode are what they were is not read again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from torpor_guest.inventory.budget import Budget
from torpor_guest.inventory.keyed import Keyed
from torpor_guest.inventory.walk import Found

T = TypeVar("T")

FILE_MOST = 8 << 20
"""A larger file is known by its size and time alone."""
CACHE_MOST = 40_000
_CHUNK = 1 << 20
_FRESH_NS = 1_000_000_000
"""A file that changed so lately may change again without its times changing."""


class Cache:
    """What was found out about files, as long as they stay what they were."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[tuple[int, ...], object]] = {}
        self.hits = 0
        self.misses = 0

    def get(
        self,
        what: str,
        path: str,
        signature: tuple[int, ...],
        make: Callable[[], T],
        newest_ns: int,
    ) -> T:
        """Return what `make` returned for this signature, or returns now."""
        kept = self._kept.get((what, path))
        if kept is not None and kept[0] == signature:
            self.hits += 1
            return kept[1]  # type: ignore[return-value]
        self.misses += 1
        value = make()
        if time.time_ns() - newest_ns >= _FRESH_NS:
            if len(self._kept) >= CACHE_MOST:
                self._kept.clear()
            self._kept[what, path] = (signature, value)
        else:
            self._kept.pop((what, path), None)
        return value

    def of_file(self, what: str, found: Found, make: Callable[[], T]) -> T:
        """Return what `make` found out about a file."""
        newest = max(found.stat.st_mtime_ns, found.stat.st_ctime_ns)
        return self.get(what, found.path, found.signature, make, newest)


class Reader:
    """Reads files within a budget."""

    def __init__(self, cache: Cache, budget: Budget, keyed: Keyed) -> None:
        self.cache = cache
        self._budget = budget
        self._keyed = keyed

    def digest(self, found: Found) -> str | None:
        """Return the keyed digest of a regular file; None when it is too large, closed to us, or over the budget."""
        if found.stat.st_size > FILE_MOST:
            return None
        try:
            return self.cache.of_file(self._keyed.key_id, found, lambda: self._digest(found))
        except OSError:
            return None

    def _digest(self, found: Found) -> str:
        digest = self._keyed.hasher()
        digest.update(b"file\0")
        for piece in self._pieces(found, FILE_MOST):
            digest.update(piece)
        return digest.hexdigest()

    def read(self, found: Found, most: int) -> bytes:
        """Return a file's content. Raises `OSError`, also when it is longer than `most`."""
        return b"".join(self._pieces(found, most))

    def _pieces(self, found: Found, most: int) -> list[bytes]:
        fd = found.open()
        try:
            pieces, size = [], 0
            while piece := os.read(fd, _CHUNK):
                size += len(piece)
                self._budget.bytes_left -= len(piece)
                if size > most:
                    raise OSError(27, f"it is larger than {most} bytes", found.path)
                if self._budget.bytes_left < 0:
                    raise OSError(27, "too much was read already", found.path)
                self._budget.check_time()
                pieces.append(piece)
            return pieces
        finally:
            os.close(fd)
