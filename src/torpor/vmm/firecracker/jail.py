"""Firecracker's jailer: a machine's own root, in which there is what it was given and nothing else.

The root is the machine's folder `vm/`, cleared before each start, as its owner may have put anything there. What lies
over it is mounted in a mount namespace of the machine's own, and so goes with its process: its devices, its log, and
`in/`, which is ours and holds hard links to the files that it may have.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.base import proc
from torpor.base.fsio import remove_all
from torpor.errors import HostNotReady, TorporError
from torpor.layers.seal import LAYERS_GID
from torpor.vmm.base import Wall
from torpor.vmm.confine import User
from torpor.vmm.firecracker.config import CONSOLE
from torpor.vmm.firecracker.given import GIVEN
from torpor.vmm.versions import remembered

SETTING = "TORPOR_JAILER"
NAME = "jailer"
"""What `torpor doctor` calls it."""

_JAILS = "jail"
_IN_NAME = "firecracker"
"""What the jailer wants to find in the name of a program."""
_CAPABILITIES = {"CAP_SYS_CHROOT": 18, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
_FULL_RANGE = 4294967295
_OURS = Path(sys.prefix, "bin/torpor")
INSTALL = f"sudo {_OURS if _OURS.exists() else 'torpor'} host setup"
"""How root installs what is missing; root's own PATH seldom has our `torpor`."""
_AS_HOST = "run the daemon as the host's root, not in a container"


@dataclass(frozen=True, slots=True)
class Jailer:
    """A jailer and the Firecracker that it starts, the file itself and no link to it."""

    binary: Path
    firecracker: Path

    def argv(self, folder: Path, instance: str, user: User, program: Sequence[str]) -> list[str]:
        """Return what starts the Firecracker with the arguments `program`, with `vm/` as its root."""
        return [
            str(self.binary),
            *("--id", instance, "--exec-file", str(self.firecracker)),
            *("--uid", str(user.uid), "--gid", str(LAYERS_GID)),  # it drops all other groups
            *("--chroot-base-dir", str(folder / _JAILS), "--", *program),
        ]

    def prepare(self, folder: Path, instance: str) -> None:
        """Make what the jailer and `mounts` want to find in a folder that was cleared. Blocks.

        Raises:
            HostNotReady: no program may be started there.
        """
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            raise HostNotReady(
                f"the jailer starts Firecracker from {folder}, which is mounted noexec",
                hint=f"mount it without noexec, or let {SETTING} be none for the daemon",
            )
        place = folder / _JAILS / self.firecracker.name / instance
        place.mkdir(mode=0o700, parents=True)
        (place / "root").symlink_to(folder / "vm")
        (folder / GIVEN).mkdir(mode=0o711)
        (folder / GIVEN).chmod(0o711)
        inner = folder / "vm"
        for name in (GIVEN, "dev"):
            (inner / name).mkdir(mode=0o700)
        (inner / "vmm.log").touch(mode=0o600)


def mounts(folder: Path) -> list[list[str]]:
    """Return the commands that mount over a machine's root, in its own mount namespace, what it is to find there."""
    inner = folder / "vm"
    devices = "size=64k,nr_inodes=32,mode=0700,nosuid,noexec"
    return [
        ["mount", "-t", "tmpfs", "-o", devices, "devices", str(inner / "dev")],
        ["mount", "--bind", str(folder / GIVEN), str(inner / GIVEN)],
        ["mount", "--bind", str(folder / "vmm.log"), str(inner / "vmm.log")],
    ]


def clear(folder: Path) -> None:
    """Remove all of a machine's root but its console's log, when no process is in it any more. Blocks."""
    inner = folder / "vm"
    there = list(inner.iterdir()) if inner.is_dir() else []
    for path in (folder / _JAILS, folder / GIVEN, *there):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                remove_all(path)
        elif path != inner / CONSOLE:
            path.unlink(missing_ok=True)


async def find(firecracker: Path, version: str) -> tuple[Jailer | None, Wall]:
    """Return the jailer for a Firecracker, if it can be used here, and what is to be said of it."""
    if os.geteuid() != 0:
        return None, _not_used("only root can use it", "run the daemon as root")
    named = os.environ.get(SETTING)
    if named == "none":
        return None, _not_used(f"{SETTING} is none", f"unset {SETTING}")
    found = await asyncio.to_thread(_binary, named, firecracker)
    if found is None:
        why = f"{SETTING} names {named}, which is no program" if named else "it is not installed"
        return None, _not_used(why, f"unset {SETTING}" if named else f"run: {INSTALL}")
    its = await _version(found)
    if its != version:
        why = f"{found} is version {its or 'unknown'}, and Firecracker is {version}"
        return None, _not_used(why, f"put the jailer of {version} there, or run: {INSTALL}")
    program = await asyncio.to_thread(firecracker.resolve)
    if _IN_NAME not in program.name:
        why = f"it starts no program whose name is {program.name}"
        return None, _not_used(why, f"let the program have {_IN_NAME} in its name")
    if lacking := await asyncio.to_thread(_lacking):
        return None, _not_used(lacking, _AS_HOST)
    why = f"{found}: each Firecracker has a root, a user and a network of its own"
    return Jailer(found, program), Wall(NAME, True, f"version {its}", why)


def _not_used(why: str, fix: str) -> Wall:
    return Wall(NAME, False, "not used", f"{why}; Firecracker can read what every user can", fix)


def _binary(named: str | None, firecracker: Path) -> Path | None:
    if named:
        found = shutil.which(named)
    else:
        beside = [str(place.parent) for place in (firecracker, firecracker.resolve())]
        found = shutil.which("jailer", path=os.pathsep.join([*beside, os.environ.get("PATH", "")]))
    return Path(found).absolute() if found else None


async def _version(binary: Path) -> str | None:
    try:
        return await remembered(binary, _ask_version)
    except (TorporError, OSError):
        return None


async def _ask_version(binary: Path) -> str:
    done = await proc.run([str(binary), "--version"], timeout_s=20)
    match = re.search(r"Jailer v(\d+\.\d+\.\d+)", done.stdout.decode("utf-8", "replace"))
    if match is None:
        raise HostNotReady(f"{binary} --version said nothing that is a version of the jailer")
    return match[1]


def _lacking(process: Path = Path("/proc/self")) -> str | None:
    """Return what this root may not do that the jailer does; None: nothing. Blocks."""
    ranges = [line.split() for line in (process / "uid_map").read_text().splitlines()]
    if ranges != [["0", "0", str(_FULL_RANGE)]]:
        return "root of a user namespace can make no devices"
    lines = (process / "status").read_text().splitlines()
    has = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    missing = [name for name, bit in _CAPABILITIES.items() if not has >> bit & 1]
    return f"this process lacks {', '.join(missing)}" if missing else None
