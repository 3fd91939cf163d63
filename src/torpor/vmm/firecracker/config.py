"""What Firecracker is told, made from a `MachineSpec` and nothing else.

All names are relative to the machine's own folder: a snapshot remembers them, and goes on in another's. A device that
is added or taken away here makes another machine: raise `host.MACHINE` with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torpor.vmm.base import MachineSpec, SavedMachine
from torpor.vmm.firecracker import balloon, network
from torpor.vmm.limits import RateLimits

API_SOCKET = "api.sock"
MARK = b"--api-sock\0api.sock"
"""What the argv of each Firecracker has in it."""
AGENT_SOCKET = "agent.sock"
AGENT_PORT = 1024
"""Where the guest agent listens (`torpor_guest.device.VSOCK_PORT`)."""
CONSOLE = "console.log"
MEMORY = "ram"
"""The file that snapshots of the machine are merged into."""
DEVICES = "devices"
METRICS = "metrics"
"""What Firecracker counts; see `figures`."""
DISK = "disk"
"""A link to the active overlay."""
DISK_ID = "disk0"
WRITABLE_SLOTS = range(1, 7)
"""The drives that are places for volumes which are written. A drive is that, or for reading only, for ever."""
READ_ONLY_SLOTS = range(7, 9)
SLOTS = (*WRITABLE_SLOTS, *READ_ONLY_SLOTS)
"""Each takes one of the 18 interrupts that devices of Firecracker 1.12 have together."""

_CARD = "eth0"
_REFILL_MS = 1000
_GUEST_CID = 3
_CMDLINE = "reboot=k pci=off"
"""A reset by the keyboard controller is what ends the process; there is no PCI bus to look for."""


def instance(name: str) -> str:
    """Return what the Firecracker of a machine's folder is called: letters, digits and hyphens, at most 64."""
    return re.sub("[^0-9a-zA-Z]", "-", name)[:64]


def arguments(log: str) -> list[str]:
    """Return the arguments of a Firecracker that is to have nothing in it yet and writes its log there."""
    told = ["--api-sock", API_SOCKET, "--log-path", log, "--level", "Warn"]
    return [*told, "--metrics-path", METRICS]


def boot(
    spec: MachineSpec, kernel: Path, limits: RateLimits
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield what is PUT, in this order, for a machine to boot."""
    yield (
        "/machine-config",
        {
            "vcpu_count": spec.vcpus,
            "mem_size_mib": spec.ram_mib,
            "smt": False,
            "track_dirty_pages": True,
        },
    )
    yield (
        "/boot-source",
        {
            "kernel_image_path": str(kernel),
            "initrd_path": str(spec.initrd),
            "boot_args": f"{spec.cmdline} {_CMDLINE}",
        },
    )
    yield f"/drives/{DISK_ID}", _drive(DISK_ID, DISK, limits, is_read_only=False)
    for slot in SLOTS:  # in this order the guest has them
        name = volume_name(slot)
        yield f"/drives/{name}", _drive(name, name, limits, is_read_only=slot in READ_ONLY_SLOTS)
    yield (
        f"/network-interfaces/{_CARD}",
        {
            "iface_id": _CARD,
            "host_dev_name": network.TAP,
            "guest_mac": network.MAC,
            **_network_limit(limits),
        },
    )
    yield "/vsock", {"guest_cid": _GUEST_CID, "uds_path": AGENT_SOCKET}
    yield "/entropy", {}
    yield "/balloon", balloon.DEVICE
    yield "/actions", {"action_type": "InstanceStart"}


def volume_name(slot: int) -> str:
    """Return the id, and name, of the drive that is a place for a volume."""
    return f"volume{slot}"


def _drive(
    drive_id: str, name: str, limits: RateLimits, *, is_read_only: bool
) -> dict[str, object]:
    return {
        "drive_id": drive_id,
        "path_on_host": name,
        "is_root_device": False,  # the command line names it
        "is_read_only": is_read_only,
        "cache_type": "Writeback",  # what the guest flushes is durable
        "io_engine": "Sync",
        **disk_limit(limits),
    }


def load(saved: SavedMachine) -> dict[str, object]:
    """Return what is PUT for a machine to go on, paused."""
    return {
        "snapshot_path": str(saved.device_state),
        "mem_backend": {"backend_type": "File", "backend_path": str(saved.ram_image)},
        "enable_diff_snapshots": True,
        "resume_vm": False,
    }


def limited(
    limits: RateLimits, slots: Iterable[int] = ()
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield what is PATCHed for a machine that was loaded, with volumes in these places, to have no other limits."""
    for name in (DISK_ID, *map(volume_name, slots)):
        yield f"/drives/{name}", {"drive_id": name, **disk_limit(limits)}
    yield f"/network-interfaces/{_CARD}", {"iface_id": _CARD, **_network_limit(limits)}


def disk_limit(limits: RateLimits) -> dict[str, object]:
    """Return the part of a drive's settings that limits it."""
    return {"rate_limiter": _bucket(limits.disk_bytes_per_s)}


def _network_limit(limits: RateLimits) -> dict[str, object]:
    bucket = _bucket(limits.network_bytes_per_s)
    return {"rx_rate_limiter": bucket, "tx_rate_limiter": bucket}


def _bucket(bytes_per_s: int | None) -> dict[str, object]:
    """Return a bucket that fills up within a second; one without a size limits nothing."""
    if bytes_per_s is None:
        return {"bandwidth": {"size": 0, "refill_time": 0}}
    return {"bandwidth": {"size": bytes_per_s, "refill_time": _REFILL_MS}}
