"""What all machines together have used, as figures for Prometheus that only grow."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from prometheus_client import Counter, Gauge

from torpor.errors import TorporError
from torpor.model import SandboxId
from torpor.model_usage import MachineUsage
from torpor.sandboxes.port import EnginePort

_SAME_WITHIN: Final = timedelta(seconds=2)
"""By how much the start of a machine differs when the host's clock is set right."""
_AT_ONCE = 16
_LIMIT_S = 3.0
"""For one machine; whose VMM does not answer is counted at the next scrape."""

_HELP: Final = {
    "cpu_seconds": "Seconds of the host's CPUs that machines used.",
    "disk_read_bytes": "Bytes that machines read from their disks.",
    "disk_written_bytes": "Bytes that machines wrote to their disks.",
    "disk_reads": "Reads of machines from their disks.",
    "disk_writes": "Writes of machines to their disks.",
    "disk_failures": "Requests of machines to their disks that failed on the host.",
    "disk_throttled": "Times that a limit made a disk wait.",
    "network_received_bytes": "Bytes that machines received.",
    "network_sent_bytes": "Bytes that machines sent.",
    "network_received_packets": "Packets that machines received.",
    "network_sent_packets": "Packets that machines sent.",
    "network_failures": "Packets of machines that the host could not carry.",
    "network_throttled": "Times that a limit made a network card wait.",
}


class UsageSums:
    """Adds up what each machine used between two scrapes; what one did before the first, or after its last, is not in it."""

    def __init__(self, **kept: Any) -> None:
        self._counters = {
            name: Counter(f"machines_{name}", text, **kept) for name, text in _HELP.items()
        }
        self._memory = Gauge(
            "machines_memory_bytes", "Memory of the host that machines have alone, now.", **kept
        )
        self._last: dict[SandboxId, MachineUsage] = {}

    async def look(self, engine: EnginePort, machines: Collection[SandboxId]) -> None:
        """Ask these machines and add what is new."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(sandbox_id: SandboxId) -> MachineUsage | None:
            async with slots:
                with contextlib.suppress(TorporError, TimeoutError):  # it ended, or says nothing
                    async with asyncio.timeout(_LIMIT_S):
                        return await engine.usage(sandbox_id)
            return self._last.get(sandbox_id)

        found = await asyncio.gather(*(ask(sandbox_id) for sandbox_id in machines))
        seen = {s: usage for s, usage in zip(machines, found, strict=True) if usage is not None}
        for sandbox_id, usage in seen.items():
            self._add(self._last.get(sandbox_id), usage)
        self._last = seen
        self._memory.set(sum(usage.memory_bytes for usage in seen.values()))

    def _add(self, before: MachineUsage | None, now: MachineUsage) -> None:
        if before is None or abs(now.since - before.since) > _SAME_WITHIN:
            return
        had, has = dataclasses.asdict(before), dataclasses.asdict(now)
        for name, counter in self._counters.items():
            counter.inc(max(0, (has[name] or 0) - (had[name] or 0)))
