"""What a machine has used, as every room speaks of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """What went through a machine's devices since its VMM was started. None: its driver does not count that."""

    disk_read_bytes: int
    """Of all its disks, volumes too."""
    disk_written_bytes: int
    disk_reads: int
    disk_writes: int
    disk_failures: int
    """Requests of the guest that failed on the host."""
    disk_throttled: int | None
    """How often a limit made a disk wait."""
    network_received_bytes: int | None
    """By the machine."""
    network_sent_bytes: int | None
    network_received_packets: int | None
    network_sent_packets: int | None
    network_failures: int | None
    network_throttled: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUsage(DeviceFigures):
    """What a machine takes and has used since its VMM was started, which each wake and each rollback does."""

    since: datetime
    cpu_seconds: float
    """Of the host's CPUs, for the machine and its VMM."""
    memory_bytes: int
    """Of the host's memory, now, that it alone has; pages of its snapshot that it only read are shared by all."""
