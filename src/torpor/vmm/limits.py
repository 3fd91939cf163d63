"""How much a machine may move in a second: the daemon's settings, by environment, for every machine that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override

from torpor.base.units import MIB, format_bytes
from torpor.errors import InvalidRequest

DISK = "TORPOR_DISK_MIB_PER_SECOND"
NETWORK = "TORPOR_NETWORK_MIB_PER_SECOND"

_LEAST_MIB = 0.1
"""With less a machine does not boot before its builder gives it up."""
_MOST_MIB = 1e6


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What one machine may move in a second; None: as much as the host can."""

    disk_bytes_per_s: int | None = None
    """Read and written together, of each of its disks: the root disk, and each volume."""
    network_bytes_per_s: int | None = None
    """To the machine, and as much again from it."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> RateLimits:
        """Return the limits that the environment names. Raises `InvalidRequest` for a value that is none."""
        return RateLimits(
            _bytes(DISK, environment.get(DISK)), _bytes(NETWORK, environment.get(NETWORK))
        )

    @override
    def __str__(self) -> str:
        """Say what the limits are, in words."""
        disk, network = self.disk_bytes_per_s, self.network_bytes_per_s
        said = [] if disk is None else [f"each disk {format_bytes(disk)}/s"]
        said += [] if network is None else [f"network {format_bytes(network)}/s each way"]
        return ", ".join(said) or "none"


def _bytes(name: str, text: str | None) -> int | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not _LEAST_MIB <= value <= _MOST_MIB:
        raise InvalidRequest(
            f"{name} is {text!r}; a number from {_LEAST_MIB:g} to {_MOST_MIB:.0f} is wanted",
            hint=f"correct {name} or leave it out",
        )
    return round(value * MIB)
