"""The floor's control connection: blocking, one command at a time, nothing between us and QEMU."""

from __future__ import annotations

import collections
import json
import socket
import threading
from typing import Any

from torpor.errors import VmmFailed

_POLL_S = 0.0005
_ANSWER_S = 120.0


class Qmp:
    """A greeted QMP session over a connected socket, which it owns."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(_ANSWER_S)
        self._lines = connected.makefile("rb")
        self._events: collections.deque[dict[str, Any]] = collections.deque(maxlen=100)
        self._read()  # the greeting
        self.execute("qmp_capabilities")

    def execute(self, name: str, **arguments: Any) -> Any:
        """Run one command and return its answer. Raises `VmmFailed` for a refusal or a closed connection."""
        request = {"execute": name, **({"arguments": arguments} if arguments else {})}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as exc:
            raise VmmFailed(f"QEMU closed its control connection before {name!r}") from exc
        while True:
            answer = self._read()
            if "error" in answer:
                raise VmmFailed(f"QEMU refused {name!r}: {answer['error'].get('desc')}")
            if "return" in answer:
                return answer["return"]
            self._events.append(answer)

    def wait_loaded(self, *, polls: int = 120_000) -> None:
        """Return when the state that QEMU was started with is loaded."""
        pause = threading.Event()
        for _ in range(polls):
            if self.execute("query-status")["status"] != "inmigrate":
                return
            pause.wait(_POLL_S)
        raise VmmFailed("QEMU did not load the state in time")

    def wait_event(self, name: str, **data: Any) -> None:
        """Return when QEMU tells an event with that data, or has told it since it was last waited for."""
        while True:
            for event in self._events:
                if event.get("event") == name and data.items() <= event.get("data", {}).items():
                    self._events.clear()
                    return
            self._events.append(self._read())

    def close(self) -> None:
        """Close the connection; QEMU runs on."""
        self._lines.close()
        self._socket.close()

    def _read(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line:
            raise VmmFailed(
                f"QEMU closed its control connection, or said nothing for {_ANSWER_S:g} s"
            )
        found: dict[str, Any] = json.loads(line)
        return found
