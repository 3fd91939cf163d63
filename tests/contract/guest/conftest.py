"""Fixtures: the real agent and its client, and the fake; the contract suite runs on both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from tests.contract.guest.agent import Agent, running_agent
from tests.fakes.guest import FakeGuest
from torpor.guest.client import GuestClient
from torpor.guest.port import Guest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_blocking() -> Iterator[None]:
    """Fail when the host's end blocks its loop."""
    with blockbuster_ctx(["torpor.guest", "torpor.base", "torpor_guest"]):
        yield


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


@pytest.fixture(params=["agent", "fake"])
async def guest(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Guest]:
    """A guest whose files under `home` are the test's own."""
    if request.param == "fake":
        fake = FakeGuest(Path("/"), image_env={"FROM_IMAGE": "yes", "LAYER": "image"})
        yield fake
        await fake.aclose()
        return
    with running_agent(tmp_path / "guest") as agent:
        found = await agent.connect()
        yield found
        await found.aclose()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder in the guest for the test."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder
