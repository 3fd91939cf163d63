"""Whether this host is itself emulated: its KVM then works, and everything on it takes many times as long."""

from __future__ import annotations

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_VENDOR = Path("/sys/class/dmi/id/sys_vendor")
_CLOCKS = Path("/sys/devices/system/clocksource/clocksource0/available_clocksource")


def emulated_host(
    cpuinfo: Path = _CPUINFO, vendor: Path = _VENDOR, clocks: Path = _CLOCKS
) -> str | None:
    """Return how it shows that this host's own CPU is emulated; None when nothing shows it. Blocks.

    QEMU's emulator names its CPU so, unless it is told to play another. A guest of KVM is offered KVM's clock, which
    the emulator does not have.
    """
    fields: dict[str, str] = {}
    for line in _read(cpuinfo).split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    model = fields.get("model name", "unknown")
    if "QEMU TCG" in model:
        return f"this host's own CPU is emulated: it is a {model}"
    is_guest = "hypervisor" in fields.get("flags", "").split()
    if is_guest and _read(vendor).strip() == "QEMU" and "kvm-clock" not in _read(clocks).split():
        return "this host's own CPU is emulated: it is a machine of QEMU without KVM's clock"
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
