"""The shape of what a machine has used in JSON."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Annotated

from pydantic import Field

from torpor.model_usage import MachineUsage
from torpor.server.wire import Wire

_UNCOUNTED = "null: the machine's driver does not count it."


class UsageWire(Wire):
    """What a machine takes, and has used since its VMM was started."""

    since: Annotated[
        datetime, Field(description="When its VMM was started: at a create, wake or rollback.")
    ]
    cpu_seconds: Annotated[
        float, Field(description="Of the host's CPUs, for the machine and its VMM.")
    ]
    memory_bytes: Annotated[
        int,
        Field(description="Of the host's memory, now; what it shares with others is not in it."),
    ]
    disk_read_bytes: Annotated[int, Field(description="Of all its disks, volumes too.")]
    disk_written_bytes: int
    disk_reads: int
    disk_writes: int
    disk_failures: Annotated[int, Field(description="Requests that failed on the host.")]
    disk_throttled: Annotated[
        int | None, Field(description=f"How often a limit made a disk wait. {_UNCOUNTED}")
    ]
    network_received_bytes: Annotated[
        int | None, Field(description=f"By the machine. {_UNCOUNTED}")
    ]
    network_sent_bytes: Annotated[int | None, Field(description=_UNCOUNTED)]
    network_received_packets: Annotated[int | None, Field(description=_UNCOUNTED)]
    network_sent_packets: Annotated[int | None, Field(description=_UNCOUNTED)]
    network_failures: Annotated[int | None, Field(description=_UNCOUNTED)]
    network_throttled: Annotated[
        int | None, Field(description=f"How often a limit made the network wait. {_UNCOUNTED}")
    ]

    @staticmethod
    def of(usage: MachineUsage) -> UsageWire:
        """Return it."""
        return UsageWire(**dataclasses.asdict(usage))
