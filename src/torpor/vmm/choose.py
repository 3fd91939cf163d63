"""Which driver a home's machines have: the one that `TORPOR_DRIVER` names, or the fastest that works here.

What sleeps in a home, and its snapshots, can go on with their own driver only. So a home in which there are any
keeps the driver that it began with until `TORPOR_DRIVER` names another.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from torpor.base.fsio import write_atomic
from torpor.base.home import Home
from torpor.errors import DataDamaged, HostNotReady, InvalidRequest, TorporError
from torpor.layers.manifest import read_manifest
from torpor.vmm import kvm, launch
from torpor.vmm.base import Driver
from torpor.vmm.firecracker import FirecrackerDriver, network
from torpor.vmm.firecracker import host as firecracker_host
from torpor.vmm.limits import NETWORK, RateLimits
from torpor.vmm.qemu import QemuDriver

SETTING = "TORPOR_DRIVER"
_NAMES = ("auto", "qemu", "firecracker")


@dataclass(frozen=True, slots=True)
class Choice:
    """A driver, and why it is that one."""

    driver: Driver
    reason: str
    limits: RateLimits
    """What it holds its machines to."""
    is_asked: bool = False
    """Whether `TORPOR_DRIVER` names it."""


def choose_driver(home: Home) -> Choice:
    """Return the driver for the machines of `home`. Blocks.

    Machines that run there now are of one driver, and no other can find them again.

    Raises:
        HostNotReady: another driver is named than that of machines that run, or it cannot hold machines to a limit
            that is set.
        InvalidRequest: `TORPOR_DRIVER` names none, or a limit is none.
    """
    limits = RateLimits.of(os.environ)
    wish = os.environ.get(SETTING) or "auto"
    if wish not in _NAMES:
        raise InvalidRequest(
            f"{SETTING} is {wish!r}", hint=f"set it to one of {', '.join(_NAMES)}, or unset it"
        )
    living = _of_living(home)
    if wish == "auto":
        name, reason = (living, f"machines of it run in {home.root}") if living else _kept(home)
        return Choice(_made(name, limits), reason, limits)
    if living not in (None, wish):
        raise HostNotReady(
            f"{SETTING} asks for {wish}, and machines of {living} run in {home.root}",
            hint=f"hibernate or delete them first, with {SETTING}={living}; what sleeps goes on only cold with {wish}",
        )
    return Choice(_made(wish, limits), f"{SETTING} asks for it", limits, is_asked=True)


def remember(home: Home, choice: Choice) -> None:
    """Let `home` keep this driver, if it has none yet or was asked to have it. Blocks."""
    if choice.is_asked or not home.driver.exists():
        write_atomic(home.driver, f"{choice.driver.name}\n".encode())


def _made(name: str, limits: RateLimits) -> Driver:
    if name == "firecracker":
        return FirecrackerDriver(limits)
    if limits.network_bytes_per_s is not None:
        raise HostNotReady(
            f"{NETWORK} is set, and the network of QEMU's machines cannot be held to a limit",
            hint=f"unset {NETWORK}, or set {SETTING}=firecracker",
        )
    return QemuDriver(limits)


def _kept(home: Home) -> tuple[str, str]:
    """Return the driver that `home` has had, or the fastest; QEMU where that cannot be used."""
    name, reason = _fastest()
    had = _had(home)
    if name == "firecracker" and had == "qemu" and _holds_any(home):
        return had, f"it is what {home.root} began with; {SETTING}=firecracker changes that"
    if name == "qemu" and had == "firecracker":
        reason += f"; what sleeps in {home.root} is Firecracker's and waits for it"
    return name, reason


def _had(home: Home) -> str | None:
    """Return the driver that `home` has had; None for a new home. The first homes did not say."""
    try:
        found = home.driver.read_text(errors="replace").strip()
    except FileNotFoundError:
        found = ""
    if found in _NAMES[1:]:
        return found
    return "qemu" if home.database.exists() else None


def _holds_any(home: Home) -> bool:
    """Return whether `home` has a sandbox, or a snapshot that no template takes anew."""
    if any(home.sandboxes.glob("sbx_*")):
        return True
    try:
        found = (read_manifest(folder).info for folder in home.snapshots.glob("snap_*"))
        return any(info.reason != "template" for info in found)
    except TorporError:  # damaged, or of a later version: it counts
        return True


def _fastest() -> tuple[str, str]:
    """Return the fastest driver with which all that is asked for by default works here, and why it is that one."""
    if os.environ.get("TORPOR_ACCEL") == "tcg":
        return "qemu", "TORPOR_ACCEL=tcg asks for emulation"
    usable = kvm.look()  # before advice on programs, which would be of no use
    if not usable.is_real:
        return "qemu", _why_not(usable.reason, usable.fix)
    with ThreadPoolExecutor(1) as elsewhere:  # an event loop may run in this thread
        found = elsewhere.submit(asyncio.run, firecracker_host.probe()).result()
    if not found.usable:
        return "qemu", _why_not(found.reason, found.fix)
    if "user" not in found.networks:
        return "qemu", network.no_way_out() or "machines of Firecracker reach no network here"
    return "firecracker", f"{found.reason}, and Firecracker {found.version} is there"


def _why_not(reason: str, fix: str | None) -> str:
    return f"Firecracker cannot be used: {reason}" + (f"; {fix}" if fix else "")


def _of_living(home: Home) -> str | None:
    """Return the driver of a machine that runs in `home`; None when none does."""
    for folder in home.sandboxes.glob("sbx_*"):
        try:
            record = launch.read_record(folder)
        except DataDamaged:  # whoever adopts it says so
            continue
        if record is not None and launch.process_in(record).alive():
            return launch.driver_in(record)
    return None
