"""The floor's control connection: blocking, one command at a time, nothing between us and QEMU."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from torpor.errors import VmmFailed

_POLL_S = 0.0005


class Qmp:
    """A greeted QMP session over a connected socket, which it owns."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lines = connected.makefile("rb")
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

    def wait_loaded(self, *, polls: int = 120_000) -> None:
        """Return when the state that QEMU was started with is loaded."""
        pause = threading.Event()
        for _ in range(polls):
            if self.execute("query-status")["status"] != "inmigrate":
                return
            pause.wait(_POLL_S)
        raise VmmFailed("QEMU did not load the state in time")

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
            raise VmmFailed("QEMU closed its control connection")
        found: dict[str, Any] = json.loads(line)
        return found
