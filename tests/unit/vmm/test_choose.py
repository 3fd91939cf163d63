"""Which driver a home's machines have, and why."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from torpor.base.home import Home
from torpor.base.proc import ProcessId
from torpor.errors import HostNotReady, InvalidRequest
from torpor.vmm import kvm
from torpor.vmm.choose import choose_driver


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.prepare()
    return found


@pytest.fixture(autouse=True)
def real_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host on which Firecracker runs."""
    for name in ("TORPOR_DRIVER", "TORPOR_ACCEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(True, "/dev/kvm is driven by kvm_amd"))
    program = tmp_path / "fc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(program))


def _machine(home: Home, *, driver: str | None, ticks: int | None = None) -> None:
    """Let a machine of `home` be this very process, or, with other ticks, one that ended."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    record: dict[str, object] = {"pid": me.pid, "started_ticks": ticks or me.started_ticks}
    if driver is not None:
        record["driver"] = driver
    folder = home.sandboxes / "sbx_one"
    folder.mkdir(exist_ok=True)
    (folder / "vmm.json").write_text(json.dumps(record))


def test_firecracker_is_taken_where_it_works(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose_driver(home)
    assert choice.driver.name == "firecracker"
    assert "kvm_amd" in choice.reason
    monkeypatch.setenv("TORPOR_ACCEL", "tcg")
    assert choose_driver(home).driver.name == "qemu"


def test_without_kvm_or_program_it_is_qemu_and_said_why(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(tmp_path / "none"))
    choice = choose_driver(home)
    assert (choice.driver.name, "which is no program" in choice.reason) == ("qemu", True)
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(False, "/dev/kvm does not exist"))
    choice = choose_driver(home)
    assert (choice.driver.name, choice.reason) == ("qemu", "/dev/kvm does not exist")


def test_the_setting_decides(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_DRIVER", "qemu")
    assert choose_driver(home).driver.name == "qemu"
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(False, "no"))
    monkeypatch.setenv("TORPOR_DRIVER", "firecracker")
    assert choose_driver(home).driver.name == "firecracker", "whether it works is for `probe`"
    monkeypatch.setenv("TORPOR_DRIVER", "vmware")
    with pytest.raises(InvalidRequest, match="TORPOR_DRIVER is 'vmware'"):
        choose_driver(home)


@pytest.mark.parametrize("driver", [None, "qemu", "firecracker"])
def test_machines_that_run_keep_their_driver(
    home: Home, monkeypatch: pytest.MonkeyPatch, driver: str | None
) -> None:
    _machine(home, driver=driver)
    living, other = ("firecracker", "qemu") if driver == "firecracker" else ("qemu", "firecracker")
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(living == "qemu", "it changed"))
    assert choose_driver(home).driver.name == living
    monkeypatch.setenv("TORPOR_DRIVER", living)
    assert choose_driver(home).driver.name == living
    monkeypatch.setenv("TORPOR_DRIVER", other)
    with pytest.raises(HostNotReady, match=f"machines of {living} run"):
        choose_driver(home)
    _machine(home, driver=driver, ticks=1)
    assert choose_driver(home).driver.name == other, "those that ended do not matter"
