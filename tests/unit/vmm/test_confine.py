"""Who a machine monitor runs as."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torpor.layers.seal import LAYERS_GID
from torpor.vmm import confine, launch
from torpor.vmm.base import Disk, MachineSpec


def test_without_root_there_is_nobody_to_change_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert confine.choose_user(tmp_path) is None


def test_as_root_each_machine_has_a_user_that_none_other_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        confine, "check_passable", lambda _: None
    )  # a test's folder is closed to others
    user = confine.choose_user(tmp_path)
    assert user is not None
    assert user.uid == user.gid
    assert 1_900_000_000 < user.uid < 1_900_065_001
    assert LAYERS_GID in user.groups


_USERS = (("a machine's", True), ("an ordinary user's", False))


@pytest.mark.parametrize(("whose", "is_kept"), _USERS)
def test_a_second_start_keeps_the_user_of_the_first_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, is_kept: bool
) -> None:
    """The owner of `vm/` is here, as root, uid 1000, else whoever runs this."""
    folder = tmp_path / "sbx_one"
    inner = folder / "vm"
    inner.mkdir(parents=True)
    (inner / "console.log").touch()
    owner = os.getuid() or 1000
    if os.getuid() == 0:
        os.chown(inner, owner, owner)
    chosen = owner + 1
    given: list[tuple[Path, int, int]] = []
    monkeypatch.setattr(confine, "_FIRST_UID", owner if is_kept else chosen)
    monkeypatch.setattr(confine, "choose_user", lambda _: confine.User(chosen, chosen, (7,)))
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append((path, uid, gid)))
    spec = MachineSpec(
        vcpus=1,
        ram_mib=128,
        network="none",
        kernel=tmp_path / "none",
        initrd=tmp_path / "none",
        cmdline="",
        disk=Disk((), tmp_path / "none"),
    )
    monkeypatch.setattr(launch, "give_to_vmm", lambda *_: None)
    user = launch.prepare(folder, spec)
    wanted = owner if is_kept else chosen
    assert user == confine.User(wanted, wanted, (7,))
    assert given == [(inner, wanted, wanted)]
    assert (inner / "console.log").exists() is is_kept, "another user's is not written on"


def test_a_vmm_never_has_the_group_of_root(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    device.touch()
    group = device.stat().st_gid
    assert confine._kvm_group(device) == (() if group == 0 else (group,))
    assert confine._kvm_group(tmp_path / "none") == ()
