"""The QEMU driver's pure parts: command line and the choice of the accelerator."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

import pytest

from torpor.errors import HostNotReady, InvalidRequest
from torpor.vmm.base import Disk, MachineSpec, VolumeDisk
from torpor.vmm.confine import check_passable
from torpor.vmm.qemu import command, host


def _argv(
    network: str = "user",
    layers: tuple[Path, ...] = (Path("/t/disk.raw"),),
    volumes: tuple[VolumeDisk, ...] = (),
    restored: bool = False,
) -> list[str]:
    spec = MachineSpec(
        vcpus=2,
        ram_mib=768,
        network=network,  # type: ignore[arg-type]
        kernel=Path("/t/vmlinuz"),
        initrd=Path("/t/initrd"),
        cmdline="console=ttyS0",
        disk=Disk(layers, Path("/s/disk.qcow2")),
        volumes=volumes,
    )
    wiring = command.Wiring(7, 8, "console.log", "ram", restored)
    return command.build(Path("/usr/bin/qemu"), "tcg", "sbx_1", spec, wiring)


def _options(argv: list[str], name: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == name]


def test_a_reset_ends_a_machine_whose_firmware_was_never_loaded() -> None:
    assert "-no-reboot" in _argv(restored=True)
    assert "-no-reboot" not in _argv()


def test_every_layer_is_read_only_and_has_an_explicit_backing() -> None:
    argv = _argv(layers=(Path("/t/disk.raw"), Path("/l/1.qcow2")))
    nodes = [json.loads(text) for text in _options(argv, "-blockdev")]
    assert [(n["driver"], n["node-name"], n["read-only"], n.get("backing")) for n in nodes] == [
        ("raw", "template0", True, None),
        ("qcow2", "1", True, "template0"),
        ("qcow2", "disk", False, "1"),
    ]
    assert all(n["file"]["auto-read-only"] for n in nodes), (
        "what becomes a layer is opened anew for reading"
    )
    assert [n["file"]["read-only"] for n in nodes] == [True, True, False]


def test_a_volume_is_a_disk_on_a_controller_that_every_machine_has() -> None:
    controllers = [d for d in _options(_argv(), "-device") if d.startswith("virtio-scsi")]
    assert controllers == ["virtio-scsi-pci,id=volumes"]
    for active in (Path("/l/2.qcow2"), None):
        disk = VolumeDisk(
            slot=3, serial="s", layers=(Path("/l/0.qcow2"), Path("/l/1.qcow2")), active=active
        )
        argv = _argv(volumes=(disk,))
        (device,) = [json.loads(d) for d in _options(argv, "-device") if d.startswith("{")]
        newest = "v3-1" if active is None else "v3-2"
        assert (device["scsi-id"], device["drive"], device["serial"]) == (3, newest, "s")
        node = json.loads(_options(argv, "-blockdev")[-1])
        assert node == command.volume_chain(disk)
        chain = []
        while node is not None:
            chain.append((node["node-name"], node["read-only"], node["file"]["read-only"]))
            assert node["file"]["locking"] == "on"
            node = node["backing"]
        writable = [] if active is None else [("v3-2", False, False)]
        assert chain == [*writable, ("v3-1", True, True), ("v3-0", True, True)]


def test_network_none_reaches_nothing_and_changes_no_device() -> None:
    assert _options(_argv("none"), "-netdev") == ["user,id=net,restrict=on"]
    assert _options(_argv("user"), "-netdev") == ["user,id=net"]
    devices = [
        [d for d in _options(_argv(n), "-device") if "vmgenid" not in d] for n in ("none", "user")
    ]
    assert devices[0] == devices[1]


def test_the_vmm_is_confined_and_each_start_has_its_own_generation() -> None:
    first, second = _argv(), _argv()
    assert _options(first, "-sandbox") == [
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
    ]
    generations = [
        o for argv in (first, second) for o in _options(argv, "-device") if o.startswith("vmgenid")
    ]
    assert len(set(generations)) == 2


@pytest.mark.parametrize(
    ("modules", "device", "want"),
    [
        (["kvm", "kvm_intel"], True, "kvm"),
        (["kvm", "kvm_amd"], True, "kvm"),
        (["kvm", "kvm_pvm"], True, "tcg"),  # a device that no ordinary guest runs on
        (["kvm_intel"], False, "tcg"),
    ],
)
def test_kvm_is_used_only_where_it_is_real(
    tmp_path: Path, modules: list[str], device: bool, want: str
) -> None:
    for module in modules:
        (tmp_path / "module" / module).mkdir(parents=True)
    if device:
        (tmp_path / "kvm").touch()
        (tmp_path / "kvm").chmod(0o666)
    accel, reason = host.choose_accel(tmp_path / "module", tmp_path / "kvm")
    assert accel == want
    assert str(tmp_path / "kvm") in reason


def test_a_kvm_that_this_user_may_not_open_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module/kvm_amd").mkdir(parents=True)
    (tmp_path / "kvm").touch()
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != tmp_path / "kvm")
    accel, reason = host.choose_accel(tmp_path / "module", tmp_path / "kvm")
    assert (accel, "this user may not open it" in reason) == ("tcg", True)


@pytest.mark.parametrize(
    ("mode", "group", "want"),
    [
        (0o666, 0, "kvm"),
        (0o600, 0, "tcg"),
        (0o660, 0, "tcg"),
        (0o660, 104, "kvm"),
        (0o640, 104, "tcg"),
    ],
)
def test_as_root_kvm_has_to_be_open_to_the_users_of_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, group: int, want: str
) -> None:
    (tmp_path / "module/kvm_amd").mkdir(parents=True)
    device = tmp_path / "kvm"
    device.touch()
    device.chmod(mode)
    monkeypatch.setattr("torpor.vmm.confine._kvm_group", lambda _: (group,) if group else ())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda *_: True)
    accel, reason = host.choose_accel(tmp_path / "module", device)
    assert accel == want
    assert ("chgrp kvm" in reason) is (want == "tcg")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert host.choose_accel(tmp_path / "module", device)[0] == "kvm", "machines run as we do"


def test_the_user_may_choose_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_ACCEL", "tcg")
    assert host.choose_accel()[0] == "tcg"
    monkeypatch.setenv("TORPOR_ACCEL", "warp")
    with pytest.raises(InvalidRequest, match="TORPOR_ACCEL is 'warp'"):
        host.choose_accel()


def test_a_qemu_that_is_missing_or_old_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_QEMU", str(tmp_path / "none"))
    with pytest.raises(HostNotReady, match="which is no program") as caught:
        asyncio.run(host.find_qemu())
    assert "unset it" in str(caught.value.hint)
    monkeypatch.delenv("TORPOR_QEMU")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostNotReady, match="is not installed") as caught:
        asyncio.run(host.find_qemu())
    assert "apt-get install" in str(caught.value.hint)

    old = tmp_path / "qemu-old"
    old.write_text("#!/bin/sh\necho 'QEMU emulator version 7.2.11 (Debian)'\n")
    old.chmod(0o755)
    tool = tmp_path / "qemu-img"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TORPOR_QEMU", str(old))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(HostNotReady, match=r"is version 7.2.11; 8.2 or newer"):
        asyncio.run(host.find_qemu())
    support = asyncio.run(host.probe())
    assert not support.usable
    assert "7.2.11" in support.reason


def test_a_home_that_machines_cannot_reach_is_named_with_the_fix() -> None:
    with tempfile.TemporaryDirectory() as name:
        closed, inner = Path(name), Path(name) / "sandboxes"
        inner.mkdir(0o711)
        with pytest.raises(HostNotReady, match="cannot pass through") as caught:
            check_passable(inner)
        assert f"chmod o+x {closed}" in str(caught.value.hint)
        closed.chmod(0o711)
        check_passable(inner)
