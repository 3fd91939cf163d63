"""Which driver a home's machines have, and why."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.unit.layers.shelf import Shelf
from torpor.base.home import Home
from torpor.base.proc import ProcessId
from torpor.errors import HostNotReady, InvalidRequest
from torpor.vmm import confine, kvm, limits
from torpor.vmm.choose import choose_driver, remember
from torpor.vmm.firecracker import network

_offered = network.offered


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.prepare()
    return found


@pytest.fixture(autouse=True)
def real_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host on which Firecracker runs."""
    for name in ("TORPOR_DRIVER", "TORPOR_ACCEL", limits.DISK, limits.NETWORK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(True, "/dev/kvm is driven by kvm_amd"))
    monkeypatch.setattr(confine, "kvm_is_closed", lambda *_: False)
    monkeypatch.setattr(network, "check", lambda: None)
    monkeypatch.setattr(network, "offered", lambda: frozenset({"none", "user"}))
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(_program(tmp_path / "fc", "1.12.1")))


def _program(path: Path, version: str) -> Path:
    """Make a program that says it is a Firecracker."""
    path.write_text(f"#!/bin/sh\necho Firecracker v{version}\n")
    path.chmod(0o755)
    return path


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
    monkeypatch.delenv("TORPOR_FIRECRACKER")
    with monkeypatch.context() as bare:
        bare.setattr(shutil, "which", lambda *_, **__: None)
        choice = choose_driver(home)
    assert re.search(r"is not installed; run: sudo \S*torpor host setup$", choice.reason)
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(_program(tmp_path / "old", "1.11.9")))
    choice = choose_driver(home)
    assert (choice.driver.name, "is version 1.11.9; 1.12 or newer" in choice.reason) == (
        "qemu",
        True,
    )
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(False, "/dev/kvm does not exist"))
    choice = choose_driver(home)
    assert (choice.driver.name, "/dev/kvm does not exist" in choice.reason) == ("qemu", True)


def test_a_kvm_that_this_user_may_not_open_is_said_with_what_is_taken_instead(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "/dev/kvm exists, but this user may not open it"
    monkeypatch.setattr(
        kvm, "look", lambda *_: kvm.Kvm(False, reason, "sudo usermod -aG kvm $USER")
    )
    choice = choose_driver(home)
    assert (choice.driver.name, reason in choice.reason) == ("qemu", True)
    found = asyncio.run(choice.driver.probe())
    assert (found.accel, reason in found.reason) == ("tcg", True)


def test_kvm_that_machines_may_not_open_is_of_no_use_without_a_jailer(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_JAILER", "none")
    monkeypatch.setattr(confine, "kvm_is_closed", lambda *_: True)
    choice = choose_driver(home)
    assert choice.driver.name == "qemu"
    assert "chmod 0660 /dev/kvm" in choice.reason


def test_emulation_is_not_asked_of_firecracker(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_DRIVER", "firecracker")
    monkeypatch.setenv("TORPOR_ACCEL", "tcg")
    found = asyncio.run(choose_driver(home).driver.probe())
    assert (found.usable, "TORPOR_ACCEL=tcg" in found.reason) == (False, True)


def test_without_kvm_no_program_is_asked_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_DRIVER", "firecracker")
    monkeypatch.setenv("TORPOR_FIRECRACKER", "/none")
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(False, "/dev/kvm does not exist"))
    found = asyncio.run(choose_driver(home).driver.probe())
    assert found.reason == "Firecracker needs KVM: /dev/kvm does not exist"


def test_without_root_it_is_qemu_as_machines_have_a_network_by_default(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "offered", _offered)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    choice = choose_driver(home)
    assert (choice.driver.name, "root" in choice.reason) == ("qemu", True)


def test_without_the_tools_of_a_network_it_is_qemu_and_said_what_to_install(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "offered", _offered)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        network, "_tool", lambda name: None if name == "nft" else f"/usr/bin/{name}"
    )
    choice = choose_driver(home)
    assert choice.driver.name == "qemu"
    assert choice.reason.endswith("sudo apt-get install nftables")
    monkeypatch.setattr(network, "_tool", lambda name: f"/usr/bin/{name}")
    assert choose_driver(home).driver.name == "firecracker"


def test_a_home_keeps_the_driver_that_it_began_with(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_ACCEL", "tcg")
    remember(home, choose_driver(home))
    monkeypatch.delenv("TORPOR_ACCEL")
    (home.sandboxes / "sbx_one").mkdir()
    choice = choose_driver(home)
    assert choice.driver.name == "qemu"
    assert "TORPOR_DRIVER=firecracker changes that" in choice.reason
    remember(home, choice)
    monkeypatch.setenv("TORPOR_DRIVER", "firecracker")
    remember(home, choose_driver(home))
    monkeypatch.delenv("TORPOR_DRIVER")
    assert choose_driver(home).driver.name == "firecracker", "it was asked to change"
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(False, "the module is gone"))
    choice = choose_driver(home)
    assert choice.driver.name == "qemu", "cold is better than not at all"
    assert "the module is gone" in choice.reason
    assert "is Firecracker's and waits for it" in choice.reason
    remember(home, choice)
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(True, "it is back"))
    assert choose_driver(home).driver.name == "firecracker", "and nothing was lost by that"


@pytest.mark.parametrize("reason", ["template", "snapshot", "hibernate", "damaged"])
def test_a_home_with_templates_alone_is_as_a_new_one(tmp_path: Path, reason: str) -> None:
    shelf = Shelf(tmp_path / "shelf")
    home = shelf.home
    home.driver.write_text("qemu\n")
    is_damaged = reason == "damaged"
    made = shelf.snapshot([shelf.disk()], [], reason="template" if is_damaged else reason)
    if is_damaged:
        manifest = home.snapshots / made.info.id / "manifest.json"
        manifest.chmod(0o600)
        manifest.write_text("{")
    assert choose_driver(home).driver.name == ("firecracker" if reason == "template" else "qemu")


def test_a_home_that_never_said_has_machines_of_qemu(home: Home) -> None:
    home.database.touch()
    (home.sandboxes / "sbx_one").mkdir()
    assert choose_driver(home).driver.name == "qemu"
    home.driver.write_text("vmware\n")
    assert choose_driver(home).driver.name == "qemu"


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


def test_a_limit_that_a_driver_cannot_keep_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(limits.DISK, "50")
    monkeypatch.setenv(limits.NETWORK, "10")
    choice = choose_driver(home)
    assert (choice.driver.name, choice.limits) == (
        "firecracker",
        limits.RateLimits(50 << 20, 10 << 20),
    )
    monkeypatch.setenv("TORPOR_DRIVER", "qemu")
    with pytest.raises(HostNotReady, match=f"{limits.NETWORK} is set, and the network of QEMU's"):
        choose_driver(home)
    monkeypatch.delenv(limits.NETWORK)
    assert choose_driver(home).limits == limits.RateLimits(50 << 20, None)
