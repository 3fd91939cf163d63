"""What the host gave this sandbox of its own: the environment that lies over the image's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError

SANDBOX_FILE = "/etc/torpor/sandbox.json"
_MAX_BYTES = 4 << 20


class SandboxFile:
    """`/etc/torpor/sandbox.json`: {"env": {name: value}}. The host writes it at any time; it is read when it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._env: Mapping[str, str] = {}

    def env(self) -> Mapping[str, str]:
        """Return the environment; empty if there is no file.

        Raises:
            AgentError: the file is not what it should be. A command without what it needs is worse than none.
        """
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._seen = None
            return {}
        except OSError as exc:
            raise errors.from_os(exc, f"read {self._path}") from exc
        seen = found.st_ino, found.st_mtime_ns, found.st_size
        if seen != self._seen:
            self._env = _load(self._path)
            self._seen = seen
        return self._env


def _load(path: Path) -> Mapping[str, str]:
    try:
        with path.open("rb") as file:
            value: Any = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError) as exc:
        raise _damaged(path, str(exc)) from exc
    env = value.get("env", {}) if isinstance(value, dict) else None
    if not isinstance(env, dict) or not all(isinstance(item, str) for item in env.values()):
        raise _damaged(path, "it is no object whose env maps names to texts")
    return env


def _damaged(path: Path, why: str) -> AgentError:
    return AgentError(
        errors.FAILED,
        f"the sandbox's environment cannot be read from {path}: {why}",
        hint="write it anew, or remove the file if the sandbox needs none",
    )
