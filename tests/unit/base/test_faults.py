"""A process dies at the point that a test names, whether before it starts or while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from torpor.base.faults import reach
for line in sys.stdin:
    reach(line.strip())
    print("passed", line.strip(), flush=True)
"""


def started(**env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str], point: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{point}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.parametrize("is_running", [False, True])
def test_it_dies_at_its_point_alone(tmp_path: Path, is_running: bool) -> None:
    file = tmp_path / "fault"
    env = {"TORPOR_TEST_FAULT_FILE": str(file)} if is_running else {"TORPOR_FAULT": "b"}
    with started(**env) as process:
        assert said(process, "a") == "passed a"
        if is_running:
            assert said(process, "b") == "passed b"
            file.write_text("b")
        assert said(process, "a") == "passed a"
        assert said(process, "b") == ""
        process.wait(20)
    assert process.returncode == -signal.SIGKILL
    assert not file.exists(), "the next process does not die there"


def test_it_stops_once(tmp_path: Path) -> None:
    file = tmp_path / "fault"
    file.write_text("a:stop")
    with started(TORPOR_TEST_FAULT_FILE=str(file)) as process:
        assert process.stdin is not None
        process.stdin.write("a\na\n")
        process.stdin.flush()
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=20)
    assert out == "passed a\npassed a\n"
