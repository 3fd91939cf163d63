"""The access log: one JSON object a line for each request, written by a thread, bounded on disk and in memory."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import queue
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path

from typing_extensions import override

FILE_BYTES = 16 << 20
FILES = 4
"""How many older files are kept beside the one that is written."""
_WAITING_MOST = 10_000


class _Private(logging.handlers.RotatingFileHandler):
    """Makes each file with mode 0600."""

    @override
    def _open(self) -> TextIOWrapper:
        found = super()._open()
        os.fchmod(found.fileno(), 0o600)
        return found


class AccessLog:
    """Takes lines without waiting; what the disk is too slow for is dropped, and how many were is said."""

    def __init__(self) -> None:
        self._queue: queue.Queue[logging.LogRecord] = queue.Queue(_WAITING_MOST)
        self._dropped = 0

    def write(self, line: Mapping[str, object]) -> None:
        """Add a line."""
        if self._dropped:
            line = {**line, "dropped_before": self._dropped}
        text = json.dumps(line, ensure_ascii=True, separators=(",", ":"))
        try:
            self._queue.put_nowait(logging.makeLogRecord({"msg": text, "args": ()}))
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    @contextlib.contextmanager
    def into(self, path: Path) -> Iterator[None]:
        """Write to `path` (mode 0600) while the context lasts."""
        handler = _Private(
            path, maxBytes=FILE_BYTES, backupCount=FILES, encoding="ascii", delay=True
        )
        listener = logging.handlers.QueueListener(self._queue, handler)
        listener.start()
        try:
            yield
        finally:
            listener.stop()
            handler.close()
