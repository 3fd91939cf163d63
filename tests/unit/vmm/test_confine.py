"""Who a machine monitor runs as."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torpor.layers.seal import LAYERS_GID
from torpor.vmm import confine


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


def test_a_vmm_never_has_the_group_of_root(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    device.touch()
    group = device.stat().st_gid
    assert confine._kvm_group(device) == (() if group == 0 else (group,))
    assert confine._kvm_group(tmp_path / "none") == ()
