"""What `torpor host setup` says."""

from __future__ import annotations

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
