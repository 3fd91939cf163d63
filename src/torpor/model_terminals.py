"""Terminals of commands, as every room speaks of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SIDE_MOST: Final = 4096
"""Most columns or rows of a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSpec:
    """The terminal that a command is to run in."""

    columns: int = 80
    rows: int = 24
    term: str | None = None
    """What programs take it for (`TERM`); None: `xterm-256color`."""
