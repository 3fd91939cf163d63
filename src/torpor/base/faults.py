"""Named points at which a crash test ends or stops this process the hard way, as a power cut would."""

from __future__ import annotations

import os
import signal

_FAULT = os.environ.get("TORPOR_FAULT", "")
"""`POINT`: SIGKILL ourselves there. `POINT:stop`: SIGSTOP, so that the test can do something meanwhile."""


def reach(point: str) -> None:
    """Do nothing, unless a crash test named this point when the process was started."""
    if not _FAULT:
        return
    name, _, act = _FAULT.partition(":")
    if name == point:
        os.kill(os.getpid(), signal.SIGSTOP if act == "stop" else signal.SIGKILL)
