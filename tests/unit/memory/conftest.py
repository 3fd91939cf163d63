from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.memory.clock import FakeClock
from torpor.memory import Memory, Space


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def memory(path: Path, clock: FakeClock) -> Iterator[Memory]:
    with Memory.open(path, clock=clock) as opened:
        yield opened


@pytest.fixture
def mem(memory: Memory) -> Space:
    return memory.space(agent="hermes-1")
