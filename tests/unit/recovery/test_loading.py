"""What is heavy is loaded when it is needed."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {"dbos", "testinfra", "pytest", "yaml"}


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import json, sys; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(json.loads(done.stdout))


def test_the_daemon_starts_without_what_only_changes_need() -> None:
    assert not HEAVY & loaded("import torpor.recovery.desk, torpor.sandboxes.engine")
    found = loaded("import torpor.server.daemon, torpor.server.app")
    assert not (HEAVY - {"yaml"}) & found
    assert "torpor.recovery.changes.desk" in found


def test_the_command_line_loads_none_of_it() -> None:
    assert not (HEAVY | {"sqlalchemy"}) & loaded(
        "import torpor.cli.changes, torpor.sdk.sync_sandbox"
    )
