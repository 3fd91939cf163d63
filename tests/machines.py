"""Real machines: one home, one daemon and one template for the whole session, whatever folder the tests are in.

`TORPOR_TEST_HOME` names a home to use (and keep) instead of a fresh one, so that a second run builds no template.
Where several processes share a run, each has a home of its own; the first that wants the template builds it, and the
others take a copy of what it built.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor import Sandbox, Templates
from torpor.base.fsio import locked
from torpor.base.home import Home
from torpor.base.proc import ProcessId
from torpor.layers.manifest import read_manifest

FAULT_FILE = "TORPOR_TEST_FAULT_FILE"
"""Names the file by which a test gives a daemon that runs a fault: see `torpor.base.faults`."""


def mark_vm(items: list[pytest.Item]) -> None:
    """Mark the tests that boot machines, wherever they are: those that the machines' home is for."""
    for item in items:
        if isinstance(item, pytest.Function) and "vm_home" in item.fixturenames:
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.timeout(900))


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in an order in which two processes that take file by file from it are both busy to the end.

    Files with machines take minutes and the others seconds, so those come last. Before them all comes one file with
    machines, whose process builds the template while another has the contracts' tests to do.
    """
    first = next((item.path for item in items if item.get_closest_marker("vm")), None)

    def place(item: pytest.Item) -> int:
        if item.path == first:
            return 0
        if item.get_closest_marker("vm"):
            return 2
        return 1 if "contract" in item.path.parts else 3

    return sorted(items, key=place)


@pytest.fixture(scope="session")
def empty_home() -> Iterator[Home]:
    """The home of the session's machines before it has any template; passable for the users that they run as."""
    if shutil.which("qemu-system-x86_64") is None or shutil.which("mmdebstrap") is None:
        pytest.fail("QEMU and mmdebstrap are needed for this tier; run scripts/bootstrap")
    named = os.environ.get("TORPOR_TEST_HOME")
    # not below pytest's own folders: those are closed to the users that machines run as
    fresh = None if named else Path(tempfile.mkdtemp(prefix="torpor-vm."))
    if fresh:
        fresh.chmod(0o711)
    home = Home(fresh / "home" if fresh else Path(str(named)))
    home.prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULT_FILE, str(home.root.with_name(f"{home.root.name}.fault")))
        yield home
    end_daemon(home)
    left = [p.name for p in home.sandboxes.iterdir()] + [str(m) for m in machines(home)]
    _end_machines(home)
    if fresh:
        shutil.rmtree(fresh)
    assert not left, f"sandboxes or machines were left behind: {left}"


@pytest.fixture(scope="session")
def vm_home(empty_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The home of the session's machines, with the template `base`.

    It is built from nothing, unless the home has it or another process of this run has built it.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ or "TORPOR_TEST_HOME" in os.environ:
        _build_base(empty_home)
        return empty_home
    built = tmp_path_factory.getbasetemp().parent / "base"
    with locked(built.with_suffix(".lock")):
        if built.exists():
            _copy_templates(built, empty_home.root)
        else:
            _build_base(empty_home)
            half = built.with_suffix(".half")
            half.mkdir()
            _copy_templates(empty_home.root, half)
            half.rename(built)
    return empty_home


@pytest.fixture(scope="session")
def base(vm_home: Home) -> str:
    """The template that every home of machines has."""
    return "base"


def _build_base(home: Home) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORPOR_HOME", str(home.root))
        Templates.build("base")


def _copy_templates(source: Path, target: Path) -> None:
    """Copy templates and their snapshots, as a copy of a home is made: see docs/formats/home.md.

    What is there is written once; the home that it is in has had nothing else to do yet.
    """
    folders = [str(source / name) for name in ("templates", "snapshots", "layers", "images")]
    argv = ["cp", "--archive", "--sparse=always", "--reflink=auto", *folders, str(target)]
    subprocess.run(argv, check=True, timeout=300)


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


def clock_error_s(sandbox: Sandbox) -> float:
    """Return by how many seconds a machine's clock is wrong at the least: its answer comes from some moment of the call."""
    before = time.time()
    there = float(sandbox.exec("date +%s.%N", check=True).stdout)
    return max(before - there, there - time.time(), 0.0)


def _end_machines(home: Home) -> None:
    for process in machines(home):
        asyncio.run(process.kill(within_s=30))


def copy_template(source: Home, target: Home) -> None:
    """Give a home the templates of another, and their snapshots."""
    _copy([source.templates], target.root)
    for folder in source.snapshots.iterdir():
        manifest = read_manifest(folder)
        if manifest.info.reason == "template":
            _copy([folder], target.snapshots)
            for layer in manifest.layer_ids:
                _copy([*source.layers.glob(f"{layer}.*")], target.layers)


def _copy(sources: list[Path], folder: Path) -> None:
    """Copy as it is, holes and owners too."""
    subprocess.run(["cp", "-a", "--sparse=always", *sources, folder], check=True, timeout=300)
