"""A helper that keeps a store quiet, as a program of its own: `python3 -m torpor_guest.holder`.

The first line of stdin is its configuration (JSON); each line after it is a phase, answered with one line of
JSON. While it holds something it lets go by itself: when stdin ends, since then whoever started it is gone, and
when the time it was given is over. Standard library only, and nothing of the agent's own state.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any, Protocol

from torpor_guest.keeping import KeeperFailed, Nothing

_GRACE_S = 3.0
"""Longer than the agent's own dead man, who comes first and says why."""


class Keeper(Protocol):
    """What keeps one kind of store quiet. Each returns a sentence or raises `KeeperFailed`."""

    def prepare(self, deadline: float) -> str:
        """Do what takes time while everybody goes on."""
        ...

    def hold(self, deadline: float) -> str:
        """Let nobody write from now on."""
        ...

    def confirm(self) -> str:
        """Raise unless it was held ever since."""
        ...

    def release(self) -> str:
        """Let all go on."""
        ...


def keeper_for(config: dict[str, Any]) -> Keeper:
    """Return the keeper for a configuration."""
    kind = config["kind"]  # only what is needed is imported: it counts on a slow machine
    if kind == "sqlite":
        from torpor_guest.keep_sqlite import SqliteKeeper

        return SqliteKeeper(config)
    if kind == "redis":
        from torpor_guest.keep_redis import RedisKeeper

        return RedisKeeper(config)
    from torpor_guest.keep_postgres import PostgresKeeper

    return PostgresKeeper(config)


class Lines:
    """Lines of a descriptor, with a limit in time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        self._is_over = False

    def next(self, deadline: float | None) -> bytes | None:
        """Return the next line; None when there is no more, or `deadline` has passed."""
        while b"\n" not in self._buffer and not self._is_over:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._fd], [], [], left_s)[0]:
                return None
            data = os.read(self._fd, 1 << 16)
            self._buffer += data
            self._is_over = not data
        line, found, self._buffer = self._buffer.partition(b"\n")
        return line if found else None


def main() -> None:
    """Serve stdin until it ends."""
    lines = Lines(0)
    keeper = keeper_for(json.loads(lines.next(None) or b"{}"))
    let_go_at: float | None = None
    try:
        while (line := lines.next(let_go_at)) is not None:
            phase, _, rest = line.decode().partition(" ")
            limits = [float(word) for word in rest.split()]
            if phase == "hold":
                let_go_at = time.monotonic() + limits[1] + _GRACE_S
            answer = _answer(keeper, phase, limits)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
            if phase == "release":
                return
    finally:
        keeper.release()


def _answer(keeper: Keeper, phase: str, limits: list[float]) -> dict[str, Any]:
    try:
        if phase in ("prepare", "hold"):
            act = keeper.prepare if phase == "prepare" else keeper.hold
            return {"ok": True, "message": act(time.monotonic() + limits[0])}
        if phase == "confirm":
            return {"ok": True, "message": keeper.confirm()}
        return {"ok": True, "message": keeper.release()}
    except Nothing:
        return {"ok": True, "message": "", "nothing": True}
    except KeeperFailed as exc:
        return {"ok": False, "message": str(exc)}
    except Exception as exc:  # noqa: BLE001  # whoever asked must be told
        return {"ok": False, "message": f"{type(exc).__name__}: {exc}"}


if __name__ == "__main__":
    main()
