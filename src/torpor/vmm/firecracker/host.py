"""Which Firecracker this host has, and whether KVM is real: without that it runs nothing."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from torpor.base.proc import run
from torpor.errors import HostNotReady, TorporError
from torpor.vmm import cgroup, confine, kvm
from torpor.vmm.base import HostSupport, Wall
from torpor.vmm.firecracker import jail, network
from torpor.vmm.versions import remembered

MINIMUM = (1, 12)
"""First release whose network devices can be given another tap when a snapshot is loaded."""

MACHINE = 2
"""Which machine `config` makes: RAM that was saved in another cannot go on. 2: places for volumes, and the balloon."""


VCPUS_MOST = 32
"""Firecracker's own limit."""


@dataclass(frozen=True, slots=True)
class FirecrackerHost:
    """A usable Firecracker on this host."""

    binary: Path
    version: str
    reason: str
    jailer: jail.Jailer | None
    """None: its machines run without, as `jail_wall` says."""
    jail_wall: Wall


async def find_firecracker() -> FirecrackerHost:
    """Return the Firecracker to use.

    Raises:
        HostNotReady: there is none, it is too old, or KVM cannot be used; the hint mends it.
    """
    if platform.machine() != "x86_64":
        raise HostNotReady(
            f"this host is {platform.machine()}; the Firecracker driver runs on x86_64",
            hint="use an x86-64 host",
        )
    if os.environ.get("TORPOR_ACCEL") == "tcg":
        raise HostNotReady(
            "Firecracker needs KVM, and TORPOR_ACCEL=tcg asks for emulation",
            hint="unset TORPOR_ACCEL, or set TORPOR_DRIVER=qemu",
        )
    found = await asyncio.to_thread(kvm.look)  # before advice on programs, which would be of no use
    if not found.is_real:
        raise HostNotReady(f"Firecracker needs KVM: {found.reason}", hint=found.fix)
    binary = find_binary()
    version = await remembered(binary, _ask_version)
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM:
        raise HostNotReady(
            f"{binary} is version {version}; {MINIMUM[0]}.{MINIMUM[1]} or newer is wanted",
            hint=_mend(),
            version=version,
        )
    network.check()
    jailer, jail_wall = await jail.find(binary, version)
    if jailer is None and await asyncio.to_thread(confine.kvm_is_closed):
        raise HostNotReady(
            "/dev/kvm is closed to the users that machines run as without a jailer",
            hint="run: sudo chgrp kvm /dev/kvm; sudo chmod 0660 /dev/kvm",
        )
    return FirecrackerHost(binary, version, found.reason, jailer, jail_wall)


def find_binary() -> Path:
    """Return the program: what `TORPOR_FIRECRACKER` names, else what PATH or the folders of `torpor host setup` have.

    Raises:
        HostNotReady: there is none.
    """
    named = os.environ.get("TORPOR_FIRECRACKER")
    if named:
        found = shutil.which(named)
        if found is None:
            raise HostNotReady(
                f"TORPOR_FIRECRACKER names {named}, which is no program",
                hint="let it name the firecracker binary, or unset it",
            )
        return Path(found).absolute()
    places = (os.environ.get("PATH", ""), "/usr/local/bin", str(Path.home() / ".local/bin"))
    found = shutil.which("firecracker", path=os.pathsep.join(places))
    if found is None:
        raise HostNotReady("Firecracker is not installed", hint=_mend())
    return Path(found).absolute()


def _mend() -> str:
    """Return what to do about a program that is missing or cannot be used."""
    if os.environ.get("TORPOR_FIRECRACKER"):
        return f"let TORPOR_FIRECRACKER name another, or unset it and run: {jail.INSTALL}"
    return f"run: {jail.INSTALL}"


async def probe() -> HostSupport:
    """Say whether the Firecracker driver works here and how; never raises."""
    try:
        host = await find_firecracker()
    except TorporError as exc:
        return HostSupport(
            "firecracker",
            False,
            None,
            None,
            None,
            exc.message,
            exc.hint,
            networks=network.offered(),
        )
    cpu = await asyncio.to_thread(kvm.cpu_identity)
    limits = await asyncio.to_thread(cgroup.wall)
    return HostSupport(
        "firecracker",
        True,
        host.version,
        "kvm",
        cpu,
        host.reason,
        machine=MACHINE,
        networks=network.offered(),
        vcpus_most=VCPUS_MOST,
        walls=(host.jail_wall, limits),
    )


async def _ask_version(binary: Path) -> str:
    try:
        done = await run([str(binary), "--version"], timeout_s=20)
    except (TorporError, OSError) as exc:
        raise HostNotReady(
            f"{binary} is no Firecracker that runs here: {exc}", hint=_mend()
        ) from exc
    match = re.search(r"Firecracker v(\d+\.\d+\.\d+)", done.stdout.decode("utf-8", "replace"))
    if match is None:
        raise HostNotReady(
            f"{binary} --version said nothing that is a version of Firecracker",
            hint=_mend(),
        )
    return match.group(1)
