"""Real machines: see `tests/machines.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.machines import daemon_process, end_daemon, machines
from torpor import Sandbox
from torpor.base.home import Home

__all__ = ["daemon_process", "end_daemon", "machines"]


@pytest.fixture(autouse=True)
def in_vm_home(vm_home: Home, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> None:
    """Let SDK and CLI use the session's home."""
    monkeypatch.setenv("TORPOR_HOME", str(vm_home.root))


@pytest.fixture(scope="module")
def shared(base: str, vm_home: Home) -> Iterator[Sandbox]:
    """One sandbox for the tests of a module that leave no mark on each other."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    try:
        sandbox = Sandbox.create(template=base)
        yield sandbox
        sandbox.delete()
    finally:
        patch.undo()


@pytest.fixture
def fresh(base: str) -> Iterator[Sandbox]:
    """A sandbox of a test's own."""
    sandbox = Sandbox.create(template=base)
    yield sandbox
    sandbox.delete()
