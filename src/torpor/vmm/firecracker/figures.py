"""What a Firecracker counts: it writes, when asked and each minute, a line with what is new since the line before.

We add the lines up. Those that were added are cut out of the file's beginning, now and then, once the sums are kept in a file
of ours: so it stays small, and the next daemon goes on from there. Nothing in the lines is believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from torpor.base.fsio import open_plain, read_json
from torpor.base.sparse import make_hole
from torpor.base.units import KIB, MIB
from torpor.errors import TorporError, VmmFailed
from torpor.model_usage import DeviceFigures
from torpor.vmm.firecracker import config

KEPT = "metrics.json"
_LINE_MOST = 256 * KIB
"""7 KiB were seen."""
_AT_ONCE = 1 * MIB
_LINES_AT_ONCE = 500
"""Of the rest the next call takes care: a Firecracker that was taken over must not keep the daemon busy."""
_BUSY_S = 1.0
_LEFT_MOST = 128 * KIB
_COUNT_MOST = 1 << 62

_SOURCES: Final = {
    "disk_read_bytes": ("block.read_bytes",),
    "disk_written_bytes": ("block.write_bytes",),
    "disk_reads": ("block.read_count",),
    "disk_writes": ("block.write_count",),
    "disk_failures": ("block.execute_fails", "block.invalid_reqs_count"),
    "disk_throttled": ("block.rate_limiter_throttled_events",),
    "network_received_bytes": ("net.rx_bytes_count",),
    "network_sent_bytes": ("net.tx_bytes_count",),
    "network_received_packets": ("net.rx_packets_count",),
    "network_sent_packets": ("net.tx_packets_count",),
    "network_failures": ("net.rx_fails", "net.tx_fails", "net.tap_write_fails"),
    "network_throttled": ("net.rx_rate_limiter_throttled", "net.tx_rate_limiter_throttled"),
}
"""Where in a line each figure is; `block` and `net` are all disks and all network cards."""


class Figures:
    """The sums of one machine. May be used by several threads."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "vm" / config.METRICS
        self._kept = folder / KEPT
        self._lock = threading.Lock()
        self._sums: Counter[str] | None = None
        self._at = 0
        """How much of the file is in the sums."""
        self._cut = 0

    def forget(self) -> None:
        """Forget what an earlier machine in this folder counted. Blocks."""
        self._kept.unlink(missing_ok=True)

    def read(self) -> DeviceFigures:
        """Return the sums, with what was written since the last call, or the first MiB of it. Blocks.

        Raises:
            VmmFailed: another thread has been at it for long.
        """
        with self._alone():
            sums = self._known()
            with contextlib.suppress(OSError), open_plain(self._file, os.O_RDWR) as file:
                self._add(file.fileno(), sums)
                if self._at - self._cut > _LEFT_MOST:
                    self._keep(sums)
                    make_hole(file.fileno(), 0, self._at)
                    self._cut = self._at
            return DeviceFigures(**{name: sums[name] for name in _SOURCES})

    def tidy(self) -> None:
        """Add up and cut the file if it has grown. Blocks."""
        with contextlib.suppress(OSError, VmmFailed):
            if self._file.lstat().st_size - self._at > _LEFT_MOST:
                self.read()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=_BUSY_S):
            raise VmmFailed(
                f"what Firecracker counted in {self._file} is still being added up after {_BUSY_S:g} s",
                hint="ask again; the host's disk may be slow",
            )
        try:
            yield
        finally:
            self._lock.release()

    def _known(self) -> Counter[str]:
        if self._sums is None:
            self._sums = Counter()
            with contextlib.suppress(TorporError, KeyError, TypeError, ValueError):
                kept: Any = read_json(self._kept, limit_bytes=64 * KIB)
                self._sums.update({name: int(kept["sums"].get(name, 0)) for name in _SOURCES})
                self._at = self._cut = int(kept["at"])
        return self._sums

    def _keep(self, sums: Counter[str]) -> None:
        """Write the sums for the next daemon. They need not outlive the host, as the machine does not."""
        half = self._kept.with_suffix(".half")
        half.write_text(json.dumps({"at": self._at, "sums": sums}))
        half.replace(self._kept)

    def _add(self, fd: int, sums: Counter[str]) -> None:
        """Add the lines that are whole, as many as one call takes."""
        data = os.pread(fd, _AT_ONCE, self._at)
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) > _LINE_MOST:  # none of Firecracker's
                self._at += len(data)
            return
        *lines, rest = data[:end].split(b"\n", _LINES_AT_ONCE)
        for line in lines:
            if len(line) <= _LINE_MOST:
                sums.update(_new_in(line))
        self._at += end - len(rest)


def _new_in(line: bytes) -> dict[str, int]:
    """Return what one line adds to each figure; nothing if it is no such line."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return {
        name: sum(_count(told, source) for source in sources) for name, sources in _SOURCES.items()
    }


def _count(told: object, source: str) -> int:
    for name in source.split("."):
        told = told.get(name) if isinstance(told, dict) else None
    is_count = isinstance(told, int) and not isinstance(told, bool) and 0 <= told < _COUNT_MOST
    return told if is_count else 0  # type: ignore[return-value]
