"""Each driver gets a home and daemon of its own; the template is one, and is built only where it is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kvm.traces import machines, traces
from tests.machines import end_daemon
from torpor import Sandbox, Templates
from torpor.base.home import Home
from torpor.sdk.daemon import ensure_daemon
from torpor.vmm.qemu.host import choose_accel

RECIPE = Path(__file__).parents[1] / "rig/host/machine.toml"
DRIVERS = tuple(os.environ.get("TORPOR_TEST_DRIVERS", "qemu").split(","))
FIRECRACKER = os.environ.get("TORPOR_TEST_FIRECRACKER") or os.environ.get("TORPOR_FIRECRACKER")
"""The one to test; None: the one that `torpor host setup` installed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/kvm/" in str(item.path):
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.kvm)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """The driver that all machines of this round have."""
    return str(request.param)


@pytest.fixture(scope="session")
def kvm_home(driver: str) -> Iterator[Home]:
    """The home of this driver's machines, and the proof that the driver leaves nothing on the host."""
    accel, reason = choose_accel()
    if accel != "kvm":
        pytest.fail(f"this suite needs KVM: {reason}; make test-rig emulates a host that has it")
    if driver == "firecracker" and os.geteuid() != 0:
        pytest.fail("without root machines of Firecracker have no network: run this suite as root")
    named = os.environ.get("TORPOR_TEST_HOME")
    # not below pytest's own folders: those are closed to the users that machines run as; and new for each run, so that
    # what a run left behind is not in the way of the next
    if named:
        Path(named).mkdir(mode=0o711, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="torpor-kvm.", dir=named))
    folder.chmod(0o711)
    home = Home(folder / driver)
    home.prepare()
    if named:
        _take_templates(Path(named) / "templates", home)
    before = traces(home)
    yield home
    end_daemon(home)
    left = {name: sorted(found - before[name]) for name, found in traces(home).items()}
    sandboxes = [path.name for path in home.sandboxes.iterdir()]
    for pid in machines(home):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)
    assert not any(left.values()), f"left behind: {left}"
    assert not sandboxes


def _take_templates(source: Path, home: Home) -> None:
    """Copy the templates that are there already; the build then finds that it is done."""
    if source.is_dir():
        argv = ["cp", "-a", "--reflink=auto", "--sparse=always", f"{source}/.", str(home.templates)]
        subprocess.run(argv, check=True, timeout=300)


@pytest.fixture(scope="session")
def daemon(driver: str, kvm_home: Home) -> Iterator[Home]:
    """Let daemons that the SDK starts use this home and driver, and KVM."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(kvm_home.root))
    patch.setenv("TORPOR_DRIVER", driver)
    patch.setenv("TORPOR_ACCEL", "kvm")
    if FIRECRACKER:
        patch.setenv("TORPOR_FIRECRACKER", FIRECRACKER)
    new_daemon(kvm_home)
    yield kvm_home
    patch.undo()


def new_daemon(home: Home) -> None:
    """Start the home's daemon if none runs; an emulated host takes longer over it than a client would wait."""
    ensure_daemon(home, limit_s=400)


def host_address() -> str:
    """Return an address of this host that is not its loopback's."""
    listed = subprocess.run(["ip", "-4", "-json", "addr"], capture_output=True, check=True).stdout
    for link in json.loads(listed):
        for one in link["addr_info"]:
            if one["scope"] == "global":
                return str(one["local"])
    pytest.fail("this host has no address that a machine could reach")


@pytest.fixture(autouse=True)
def in_kvm_home(
    daemon: Home, driver: str, monkeypatch: pytest.MonkeyPatch, clean_environment: None
) -> None:
    """The same for each test, whose environment was cleaned."""
    monkeypatch.setenv("TORPOR_HOME", str(daemon.root))
    monkeypatch.setenv("TORPOR_DRIVER", driver)
    monkeypatch.setenv("TORPOR_ACCEL", "kvm")
    if FIRECRACKER:
        monkeypatch.setenv("TORPOR_FIRECRACKER", FIRECRACKER)


@pytest.fixture(scope="session")
def template(daemon: Home) -> str:
    """The suite's template, built unless the home has it."""
    return Templates.build(RECIPE).name


@pytest.fixture(scope="module")
def shared(template: str) -> Iterator[Sandbox]:
    """One sandbox for the tests of a module that leave no mark on each other."""
    with Sandbox.create(template=template) as sandbox:
        yield sandbox


@pytest.fixture
def fresh(template: str) -> Iterator[Sandbox]:
    """A sandbox of a test's own."""
    with Sandbox.create(template=template) as sandbox:
        yield sandbox
