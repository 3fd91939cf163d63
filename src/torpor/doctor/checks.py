"""The checks. Each looks at one thing and says what was found, why it matters and what to do about it.

Nothing here changes the host, asks the network or raises; all checks run at once, in well under a second.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from torpor.base.fsio import can_reflink, free_bytes
from torpor.base.home import Home
from torpor.base.units import GIB, MIB, format_bytes
from torpor.errors import DataDamaged, InvalidRequest, NotFound, TorporError
from torpor.templates import manifest, mirror, namespace
from torpor.templates.debian import TOOLS, find_tool
from torpor.templates.initrd import find_busybox
from torpor.templates.plan import find_keyring
from torpor.vmm.base import Driver
from torpor.vmm.choose import choose_driver
from torpor.vmm.firecracker import kernel, network
from torpor.vmm.limits import DISK, NETWORK, RateLimits

Status = Literal["ok", "warn", "missing"]

_LITTLE_DISK = 10 * GIB
"""A sandbox of `base` is made only where its whole disk (8 GiB) and the reserve are free."""
_LITTLE_MEMORY = 1 * GIB
_TIMEOUT_S = 10.0
_NO_NETWORK = "let the daemon be root's, with what is missing; or create with --network none"
_WANTED = {"qemu": "8.2 or newer is wanted", "firecracker": "1.12 or newer is wanted"}


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    status: Status
    """`ok`; `warn`: works, but slower or only in part; `missing`: sandboxes or builds do not work."""
    found: str
    why: str = ""
    """Why it is so, or what it is for."""
    fix: str | None = None
    """What to do, as a command where there is one."""


async def collect(home: Home, *, driver: Driver | None = None) -> dict[str, object]:
    """Return what `torpor doctor --json` prints: `ok` (nothing is missing) and the `checks`. Never raises."""

    def off_loop(check: Callable[[], Check]) -> Callable[[], Awaitable[Check]]:
        return lambda: asyncio.to_thread(check)

    plans: list[tuple[str, Callable[[], Awaitable[list[Check] | Check]]]] = [
        ("host", off_loop(check_host)),
        ("python", off_loop(check_python)),
        ("driver", lambda: check_driver(home, driver)),
        *((tool, off_loop(partial(check_tool, tool))) for tool in sorted({*TOOLS, "e2fsck"})),
        ("busybox", off_loop(check_busybox)),
        ("debian keys", off_loop(check_keyring)),
        ("mirror", off_loop(check_mirror)),
        ("namespaces", check_namespaces),
        ("home", off_loop(lambda: check_home(home))),
        ("disk", off_loop(lambda: check_disk(home))),
        ("reflink", off_loop(lambda: check_reflink(home))),
        ("memory", off_loop(check_memory)),
        ("memory of machines", off_loop(check_machine_memory)),
        ("templates", off_loop(lambda: check_templates(home))),
    ]
    results = await asyncio.gather(*(_guarded(name, check) for name, check in plans))
    checks = [check for result in results for check in result]
    return {
        "ok": all(check.status != "missing" for check in checks),
        "checks": [dataclasses.asdict(check) for check in checks],
    }


def collect_now(home: Home) -> dict[str, object]:
    """Do `collect` where no event loop runs."""
    return asyncio.run(collect(home))


async def _guarded(name: str, check: Callable[[], Awaitable[list[Check] | Check]]) -> list[Check]:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            found = await check()
    except TorporError as exc:
        return [Check(name, "missing", exc.message, fix=exc.hint)]
    except Exception as exc:  # noqa: BLE001 - a check that breaks must not hide the others
        return [Check(name, "warn", f"this check failed: {exc!r}")]
    return found if isinstance(found, list) else [found]


def check_host() -> Check:
    """Check the kernel and the machine's kind."""
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return Check("host", "ok", found)
    return Check("host", "missing", found, "sandboxes run on Linux on x86_64", "use such a host")


def check_python() -> Check:
    """Say which Python runs this; an older one than 3.11 could not have come here."""
    return Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


