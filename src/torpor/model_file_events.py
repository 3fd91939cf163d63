"""What happens to files in a machine, as every room speaks of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FileEventType(StrEnum):
    """What happened to a name."""

    CREATE = "create"
    """It is there now: it was made, or moved here."""
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    """It is not there any more: it was moved away."""
    CHMOD = "chmod"
    """Its mode, owner or times are others."""
    MISSED = "missed"
    """More happened than could be told, and no name is said: look at the folder anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvent:
    """Something that happened in a folder that is watched."""

    name: str
    """Relative to the folder; empty for `MISSED`."""
    type: FileEventType
