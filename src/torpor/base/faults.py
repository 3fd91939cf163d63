"""Named points at which a crash test ends or stops this process the hard way, as a power cut would."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_FAULT = os.environ.get("TORPOR_FAULT", "")
"""`POINT`: SIGKILL ourselves there. `POINT:stop`: SIGSTOP, so that the test can do something meanwhile."""
_FILE = os.environ.get("TORPOR_TEST_FAULT_FILE")
"""A file in which a test writes the same for a process that runs already; it is removed at the point."""


def reach(point: str) -> None:
    """Do nothing, unless a crash test named this point."""
    fault = _FAULT if _FILE is None else _FAULT or _written(Path(_FILE))
    if not fault:
        return
    name, _, act = fault.partition(":")
    if name != point:
        return
    if _FILE is not None:  # who goes on here, or does it again later, is not to end again
        Path(_FILE).unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGSTOP if act == "stop" else signal.SIGKILL)


def _written(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