async def check_driver(home: Home, given: Driver | None) -> list[Check]:
    """Check which driver machines have and why, their limits, its program, and which accelerator that will use and why."""
    if given is None:
        choice = await asyncio.to_thread(choose_driver, home)
        driver, why, limits = choice.driver, choice.reason, choice.limits
    else:
        driver, why, limits = given, "it was given", RateLimits()
    support = await driver.probe()
    chosen = [
        Check("driver", "ok", driver.name, why),
        Check("rate limits", "ok", str(limits), f"of each machine; {DISK} and {NETWORK} set them"),
        *([check_zstd(), check_tun()] if driver.name == "firecracker" else []),
    ]
    if not support.usable:
        return [
            *chosen,
            Check(
                driver.name,
                "missing",
                support.version or "not usable",
                support.reason,
                support.fix,
            ),
        ]
    program = Check(driver.name, "ok", f"version {support.version}", _WANTED.get(driver.name, ""))
    no_network = "user" not in support.networks
    fast = support.accel == "kvm"
    advice = (
        "unset TORPOR_ACCEL"
        if os.environ.get("TORPOR_ACCEL") == "tcg"
        else "use a host with hardware virtualisation, and this user in the group kvm"
    )
    return [
        *chosen,
        program,
        Check(
            "accelerator",
            "ok" if fast else "warn",
            str(support.accel),
            support.reason,
            None if fast else support.fix or advice,
        ),
        *(
            [Check("network", "warn", "none", network.no_way_out() or "", _NO_NETWORK)]
            if no_network
            else []
        ),
        *(
            Check(wall.name, "ok" if wall.stands else "warn", wall.found, wall.why, wall.fix)
            for wall in support.walls
        ),
    ]


def check_zstd() -> Check:
    """Check what unpacks the guest's kernel for Firecracker."""
    why = "Firecracker's machines boot kernels that are unpacked with it"
    found = kernel.finds_zstd()
    if found is not None:
        return Check("zstd", "ok", found, why)
    return Check("zstd", "missing", "not installed", why, "sudo apt-get install zstd")


def check_tun(device: Path = Path("/dev/net/tun")) -> Check:
    """Check the device that the network cards of Firecracker's machines are made with."""
    why = "the network card of each of Firecracker's machines is made with it"
    if device.is_char_device():
        return Check("tun", "ok", str(device), why)
    fix = "sudo modprobe tun; a container must be given the device by its host"
    return Check("tun", "missing", f"{device} is not there", why, fix)


def check_tool(name: str) -> Check:
    """Check a program that template builds run."""
    path = find_tool(name)
    if path is not None:
        return Check(name, "ok", path)
    package = TOOLS.get(name, "e2fsprogs")
    return Check(
        name,
        "missing",
        "not installed",
        "template builds run it",
        f"sudo apt-get install {package}",
    )


def check_busybox() -> Check:
    """Check the program that the guest's initrd is made of."""
    return Check("busybox", "ok", f"{find_busybox()}, static")


def check_keyring() -> Check:
    """Check the keys that signatures of Debian's packages are checked with."""
    return Check("debian keys", "ok", str(find_keyring()))


def check_mirror() -> Check:
    """Say where template builds take packages from; whether it answers is not tried."""
    chosen = mirror.choose()
    return Check(
        "mirror",
        "ok",
        chosen.shown,
        f"from {chosen.found}; TORPOR_DEBIAN_MIRROR names another",
    )


async def check_namespaces() -> Check:
    """Check that builds can have mounts and processes of their own."""
    await namespace.check()
    who = "as root" if os.geteuid() == 0 else "as an ordinary user, with a user namespace"
    return Check("namespaces", "ok", f"usable {who}")


