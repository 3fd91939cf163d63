"""Terminals for commands: a pair of ends, the size of the window, and who is in the foreground."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import re
import struct
import termios
from dataclasses import dataclass
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.users import User

MAX_TERMINALS = 64
MAX_SIDE = 4096
TERM = "xterm-256color"
END_OF_INPUT = b"\x04"
_TERM = re.compile(r"[A-Za-z0-9._+-]{1,64}")


@dataclass(frozen=True)
class Window:
    """How large a terminal is."""

    columns: int
    rows: int

    @staticmethod
    def of(params: dict[str, Any]) -> Window:
        """Return what `params` say, or raise `AgentError`."""
        sides = []
        for key, usual in (("columns", 80), ("rows", 24)):
            side = params.get(key)
            side = usual if side is None else side
            if not isinstance(side, int) or isinstance(side, bool) or not 1 <= side <= MAX_SIDE:
                raise AgentError(
                    errors.INVALID, f"{key} of a terminal are 1 to {MAX_SIDE}, got {side!r}"
                )
            sides.append(side)
        return Window(*sides)


@dataclass(frozen=True)
class TerminalRequest:
    """What a command's terminal is to be."""

    window: Window
    term: str


def terminal_in(params: dict[str, Any]) -> TerminalRequest | None:
    """Return the terminal that a request asks for; None: it asks for none. Raises `AgentError`."""
    asked = params.get("terminal")
    if asked is None:
        return None
    if not isinstance(asked, dict):
        raise AgentError(errors.INVALID, "a terminal is an object with columns, rows and term")
    term = asked.get("term") or TERM
    if not isinstance(term, str) or not _TERM.fullmatch(term):
        raise AgentError(errors.INVALID, f"{str(term)[:100]!r} is no kind of terminal")
    return TerminalRequest(Window.of(asked), term)


def open_pair(user: User, window: Window) -> tuple[int, int]:
    """Return our end and the command's, which belongs to `user`.

    Raises:
        AgentError: the machine has none left.
    """
    try:
        ours, theirs = os.openpty()
    except OSError as exc:
        raise errors.from_os(exc, "open a terminal") from exc
    try:
        if os.geteuid() == 0:
            os.fchown(theirs, user.uid, _tty_group(user))
            os.fchmod(theirs, 0o620)
        resize(ours, window)
        os.set_blocking(ours, False)
    except OSError as exc:
        os.close(ours)
        os.close(theirs)
        raise errors.from_os(exc, "make a terminal ready") from exc
    return ours, theirs


def resize(fd: int, window: Window) -> None:
    """Set the size; the kernel tells the foreground."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", window.rows, window.columns, 0, 0))


def foreground(fd: int) -> int | None:
    """Return the process group in the foreground of a terminal, by our end of it; None: there is none."""
    with contextlib.suppress(OSError):
        group = os.tcgetpgrp(fd)
        return group if group > 0 else None
    return None


def _tty_group(user: User) -> int:
    try:
        return grp.getgrnam("tty").gr_gid
    except KeyError:
        return user.gid
