"""The benchmark runs on real machines and leaves nothing; no time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.vm.conftest import machines
from torpor import Sandbox, Snapshot
from torpor.base.home import Home
from torpor.cli.app import app


def test_a_quick_look(base: str, vm_home: Home, tmp_path: Path) -> None:
    before = [s.id for s in Sandbox.list()], [s.id for s in Snapshot.list()], machines(vm_home)
    result = CliRunner().invoke(
        app,
        ["bench", "--quick", "--json", "--only", "exec,bytes,memory", "--plot", str(tmp_path)],
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    names = {figure["name"] for figure in found["figures"]}
    assert names == {"exec.true", "bytes.idle", "bytes.work", "memory.fork", "memory.guest"}
    assert found["missed"] == []
    assert all(figure["torpor"]["median"] > 0 for figure in found["figures"])
    assert "no plot: the pause was not measured" in result.stderr
    after = [s.id for s in Sandbox.list()], [s.id for s in Snapshot.list()], machines(vm_home)
    assert after == before
    assert not list(vm_home.tmp.iterdir())


def test_what_is_no_figure_is_told(base: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--only", "speed"])
    assert result.exit_code != 0
    assert "speed is no figure" in result.stderr


@pytest.mark.usefixtures("in_vm_home")
def test_a_daemon_elsewhere_has_no_floor(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_URL", "http://127.0.0.1:1")
    result = CliRunner().invoke(app, ["bench", "--only", "exec"])
    assert "floor can only be measured beside a local one" in result.stderr
