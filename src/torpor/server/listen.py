"""The daemon's sockets: private from the first moment, and never in the way of another daemon's."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Final

from torpor.base import fsio
from torpor.errors import Conflict, InvalidRequest

BACKLOG = 2048
TCP_PORT: Final = 7475
"""Where nothing else is asked for."""


def listen_unix(path: Path) -> socket.socket:
    """Return a listening socket at `path`, mode 0600; a stale one there is replaced.

    It is made beside its place and renamed into it: whoever finds it can connect, and nobody else ever
    could. The caller holds the daemon's lock, so what is there belongs to no living daemon.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        mask = os.umask(0o177)
        try:
            with fsio.socket_name(temporary) as name:
                found.bind(name)
        finally:
            os.umask(mask)
        found.listen(BACKLOG)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        found.close()
        raise
    return found


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    Raises:
        InvalidRequest: `host` is no address of this machine.
        Conflict: the port is taken.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind | socket.SOCK_CLOEXEC)
    except (OSError, UnicodeError) as exc:
        raise _no_address(host, exc) from exc
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError as exc:
        found.close()
        if exc.errno == errno.EADDRNOTAVAIL:
            raise _no_address(host, exc) from exc
        raise Conflict(
            f"cannot listen on {host}:{port}: {exc.strerror}", hint="choose another port", port=port
        ) from exc
    return found


def _no_address(host: str, error: OSError | UnicodeError) -> InvalidRequest:
    why = error.strerror if isinstance(error, OSError) else "it cannot be a name"
    return InvalidRequest(
        f"cannot listen on {host!r}: {why}",
        hint="an address of this host is wanted, such as 127.0.0.1, or 0.0.0.0 for all",
        host=host,
    )
