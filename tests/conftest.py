"""What every test is given: a clean environment, and the proof that nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import base, empty_home, in_order, mark_vm, vm_home

__all__ = ["base", "empty_home", "vm_home"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what boots machines, before anything is chosen by its marks, and put all in order."""
    mark_vm(items)
    items[:] = in_order(items)


def _children(*, beside_daemons: bool) -> set[str]:
    """Return the command lines of this process's living children, direct or not.

    With `beside_daemons` a daemon and what it started are left out: the vm tier's is the session's.
    """
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
        at = pid
        while at in parents and at != os.getpid():
            if beside_daemons and ("-m torpor.server" in lines[at] or "qemu" in lines[at]):
                break
            at = parents[at]
        if at == os.getpid() and pid != at:
            found.add(f"{pid}: {lines[pid]}")
    return found


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_works() -> None:
    """A run in the background of a script has SIGINT ignored, and every program it starts would too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
    is_vm = request.node.get_closest_marker("vm") is not None
    before = _children(beside_daemons=is_vm)
    yield
    left = _children(beside_daemons=is_vm) - before
    assert not left, f"processes left behind: {left}"
