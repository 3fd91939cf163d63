"""The floor's calls of Firecracker: blocking, one connection each, nothing between us and the VMM."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from pathlib import Path

from typing_extensions import override

from torpor.base.fsio import socket_name
from torpor.base.proc import ProcessId
from torpor.errors import VmmFailed

_ANSWER_S = 120.0
_LISTENS_S = 60.0
_POLL_S = 0.0005


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_ANSWER_S)
        self._path = path

    @override
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with socket_name(self._path) as name:
            self.sock.connect(name)


def wait_listening(path: Path, process: ProcessId) -> None:
    """Return when a Firecracker listens at `path`. Raises `VmmFailed` when it has ended or does not in time."""
    pause = threading.Event()
    until = time.monotonic() + _LISTENS_S
    while True:
        with contextlib.closing(_Connection(path)) as link, contextlib.suppress(OSError):
            link.connect()
            return
        if not process.alive():
            raise VmmFailed("Firecracker ended before it listened")
        if time.monotonic() > until:
            raise VmmFailed(f"Firecracker did not listen within {_LISTENS_S:g} s")
        pause.wait(_POLL_S)


def put(path: Path, what: str, body: dict[str, object]) -> None:
    """PUT one thing. Raises `VmmFailed` for a refusal or when no answer comes."""
    with contextlib.closing(_Connection(path)) as link:
        try:
            link.request("PUT", what, json.dumps(body), {"Content-Type": "application/json"})
            answer = link.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as exc:
            raise VmmFailed(f"Firecracker did not answer to {what!r}: {exc!r}") from exc
    if answer.status >= 300:
        raise VmmFailed(f"Firecracker refused {what!r}: {text[:500]}")
