"""systemd's services: what they do, whether they start by themselves, how often they had to be started again."""

from __future__ import annotations

import os
import re

from torpor_guest.inventory.budget import Budget, Section
from torpor_guest.inventory.bus import PRIVATE_SOCKET, BusFailed, SystemdBus, Unit
from torpor_guest.inventory.content import Reader
from torpor_guest.inventory.walk import Walker

_ANSWER_S = 5.0
_TRANSIENT = re.compile(
    r"(?:user-runtime-dir|user|run-[a-z0-9]+|getty|serial-getty|systemd-fsck)@.*|run-.*"
)
_USER_UNITS = ("/root/.config/systemd/user", "/home/*/.config/systemd/user")


def units(walker: Walker, reader: Reader, section: Section, budget: Budget) -> None:
    """List the services that run, have failed, start by themselves or are masked, and users' own."""
    enabled, masked = _switched(walker, section)
    for name in sorted(masked):
        section.add(name, {"masked": True})
    try:
        bus = SystemdBus(
            walker.root + PRIVATE_SOCKET, timeout_s=min(_ANSWER_S, budget.seconds_left)
        )
    except BusFailed as exc:
        section.cut(str(exc))
        return
    try:
        _system(bus, section, enabled, masked)
    except BusFailed as exc:
        section.cut(str(exc))
    finally:
        bus.close()
    _users(walker, reader, section)


def _switched(walker: Walker, section: Section) -> tuple[set[str], set[str]]:
    """Return the services that start by themselves, and those that are kept from it."""
    enabled, masked = set(), set()
    for kind in ("wants", "requires"):
        for found in walker.glob(f"/etc/systemd/system/*.{kind}/*.service", section):
            enabled.add(found.name)
    for found in walker.glob("/etc/systemd/system/*.service", section):
        if found.is_link:
            try:
                target = os.readlink(found.name, dir_fd=found.folder)
            except OSError:
                continue
            if target == "/dev/null":
                masked.add(found.name)
    return enabled, masked


def _system(bus: SystemdBus, section: Section, enabled: set[str], masked: set[str]) -> None:
    listed = {unit.name: unit for unit in bus.services() if not _TRANSIENT.fullmatch(unit.name)}
    wanted = [
        unit
        for unit in listed.values()
        if unit.name not in masked
        and unit.load != "not-found"
        and (_counts(unit) or unit.name in enabled)
    ]
    running = [
        unit for unit in wanted if unit.sub in ("running", "auto-restart", "failed", "start")
    ]
    restarts = dict(zip((unit.name for unit in running), bus.restarts(running), strict=True))
    for unit in sorted(wanted):
        shown: dict[str, object] = {"state": unit.active, "enabled": unit.name in enabled}
        if restarts.get(unit.name) is not None:
            shown["restarts"] = restarts[unit.name]
        section.add(unit.name, shown)
    for name in sorted(enabled - listed.keys() - masked):
        if "@." not in name:
            section.add(name, {"state": "inactive", "enabled": True})


def _counts(unit: Unit) -> bool:
    """Return whether a service that does not start by itself is worth telling: not one that a timer runs now."""
    return unit.active in ("active", "failed") or unit.sub == "auto-restart"


def _users(walker: Walker, reader: Reader, section: Section) -> None:
    """List the services that users have described for themselves; they run if their control group has processes."""
    for folder in _USER_UNITS:
        enabled = {
            found.path.rpartition("/")[2]
            for found in walker.glob(f"{folder}/*.wants/*.service", section)
        }
        for found in walker.glob(f"{folder}/*.service", section):
            if not found.is_file:
                continue
            uid = found.stat.st_uid
            group = f"/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/{found.name}/cgroup.procs"
            owner = re.match(r"/(?:home/)?([^/]+)/", found.path)
            shown: dict[str, object] = {
                "state": "active" if _has_text(walker.root + group) else "inactive",
                "enabled": found.name in enabled,
            }
            digest = reader.digest(found)
            name = f"{owner[1] if owner else uid}: {found.name}"
            if digest is None:
                section.add(name, shown, unknown=["content"])
            else:
                section.add(name, shown, {"content": digest})


def _has_text(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False
