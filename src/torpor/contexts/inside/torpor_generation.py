"""Which life of the machine this is: a file that is replaced whenever the machine goes on from a snapshot."""

from __future__ import annotations

import json
import os
from typing import Any

PATH = os.environ.get("TORPOR_GENERATION_FILE", "/run/torpor/generation")


def read() -> tuple[tuple[int, int] | None, dict[str, Any]]:
    """Return what tells this life from another, and what the file says."""
    try:
        with open(PATH, "rb") as file:
            stat = os.fstat(file.fileno())
            said = json.loads(file.read(4096))
    except (OSError, ValueError):
        return None, {}
    return (stat.st_ino, stat.st_mtime_ns), said if isinstance(said, dict) else {}


def wants_new_randomness(said: dict[str, Any]) -> bool:
    """Return whether the machine may have a twin; one that only woke has none."""
    return said.get("reason") != "wake"
