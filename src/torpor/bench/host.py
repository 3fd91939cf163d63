"""What the numbers were measured on, in words that name no host."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from torpor.base.fsio import can_reflink
from torpor.base.home import Home
from torpor.base.units import MIB
from torpor.bench.emulation import emulated_host
from torpor.vmm.base import HostSupport

_BUSY_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """A host, as far as it matters for times."""

    accel: str
    """`kvm`, or `tcg`: the guest's CPU is emulated."""
    accel_reason: str
    driver: str
    driver_version: str
    emulation: str | None
    """Why the times are those of an emulator, in words; None: they are not."""
    cpu: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    filesystem: str
    """Type of the file system that holds the home."""
    reflink: bool

    @property
    def emulated(self) -> bool:
        """Whether the guest's CPU is emulated, or that of this host."""
        return self.emulation is not None

    @property
    def is_for_goals(self) -> bool:
        """Whether the goals for KVM and Firecracker are judged here."""
        return not self.emulated and (self.accel, self.driver) == ("kvm", "firecracker")


def facts(found: HostSupport, home: Home) -> HostFacts:
    """Return the facts of this host. Blocks."""
    return HostFacts(
        accel=found.accel or "none",
        accel_reason=found.reason,
        driver=found.driver,
        driver_version=found.version or "unknown",
        emulation=_emulation(found),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        kernel=platform.release(),
        python=platform.python_version(),
        filesystem=filesystem_of(home.root),
        reflink=can_reflink(home.tmp),
    )


def _emulation(found: HostSupport) -> str | None:
    if found.accel == "tcg":
        return "the guest's CPU is translated; what runs in the guest is 10 to 30 times faster with KVM"
    return emulated_host()


def load() -> tuple[float, float, float]:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return os.getloadavg()


def is_busy(load_1: float, cores: int) -> bool:
    """Return whether others use so much of the machine that the numbers are theirs too."""
    return load_1 > cores * _BUSY_SHARE


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the type of the file system that holds `path`."""
    best, kind = -1, "unknown"
    for line in mounts.read_text(errors="replace").splitlines():
        _, point, found, *_ = line.split()
        where = Path(point.replace("\\040", " "))
        if path.is_relative_to(where) and len(where.parts) >= best:
            best, kind = len(where.parts), found
    return kind


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
