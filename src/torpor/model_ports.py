"""What listens in a machine, as every room speaks of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

LOOPBACK: Final = ("127.0.0.1", "::1")
"""The only addresses in a machine that the host connects to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortInfo:
    """One program that takes TCP connections in a machine."""

    port: int
    address: str
    """Where it listens, such as `127.0.0.1` or `::` for all addresses."""
    user: str
    pid: int | None
    """None: the agent may not see whose it is."""
    process: str | None
    """The program's short name."""

    @property
    def is_reachable(self) -> bool:
        """Whether it can be forwarded and previewed: it listens on loopback or on all addresses."""
        found = ipaddress.ip_address(self.address)
        return found.is_unspecified or self.address in LOOPBACK
