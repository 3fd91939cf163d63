"""Real machines: one home, one daemon and one template for the whole session, whatever folder the tests are in.

`TORPOR_TEST_HOME` names a home to use (and keep) instead of a fresh one, so that a second run builds no template.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor import Templates
from torpor.base.home import Home
from torpor.base.proc import ProcessId


def mark_vm(items: list[pytest.Item], place: str) -> None:
    """Mark the tests below `place` as those that boot machines."""
    for item in items:
        if place in str(item.path):
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def vm_home() -> Iterator[Home]:
    """The home of the session's machines; passable for the users that they run as."""
    if shutil.which("qemu-system-x86_64") is None or shutil.which("mmdebstrap") is None:
        pytest.fail("QEMU and mmdebstrap are needed for this tier; run scripts/bootstrap")
    named = os.environ.get("TORPOR_TEST_HOME")
    # not below pytest's own folders: those are closed to the users that machines run as
    fresh = None if named else Path(tempfile.mkdtemp(prefix="torpor-vm."))
    if fresh:
        fresh.chmod(0o711)
    home = Home(fresh / "home" if fresh else Path(str(named)))
    home.prepare()
    yield home
    end_daemon(home)
    left = [p.name for p in home.sandboxes.iterdir()] + [str(m) for m in machines(home)]
    _end_machines(home)
    if fresh:
        shutil.rmtree(fresh)
    assert not left, f"sandboxes or machines were left behind: {left}"


@pytest.fixture(scope="session")
def base(vm_home: Home) -> str:
    """The template `base`, built from nothing unless the home has it."""
    before = os.environ.get("TORPOR_HOME")
    os.environ["TORPOR_HOME"] = str(vm_home.root)
    try:
        return Templates.build("base").name
    finally:
        if before is None:
            del os.environ["TORPOR_HOME"]
        else:
            os.environ["TORPOR_HOME"] = before


def daemon_process(home: Home) -> ProcessId | None:
    """Return the daemon that serves `home`."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_ours = (entry / "cwd").readlink() == home.root
        except OSError:
            continue
        if b"torpor.server" in words and is_ours:
            return ProcessId.of(int(entry.name))
    return None


def end_daemon(home: Home) -> None:
    """Kill the daemon of `home`, as a power cut would, and wait until it is gone."""
    found = daemon_process(home)
    if found is not None:
        asyncio.run(found.kill(within_s=30))


def machines(home: Home) -> list[ProcessId]:
    """Return the VMMs that run in `home`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            inside = (entry / "cwd").readlink().is_relative_to(home.root)
            is_vmm = b"qemu-system" in (entry / "cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue
        process = ProcessId.of(int(entry.name)) if inside and is_vmm else None
        if process is not None:
            found.append(process)
    return found


def _end_machines(home: Home) -> None:
    for process in machines(home):
        asyncio.run(process.kill(within_s=30))
