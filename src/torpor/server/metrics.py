"""Figures of the daemon in the text form of Prometheus. No label is an id: their number stays small."""

from __future__ import annotations

import contextlib
import time
from collections import Counter as Count
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from torpor import __version__
from torpor.errors import TorporError
from torpor.model import ExecInfo, SandboxFilter, SandboxState
from torpor.sandboxes.port import EnginePort
from torpor.server.forks import every
from torpor.server.usage_sums import UsageSums

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_REQUEST_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 300)

_WITH_MACHINE = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})


class Metrics:
    """All figures of one daemon."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kept: dict[str, Any] = {"namespace": "torpor", "registry": self.registry}
        self._requests = Counter(
            "http_requests", "Requests answered.", ["method", "route", "status"], **kept
        )
        self._request_seconds = Histogram(
            "http_request_seconds",
            "Seconds until the end of the answer, streams included.",
            ["method", "route"],
            buckets=_REQUEST_SECONDS,
            **kept,
        )
        self._operation_seconds = Histogram(
            "operation_seconds",
            "Seconds that a request's act took.",
            ["operation", "outcome"],
            buckets=_SECONDS,
            **kept,
        )
        self._boot_seconds = Histogram(
            "boot_seconds",
            "Seconds until a machine's agent answered.",
            ["boot_mode"],
            buckets=_SECONDS,
            **kept,
        )
        self._pause_seconds = Histogram(
            "snapshot_pause_seconds",
            "Seconds that a machine stood still for a snapshot.",
            buckets=_SECONDS,
            **kept,
        )
        self._exec_seconds = Histogram(
            "exec_seconds",
            "Seconds that commands ran.",
            ["outcome"],
            buckets=(*_SECONDS, 3600),
            **kept,
        )
        self._sandboxes = Gauge("sandboxes", "Sandboxes by state.", ["state"], **kept)
        self._snapshots = Gauge("snapshots", "Snapshots.", **kept)
        self._templates = Gauge("templates", "Built templates.", **kept)
        self._usage = UsageSums(**kept)
        Gauge("info", "The daemon's version.", ["version"], **kept).labels(__version__).set(1)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered; `route` is the path as it is declared, not as it was asked."""
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(method, route).observe(seconds)

    @contextlib.contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Time an act; its outcome is `ok` or the error's code."""
        begun = time.monotonic()
        outcome = "cancelled"
        try:
            yield
            outcome = "ok"
        except TorporError as error:
            outcome = error.code
            raise
        except Exception:
            outcome = "internal"
            raise
        finally:
            took = time.monotonic() - begun
            self._operation_seconds.labels(operation, outcome).observe(took)

    def booted(self, boot_mode: str | None, boot_ms: int | None) -> None:
        """Note how long a machine took to answer."""
        if boot_mode is not None and boot_ms is not None:
            self._boot_seconds.labels(boot_mode).observe(boot_ms / 1000)

    def paused(self, pause_ms: float) -> None:
        """Note how long a machine stood still."""
        self._pause_seconds.observe(pause_ms / 1000)

    def ran(self, info: ExecInfo) -> None:
        """Note a command that ended."""
        if info.duration_ms is not None:
            outcome = "timeout" if info.timed_out else "ok" if info.exit_code == 0 else "failed"
            self._exec_seconds.labels(outcome).observe(info.duration_ms / 1000)

    async def text(self, engine: EnginePort) -> bytes:
        """Return all figures; what is counted is counted now."""
        states: Count[str] = Count()
        machines = []
        async for info in every(engine, SandboxFilter()):
            states[info.state] += 1
            if info.state in _WITH_MACHINE:
                machines.append(info.id)
        for state in SandboxState:
            self._sandboxes.labels(state).set(states[state])
        self._snapshots.set(len(await engine.snapshots()))
        self._templates.set(len(await engine.templates()))
        await self._usage.look(engine, machines)
        return generate_latest(self.registry)
