"""What is known of each command, kept on disk: one file of JSON lines, the newest line of an id counts.

A line is written with one call to a file that is open already: the cheapest way to have it survive the agent's
death. It is not forced to the disk: after a crash of the whole machine a command may be forgotten or lost.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

_SLACK = 4096
"""Lines beyond the newest ones at which the file is written anew."""


class Journal:
    """The newest word on each command, by id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lines = 0
        self._newest: dict[str, bytes] = {}
        self._is_torn = False

    def load(self) -> dict[str, dict[str, Any]]:
        """Return what an agent before us wrote; what cannot be read is passed over."""
        found: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    value = json.loads(line)
                    if isinstance(value, dict) and isinstance(value.get("exec_id"), str):
                        found.pop(value["exec_id"], None)
                        if value.get("state") != "forgotten":
                            found[value["exec_id"]] = value
        self._newest = {exec_id: _line(value) for exec_id, value in found.items()}
        self._rewrite()
        return found

    def put(self, info: dict[str, Any]) -> None:
        """Note the newest word on `info["exec_id"]`. Raises `OSError`; then it may not be kept."""
        line = _line(info)
        self._append(line)
        self._newest[info["exec_id"]] = line

    def forget(self, exec_id: str) -> None:
        """Keep nothing of `exec_id`."""
        if self._newest.pop(exec_id, None) is None:
            return
        with contextlib.suppress(OSError):
            if self._lines > len(self._newest) + _SLACK:
                self._rewrite()
            else:
                self._append(_line({"exec_id": exec_id, "state": "forgotten"}))

    def _append(self, line: bytes) -> None:
        if self._is_torn:
            line = b"\n" + line
        written = os.write(self._fd, line)
        self._is_torn = written < len(line)
        if self._is_torn:
            raise OSError(28, "No space left on device")
        self._lines += 1

    def _rewrite(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_bytes(b"".join(self._newest.values()))
        new.replace(self._path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._lines = len(self._newest)
        self._is_torn = False


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