def check_home(home: Home) -> Check:
    """Check that the home is ours and closed to others."""
    root = home.root
    if not root.exists():
        parent = _existing(root)
        if os.access(parent, os.W_OK | os.X_OK):
            return Check("home", "ok", f"{root} (made when it is first used)")
        return Check(
            "home",
            "missing",
            f"{root} does not exist and {parent} is not ours to write",
            "all state lives there",
            "let TORPOR_HOME name a folder of yours",
        )
    state = root.stat()
    if state.st_uid != os.geteuid():
        return Check(
            "home",
            "missing",
            f"{root} belongs to uid {state.st_uid}, and we are {os.geteuid()}",
            "one home has one owner",
            f"sudo chown -R {os.geteuid()} {root}, or let TORPOR_HOME name another folder",
        )
    if state.st_mode & 0o066:
        return Check(
            "home",
            "warn",
            f"{root} has mode {state.st_mode & 0o777:04o}",
            "other users can list or write it; 0711 is wanted",
            f"chmod 0711 {root}",
        )
    return Check("home", "ok", str(root))


def check_disk(home: Home) -> Check:
    """Check the space that sandboxes and templates have."""
    folder = _existing(home.root)
    free = free_bytes(folder)
    found = f"{format_bytes(free)} free at {folder}"
    if free >= _LITTLE_DISK:
        return Check("disk", "ok", found)
    return Check(
        "disk",
        "warn",
        found,
        f"a build needs 3 GiB, and making a sandbox of `base` 9 GiB; {format_bytes(_LITTLE_DISK)} is a good start",
        "free some space, or let TORPOR_HOME name a larger disk",
    )


def check_reflink(home: Home) -> Check:
    """Check whether files at the home can share their blocks."""
    folder = _existing(home.root)
    if not os.access(folder, os.W_OK):
        return Check("reflink", "warn", f"not known: {folder} is not ours to write")
    if can_reflink(folder):
        return Check("reflink", "ok", "yes", "copies of disks and RAM share their blocks")
    return Check(
        "reflink",
        "warn",
        "no",
        "copies take time and space; all works without",
        "let TORPOR_HOME name a folder on XFS or btrfs, or make one: torpor host setup --pool 50g",
    )


def check_memory() -> Check:
    """Check the memory that sandboxes can have."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free, total = (int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    found = f"{format_bytes(free)} of {format_bytes(total)} available"
    if free >= _LITTLE_MEMORY:
        return Check("memory", "ok", found)
    return Check(
        "memory",
        "warn",
        found,
        f"a sandbox takes {format_bytes(512 * MIB)} unless told otherwise",
        "end what is not needed, or create sandboxes with less ram_mib",
    )


def check_machine_memory(
    scope: Path = Path("/proc/sys/kernel/yama/ptrace_scope"), *, is_root: bool | None = None
) -> Check:
    """Check whether a snapshot can read the machines' memory, or must let QEMU write it."""
    name = "memory of machines"
    level = int(scope.read_text()) if scope.exists() else 0
    if (os.geteuid() == 0 if is_root is None else is_root) and level < 3:
        return Check(name, "ok", "can be read as root")
    if level == 0:
        return Check(name, "ok", "can be read by the user that runs the machines")
    when = "after a restart of the daemon, until a machine is woken" if level == 1 else "always"
    return Check(
        name,
        "warn",
        f"kernel.yama.ptrace_scope is {level}: QEMU has to write it out, {when}",
        "snapshots stop the machine for longer; all works without",
        "sudo sysctl kernel.yama.ptrace_scope=0, or run the daemon as root",
    )


def check_templates(home: Home) -> Check:
    """Check which templates are built and whole."""
    whole, damaged = [], []
    for path in sorted(home.templates.glob("[!.]*.json")):
        try:
            digest = manifest.read_pointer(home.templates, path.stem)
            manifest.read_template(home.templates / digest)
        except (NotFound, DataDamaged, InvalidRequest):
            damaged.append(path.stem)
        else:
            whole.append(path.stem)
    if damaged:
        return Check(
            "templates",
            "warn",
            f"damaged: {', '.join(damaged)}; whole: {', '.join(whole) or 'none'}",
            "a sandbox cannot be made from a damaged one",
            f"torpor template build {damaged[0]}",
        )
    if not whole:
        return Check(
            "templates",
            "warn",
            "none built",
            "a sandbox is made from a template",
            "torpor template build base",
        )
    return Check("templates", "ok", ", ".join(whole))


def _existing(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    for folder in (path, *path.parents):
        if folder.is_dir():
            return folder
    return Path("/")
