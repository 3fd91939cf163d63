"""The survey for a first checks file: which files say how a machine is set up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from torpor.recovery.checks.scripts.survey import Walk


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc/systemd/system/agent.service", True),
        ("/etc/systemd/system/backup.timer", True),
        ("/etc/systemd/system/agent.socket", False),
        ("/etc/systemd/system/torpor-agent.service", False),
        ("/etc/systemd/system/torpor-network.service", False),
        ("/home/agent/.env", True),
    ],
)
def test_what_is_configuration(path: str, expected: bool) -> None:
    entry = SimpleNamespace(name=Path(path).name, path=path)
    assert Walk(until=0)._is_config(entry) is expected  # type: ignore[arg-type]
