"""Which driver a home's machines have: the one that `TORPOR_DRIVER` names, or the fastest that works here."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torpor.base.home import Home
from torpor.errors import DataDamaged, HostNotReady, InvalidRequest
from torpor.vmm import kvm, launch
from torpor.vmm.base import Driver
from torpor.vmm.firecracker import FirecrackerDriver
from torpor.vmm.firecracker.host import find_binary
from torpor.vmm.qemu import QemuDriver

SETTING = "TORPOR_DRIVER"
_NAMES = ("auto", "qemu", "firecracker")


@dataclass(frozen=True, slots=True)
class Choice:
    """A driver, and why it is that one."""

    driver: Driver
    reason: str


def choose_driver(home: Home) -> Choice:
    """Return the driver for the machines of `home`. Blocks.

    Machines that run there now are of one driver, and no other can find them again.

    Raises:
        HostNotReady: another driver is named than that of machines that run.
        InvalidRequest: `TORPOR_DRIVER` names none.
    """
    wish = os.environ.get(SETTING) or "auto"
    if wish not in _NAMES:
        raise InvalidRequest(
            f"{SETTING} is {wish!r}", hint=f"set it to one of {', '.join(_NAMES)}, or unset it"
        )
    living = _of_living(home)
    if wish == "auto":
        name, reason = (living, f"machines of it run in {home.root}") if living else _fastest()
        return Choice(_made(name), reason)
    if living not in (None, wish):
        raise HostNotReady(
            f"{SETTING} asks for {wish}, and machines of {living} run in {home.root}",
            hint=f"hibernate or delete them first, with {SETTING}={living}",
        )
    return Choice(_made(wish), f"{SETTING} asks for it")


def _made(name: str) -> Driver:
    return FirecrackerDriver() if name == "firecracker" else QemuDriver()


def _fastest() -> tuple[str, str]:
    if os.environ.get("TORPOR_ACCEL") == "tcg":
        return "qemu", "TORPOR_ACCEL=tcg asks for emulation"
    found = kvm.look()
    if not found.is_real:
        return "qemu", found.reason
    try:
        binary = find_binary()
    except HostNotReady as exc:
        return "qemu", exc.message
    return "firecracker", f"{found.reason}, and {binary} is there"


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
