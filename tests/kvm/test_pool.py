"""`torpor host setup --pool`, with the real mkfs.xfs and a real mount: what it prints makes copies share their blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from torpor.base.fsio import can_reflink

_SETUP = [sys.executable, "-m", "torpor.cli", "host", "setup", "--json", "--pool", "4g"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_the_commands_that_it_prints_mount_a_file_system_that_shares_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "TORPOR_FIRECRACKER" not in os.environ:
        monkeypatch.setenv("TORPOR_FIRECRACKER", "firecracker")
    with tempfile.TemporaryDirectory() as folder:
        file, home = Path(folder) / "pool.xfs", Path(folder) / "home"
        monkeypatch.setenv("TORPOR_HOME", str(home))
        argv = [*_SETUP, "--pool-file", str(file)]
        made = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
        assert made["firecracker"]["version"] >= "1.12"
        assert made["pool"]["changed"] is True
        commands = [c for c in made["pool"]["commands"] if "/etc/fstab" not in c]
        assert len(commands) == len(made["pool"]["commands"]) - 1
        subprocess.run(["sh", "-ec", "\n".join(commands)], check=True)
        try:
            assert can_reflink(home)
            again = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
            assert (again["pool"]["changed"], again["pool"]["mounted"]) == (False, True)
            assert again["pool"]["commands"] == []
        finally:
            subprocess.run(["umount", str(home)], check=True)
