"""What every sandbox's task is given: the parts below the engine, made once a daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torpor.base.clock import Clock
from torpor.base.home import Home
from torpor.db.sandboxes import SandboxRows
from torpor.guest.port import Guest
from torpor.templates import TemplateStore
from torpor.vmm.base import Driver


class ConnectGuest(Protocol):
    """Connects to the agent behind a socket."""

    def __call__(self, socket_path: Path, *, epoch: int, timeout_s: float) -> Awaitable[Guest]:
        """Return the connected guest; raises `GuestUnreachable` when it does not answer in time."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The rooms below, as the engine uses them."""

    home: Home
    rows: SandboxRows
    driver: Driver
    templates: TemplateStore
    connect_guest: ConnectGuest
    clock: Clock
    report: Callable[[str, BaseException], None]
    """Takes failures that no caller waits for."""
    boot_timeout_s: float = 300.0
    """How long a cold boot may take until the agent answers; emulated hosts with busy cores are slow."""
