"""What `torpor host setup` says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torpor.cli.app import app
from torpor.errors import HostNotReady
from torpor.hostsetup import install as installing
from torpor.hostsetup import pool as pooling
from torpor.hostsetup.install import Installed
from torpor.hostsetup.pool import Pool
from torpor.sdk import daemon


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which nothing is installed or made, and no daemon runs."""
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TORPOR_FIRECRACKER", raising=False)

    async def install(into: Path, *, force: bool) -> Installed:
        return Installed("1.12.1", (into / "firecracker",), True)

    async def make_pool(file: Path, size_bytes: int, mount_point: Path) -> Pool:
        return Pool(file, size_bytes, True, False, mount_point, ("mount it",))

    monkeypatch.setattr(installing, "install", install)
    monkeypatch.setattr(installing, "why_unused", lambda _: None)
    monkeypatch.setattr(pooling, "make_pool", make_pool)
    monkeypatch.setattr(daemon, "answers", lambda _: False)


def test_the_pools_commands_are_said_although_nothing_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def install(into: Path, *, force: bool) -> Installed:
        raise HostNotReady("there is no internet")

    monkeypatch.setattr(installing, "install", install)
    done = CliRunner().invoke(app, ["host", "setup", "--pool", "4g"])
    assert done.exit_code == 78
    assert "there is no internet" in done.output
    assert "mount it" in done.output


def test_a_daemon_that_keeps_its_driver_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "pkill" not in CliRunner().invoke(app, ["host", "setup"]).output
    monkeypatch.setattr(daemon, "answers", lambda home: home.root == tmp_path / "home")
    said = CliRunner().invoke(app, ["host", "setup"]).output
    assert f"pkill -TERM -f 'torpor.server --home {tmp_path}/home '" in said
    assert "torpor doctor" in said


def test_how_a_program_that_is_not_found_is_used_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["host", "setup", "--into", str(tmp_path / "my bin")]
    assert "TORPOR_FIRECRACKER" not in CliRunner().invoke(app, args).output
    assert json.loads(CliRunner().invoke(app, [*args, "--json"]).output)["setting"] is None
    monkeypatch.setattr(installing, "why_unused", lambda program: f"not {program}")
    setting = f"TORPOR_FIRECRACKER='{tmp_path}/my bin/firecracker'"
    said = CliRunner().invoke(app, args).output
    assert f"not {tmp_path}/my bin/firecracker; " in said
    assert setting in said
    assert json.loads(CliRunner().invoke(app, [*args, "--json"]).output)["setting"] == setting
