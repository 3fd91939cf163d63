"""What this host gives: which QEMU, and whether KVM is real.

`/dev/kvm` can exist, open and create a VM while no ordinary guest runs on it (paravirtual nested hosts).
KVM is used only where the kernel's own kvm_intel or kvm_amd module drives it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torpor.base.proc import run
from torpor.errors import HostNotReady, InvalidRequest, TorporError
from torpor.vmm import cgroup, confine, kvm
from torpor.vmm.base import HostSupport
from torpor.vmm.versions import remembered

MINIMUM = (8, 2)
"""First release with all that restore needs: `rom=off`, and file migration as a plain file."""

MACHINE = 2
"""Which machine `command.build` makes: RAM that was saved in another cannot go on. 2: the volumes' controller."""

_BINARY = "qemu-system-x86_64"
_INSTALL = (
    "sudo apt-get install qemu-system-x86 qemu-utils  (Debian 12: with -t bookworm-backports)"
)

Accel = Literal["kvm", "tcg"]


@dataclass(frozen=True, slots=True)
class QemuHost:
    """A usable QEMU on this host."""

    binary: Path
    qemu_img: Path
    version: str
    accel: Accel
    reason: str


async def find_qemu() -> QemuHost:
    """Return the QEMU to use.

    Raises:
        HostNotReady: none is installed, it is too old, or the machine is not x86-64.
        InvalidRequest: `TORPOR_ACCEL` or `TORPOR_QEMU` names what cannot be had.
    """
    if platform.machine() != "x86_64":
        raise HostNotReady(
            f"this host is {platform.machine()}; the QEMU driver runs on x86_64",
            hint="use an x86-64 host",
        )
    named = os.environ.get("TORPOR_QEMU")
    found = shutil.which(named or _BINARY)
    if found is None and named:
        raise HostNotReady(
            f"TORPOR_QEMU names {named}, which is no program",
            hint="let it name the binary, or unset it",
        )
    if found is None:
        raise HostNotReady(f"{_BINARY} is not installed", hint=f"run: {_INSTALL}")
    image_tool = shutil.which("qemu-img")
    if image_tool is None:
        raise HostNotReady("qemu-img is not installed", hint=f"run: {_INSTALL}")
    version = await remembered(Path(found), _ask_version)
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM:
        raise HostNotReady(
            f"{found} is version {version}; {MINIMUM[0]}.{MINIMUM[1]} or newer is wanted",
            hint=f"run: {_INSTALL}",
            version=version,
        )
    accel, reason = choose_accel()
    return QemuHost(Path(found), Path(image_tool), version, accel, reason)


async def probe() -> HostSupport:
    """Say whether the QEMU driver works here and how; never raises."""
    try:
        host = await find_qemu()
    except TorporError as exc:
        return HostSupport("qemu", False, None, None, None, exc.message, exc.hint)
    cpu = await asyncio.to_thread(cpu_identity, host.accel)
    limits = await asyncio.to_thread(cgroup.wall)
    return HostSupport(
        "qemu",
        True,
        host.version,
        host.accel,
        cpu,
        host.reason,
        machine=MACHINE,
        walls=(limits,),
    )


def choose_accel(
    sys_module: Path = Path("/sys/module"), device: Path = Path("/dev/kvm")
) -> tuple[Accel, str]:
    """Return the accelerator and why it was chosen.

    Raises:
        InvalidRequest: `TORPOR_ACCEL` is something else than auto, kvm or tcg.
    """
    wish = os.environ.get("TORPOR_ACCEL", "auto")
    if wish == "tcg":
        return "tcg", "TORPOR_ACCEL=tcg asks for emulation"
    if wish == "kvm":
        return "kvm", "TORPOR_ACCEL=kvm asks for it; nothing was checked"
    if wish != "auto":
        raise InvalidRequest(
            f"TORPOR_ACCEL is {wish!r}", hint="set it to auto, kvm or tcg, or unset it"
        )
    found = kvm.look(sys_module, device)
    if found.is_real and confine.kvm_is_closed(device):
        reason = f"{device} is closed to the users that machines run as"
        return "tcg", f"{reason} (sudo chgrp kvm {device}; sudo chmod 0660 {device}): emulation"
    return ("kvm", found.reason) if found.is_real else ("tcg", f"{found.reason}: emulation")


def cpu_identity(accel: Accel) -> str:
    """Return what tells guest CPUs apart: emulated ones are QEMU's, others the host's."""
    return "tcg-max" if accel == "tcg" else kvm.cpu_identity()


async def _ask_version(binary: Path) -> str:
    done = await run([str(binary), "--version"], timeout_s=20)
    match = re.search(r"version (\d+\.\d+(?:\.\d+)?)", done.stdout.decode("utf-8", "replace"))
    if match is None:
        raise HostNotReady(
            f"{binary} --version said nothing that is a version", hint=f"run: {_INSTALL}"
        )
    return match.group(1)
