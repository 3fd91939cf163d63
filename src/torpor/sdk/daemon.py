"""Starts the local daemon when none answers: one, however many clients ask at once."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from torpor.base.fsio import locked, socket_name
from torpor.base.home import Home
from torpor.base.proc import SAFE_ENV
from torpor.errors import Busy, DaemonUnreachable, TorporError, error_from_wire

START_LIMIT_S = 90.0
"""Seconds for a daemon to start; it adopts machines first."""

_POLL_S = 0.02
_BUSY_POLL_S = 0.2
_END_LIMIT_S = 5.0
_PASSED_PREFIXES = ("TORPOR_", "PYTHON", "XDG_", "LC_", "SSL_CERT_", "OTEL_")
_PASSED_NAMES = frozenset((*SAFE_ENV, "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "VIRTUAL_ENV"))
_WITHHELD = frozenset({"TORPOR_TOKEN", "TORPOR_URL"})


def answers(home: Home) -> bool:
    """Return whether a daemon listens on the home's socket."""
    try:
        with (
            socket_name(home.socket) as name,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
        ):
            probe.settimeout(5)
            probe.connect(name)
    except OSError:
        return False
    return True


def ensure_daemon(home: Home, *, limit_s: float = START_LIMIT_S) -> None:
    """Return when a daemon listens on the home's socket, after starting one if there is none. Blocks.

    The daemon runs on in a session of its own; what it logs is in `home.daemon_log`.

    Raises:
        DaemonUnreachable: it did not start within `limit_s` seconds, or ended; with its last log lines.
        TorporError: what the daemon itself said is wrong, such as `HostNotReady`.
    """
    if answers(home):
        return
    ends_at = time.monotonic() + limit_s
    try:
        home.prepare()
    except OSError as exc:
        raise DaemonUnreachable(
            f"{home.root} cannot be used: {exc.strerror}",
            hint="set TORPOR_HOME to a folder that you may write",
            home=home.root,
        ) from exc
    with _start_lock(home, ends_at):
        if answers(home):
            return
        while True:
            try:
                _start(home, ends_at)
            except Busy:
                # Someone runs `torpor serve` and it is not yet listening, or another is just ending.
                if time.monotonic() > ends_at:
                    raise
                threading.Event().wait(_BUSY_POLL_S)
            if answers(home):
                return
            if time.monotonic() > ends_at:
                raise DaemonUnreachable(
                    "the daemon starts and ends again", hint=f"its log is {home.daemon_log}"
                )


@contextlib.contextmanager
def _start_lock(home: Home, ends_at: float) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(home.start_lock, wait=False))
                break
            except Busy as exc:
                if time.monotonic() > ends_at:
                    raise DaemonUnreachable(
                        "another client is starting the daemon and does not come to an end",
                        hint=f"see {home.daemon_log}",
                    ) from exc
                threading.Event().wait(_POLL_S)
        yield


def _start(home: Home, ends_at: float) -> None:
    read_fd, write_fd = os.pipe()
    try:
        try:
            pid = _spawn(home, write_fd)
        finally:
            os.close(write_fd)
        said = _read_line(read_fd, ends_at)
    finally:
        os.close(read_fd)
    if said == b"ready\n":
        return
    _end(pid)
    raise _failure(home, said)


def _end(pid: int) -> None:
    """End a daemon that could not start, and reap it; machines are not its children."""
    ends_at = time.monotonic() + _END_LIMIT_S
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > ends_at:
                os.kill(pid, signal.SIGKILL)
            threading.Event().wait(_POLL_S)


def _spawn(home: Home, ready_fd: int) -> int:
    """Start the daemon in a session of its own and return its process id."""
    child_fd = 3 if ready_fd != 3 else 4  # dup2 onto itself would leave it closed on exec
    argv = [
        sys.executable,
        "-m",
        "torpor.server",
        "--home",
        str(home.root),
        "--ready-fd",
        str(child_fd),
    ]
    env = {key: value for key, value in os.environ.items() if _passes(key)}
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        return os.posix_spawn(
            sys.executable,
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(home.daemon_log), log_flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, ready_fd, child_fd),
                *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited() if fd != child_fd),
            ],
            setsid=True,
        )
    except OSError as exc:
        raise DaemonUnreachable(f"the daemon cannot be started: {exc}") from exc


def _inherited() -> list[int]:
    """Return the files that a child would get beside the three: a lock held by us must not live on in it."""
    found = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    inherited = []
    for fd in found:
        with contextlib.suppress(OSError):  # the folder's own, or closed meanwhile
            if fd > 2 and os.get_inheritable(fd):
                inherited.append(fd)
    return inherited


def _passes(key: str) -> bool:
    return key not in _WITHHELD and (key in _PASSED_NAMES or key.startswith(_PASSED_PREFIXES))


def _read_line(fd: int, ends_at: float) -> bytes:
    """Return what comes up to a newline, the end or the time limit."""
    said = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    while not said.endswith(b"\n") and len(said) < 1 << 20:
        left_ms = int((ends_at - time.monotonic()) * 1000)
        if left_ms <= 0 or not poll.poll(left_ms):
            break
        data = os.read(fd, 65536)
        if not data:
            break
        said += data
    return said


def _failure(home: Home, said: bytes) -> TorporError:
    if said.endswith(b"\n"):
        return error_from_wire(json.loads(said))
    tail = ""
    with contextlib.suppress(OSError), home.daemon_log.open("rb") as file:
        file.seek(max(0, home.daemon_log.stat().st_size - 2000))
        tail = file.read().decode("utf-8", "replace").strip()
    return DaemonUnreachable(
        f"the daemon did not start: {tail.splitlines()[-1] if tail else 'it said nothing'}",
        hint=f"its log is {home.daemon_log}",
        log=tail,
    )
