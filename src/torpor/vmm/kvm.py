"""Whether this host's KVM is real, and what its CPU is.

`/dev/kvm` can exist, open and create a VM while no ordinary guest runs on it (paravirtual nested hosts).
KVM is used only where the kernel's own kvm_intel or kvm_amd module drives it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

DEVICE = Path("/dev/kvm")


@dataclass(frozen=True, slots=True)
class Kvm:
    """What was found."""

    is_real: bool
    reason: str
    fix: str | None = None
    """The command that mends it."""


def look(sys_module: Path = Path("/sys/module"), device: Path = DEVICE) -> Kvm:
    """Say whether guests can be run with KVM here, and why."""
    if not device.exists():
        return Kvm(False, f"{device} does not exist")
    module = next((m for m in ("kvm_intel", "kvm_amd") if (sys_module / m).exists()), None)
    if module is None:
        return Kvm(
            False,
            f"{device} exists, but neither kvm_intel nor kvm_amd drives it, so no ordinary guest runs on it",
        )
    if not os.access(device, os.R_OK | os.W_OK):
        return Kvm(
            False,
            f"{device} exists, but this user may not open it",
            fix="sudo usermod -aG kvm $USER  and log in again",
        )
    return Kvm(True, f"{device} is driven by {module}")


def cpu_identity(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return what tells the CPUs of hosts apart: the model and its features. Blocks."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    features = hashlib.sha256(
        " ".join(sorted(fields.get("flags", "").split())).encode()
    ).hexdigest()[:12]
    return f"{fields.get('model name', 'unknown')} {features}"
