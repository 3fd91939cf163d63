"""What every test is given: a clean environment, and the proof that nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def _children() -> set[str]:
    """Return the command lines of this process's living children, direct or not."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if fields[0] not in ("Z", "X"):
            parents[int(entry.name)], lines[int(entry.name)] = int(fields[1]), line
    found = set()
    for pid in parents:
        above = parents.get(pid)
        while above and above != os.getpid():
            above = parents.get(above)
        if above == os.getpid():
            found.add(f"{pid}: {lines[pid]}")
    return found


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Hide the user's own settings; a test that needs one sets it."""
    for name in list(os.environ):
        if name.startswith("TORPOR_") and not name.startswith("TORPOR_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path_factory.getbasetemp() / "unused-home"))


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process behind; the vm tier's daemon and machines are looked at in its own conftest."""
    before = _children()
    yield
    is_vm = request.node.get_closest_marker("vm") is not None
    left = {
        line
        for line in _children() - before
        if not (is_vm and ("-m torpor.server" in line or "qemu-system" in line))
    }
    assert not left, f"processes left behind: {left}"
