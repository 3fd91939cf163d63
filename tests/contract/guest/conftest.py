"""Fixtures: the real agent, connected; and hygiene of the host's loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.guest.agent import Agent, running_agent
from torpor.guest.client import GuestClient


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with running_agent(tmp_path / "guest") as found:
        yield found


@pytest.fixture
async def client(agent: Agent) -> AsyncIterator[GuestClient]:
    found = await agent.connect()
    yield found
    for each in agent.clients:
        await each.aclose()
