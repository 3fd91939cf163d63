"""The benchmark runs on real machines and leaves nothing; no time is asserted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
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
    assert names == {
        "exec.true",
        "exec.true.inside",
        "bytes.idle",
        "bytes.work",
        "memory.fork",
        "memory.guest",
    }
    assert found["missed"] == []
    assert all(figure["torpor"]["median"] > 0 for figure in found["figures"])
    assert "no plot: the pause was not measured" in result.stderr
    after = [s.id for s in Sandbox.list()], [s.id for s in Snapshot.list()], machines(vm_home)
    assert after == before
    assert not list(vm_home.tmp.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_made_goes_when_it_is_broken_off(
    base: str, vm_home: Home, number: signal.Signals
) -> None:
    before = [s.id for s in Sandbox.list()], [s.id for s in Snapshot.list()], machines(vm_home)
    argv = [sys.executable, "-m", "torpor.cli", "bench", "--quick", "--only", "comebacks"]
    bench = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert bench.stderr is not None
        while len(list(vm_home.tmp.glob("bench_*/flr_*"))) == 0:  # the floor's first machine
            assert bench.poll() is None, bench.stderr.read()
            time.sleep(0.01)
        bench.send_signal(number)
        assert bench.wait(timeout=120) == 130, bench.stderr.read()
    finally:
        bench.kill()
        bench.communicate()
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
