"""The helper that keeps a store quiet, as the agent runs it."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.contract.guest.agent import PYTHON, SOURCES


class Helper:
    """A running helper."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def ask(self, phase: str, *limits: float, within_s: float = 20) -> dict[str, Any]:
        """Have it do a phase; return its answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(" ".join([phase, *map(str, limits)]).encode() + b"\n")
        self.process.stdin.flush()
        assert select.select([self.process.stdout], [], [], within_s)[0], f"{phase} hangs"
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def quiet(self) -> None:
        """Have it prepare and hold."""
        for phase, limits in (("prepare", (10,)), ("hold", (10, 30))):
            answer = self.ask(phase, *limits)
            assert answer["ok"], answer


@contextlib.contextmanager
def helper(**config: Any) -> Iterator[Helper]:
    """Run one; it is gone afterwards."""
    process = subprocess.Popen(
        [PYTHON, "-B", "-S", "-s", "-m", "torpor_guest.holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(SOURCES), "PATH": "/usr/bin:/bin"},
    )
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(json.dumps(config).encode() + b"\n")
        process.stdin.flush()
        yield Helper(process)
    finally:
        process.stdin.close()
        try:
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.stdout.close()


def paths(*found: Path) -> list[str]:
    """Their names."""
    return [str(path) for path in found]
