"""Admission: a sandbox that the host has no room for is refused before anything of it exists.

Memory is promised in full: the RAM of all machines, and what a VMM itself needs, never exceeds the
host's. Disk is thin: a sandbox's disk takes what it writes, and all disks together may promise more than
there is, so only the new disk and a reserve must fit into what is free now.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from torpor.base.fsio import free_bytes
from torpor.base.units import GIB, MIB, format_bytes
from torpor.errors import InsufficientResources, InvalidRequest
from torpor.model import SandboxInfo, SandboxSpec, TemplateInfo
from torpor.sandboxes.lifecycle import WITH_MACHINE

VMM_OVERHEAD_MIB = 160
"""What QEMU takes beside the guest's RAM: measured 90 to 150 MiB under emulation after some work."""
HOST_RESERVE_MIB = 512
"""What the host keeps for itself and the daemon."""
DISK_RESERVE_BYTES = GIB
"""Free space below which nothing new is started, so that running machines can go on writing."""

RAM_MIB = (128, 1 << 20)
VCPUS_MOST = 64
DISK_GIB = (1, 16384)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A sandbox's sizes with the template's defaults filled in."""

    vcpus: int
    ram_mib: int
    disk_gib: int


def choose_sizes(spec: SandboxSpec, template: TemplateInfo) -> Sizes:
    """Return the sizes to make.

    Raises:
        InvalidRequest: a size is out of its range, or the disk is smaller than the template's.
    """
    sizes = Sizes(
        template.vcpus if spec.vcpus is None else spec.vcpus,
        template.ram_mib if spec.ram_mib is None else spec.ram_mib,
        template.disk_gib if spec.disk_gib is None else spec.disk_gib,
    )
    _check_range("vcpus", sizes.vcpus, 1, min(VCPUS_MOST, max(os.cpu_count() or 1, 2)))
    _check_range("ram_mib", sizes.ram_mib, *RAM_MIB)
    _check_range("disk_gib", sizes.disk_gib, *DISK_GIB)
    if sizes.disk_gib < template.disk_gib:
        raise InvalidRequest(
            f"disk_gib is {sizes.disk_gib}; the template {template.name} needs {template.disk_gib} or more",
            hint="leave disk_gib out to get the template's size",
        )
    return sizes


def is_default(sizes: Sizes, template: TemplateInfo) -> bool:
    """Return whether CPU and RAM are the template's own, so that its snapshot serves."""
    return (sizes.vcpus, sizes.ram_mib) == (template.vcpus, template.ram_mib)


def check_room(
    sizes: Sizes,
    others: Iterable[SandboxInfo],
    home: Path,
    meminfo: Path = Path("/proc/meminfo"),
    *,
    boots_mib: Collection[int] = (),
) -> None:
    """Raise `InsufficientResources`, with the numbers, unless the host has room for `sizes`. See `check_memory`."""
    check_memory(sizes.ram_mib, others, meminfo, boots_mib=boots_mib)
    free = free_bytes(home)
    need = sizes.disk_gib * GIB + DISK_RESERVE_BYTES
    if need > free:
        raise InsufficientResources(
            f"the host has no disk for a sandbox of {sizes.disk_gib} GiB: {format_bytes(need)} with the reserve are "
            f"wanted and {format_bytes(free)} are free at {home}",
            hint="free disk space, ask for less disk_gib, or move TORPOR_HOME",
            needed_bytes=need,
            free_bytes=free,
        )


def check_memory(
    ram_mib: int,
    others: Iterable[SandboxInfo],
    meminfo: Path = Path("/proc/meminfo"),
    *,
    boots_mib: Collection[int] = (),
) -> None:
    """Raise `InsufficientResources`, with the numbers, unless the host has memory for one machine more.

    `boots_mib` is the memory of machines that are no sandboxes': templates that boot.
    """
    total_mib, available_mib = _memory_mib(meminfo)
    need_mib = ram_mib + VMM_OVERHEAD_MIB
    taken = [*boots_mib, *(o.ram_mib for o in others if o.state in WITH_MACHINE)]
    taken_mib = sum(taken) + len(taken) * VMM_OVERHEAD_MIB
    left_mib = min(total_mib - HOST_RESERVE_MIB - taken_mib, available_mib - HOST_RESERVE_MIB)
    if need_mib > left_mib:
        raise InsufficientResources(
            f"the host has no memory for a sandbox of {ram_mib} MiB: it needs {need_mib} MiB and "
            f"{max(left_mib, 0)} MiB are left (of {total_mib} MiB, {taken_mib} MiB are promised to sandboxes and "
            f"{available_mib} MiB are available)",
            hint="delete sandboxes (torpor ls, torpor rm) or ask for less ram_mib",
            needed_mib=need_mib,
            left_mib=max(left_mib, 0),
            total_mib=total_mib,
        )


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(
            f"{name} is {value}; {least} to {most} is wanted", hint=f"give a {name} in that range"
        )


def _memory_mib(meminfo: Path) -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    return tuple(int(fields[key].split()[0]) * 1024 // MIB for key in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]
