"""The channel through a VMM's socket that leads to the guest's vsock, to the real agent behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.guest.agent import Agent
from tests.contract.guest.steps import run
from torpor.errors import GuestUnreachable
from torpor.guest.client import connect

pytestmark = pytest.mark.anyio

PORT = 1024


class Vsock:
    """The VMM's end: what it does with each connection is in `plan`; when that is used up it leads to the agent."""

    def __init__(self, agent: Agent, plan: list[str]) -> None:
        self._agent = agent
        self.plan = plan
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.asked.append(await reader.readline())
        what = self.plan.pop(0) if self.plan else "agent"
        if what not in ("nobody", "unanswered"):
            writer.write(b"OK 1073741824\n")
        if what in ("silent", "unanswered"):
            await reader.read(-1)  # until the host gives this one up
        if what == "agent":
            theirs, ours = await asyncio.open_unix_connection(self._agent.socket)
            await asyncio.wait(
                {
                    asyncio.create_task(_relay(reader, ours)),
                    asyncio.create_task(_relay(theirs, writer)),
                }
            )
        writer.close()


async def _relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()


@pytest.fixture
async def vsock(agent: Agent, tmp_path: Path) -> AsyncIterator[Vsock]:
    found = Vsock(agent, [])
    server = await asyncio.start_unix_server(found.serve, tmp_path / "vsock")
    yield found
    server.close()


@pytest.mark.parametrize(
    "plan",
    [[], ["nobody", "nobody"], ["cut"], ["silent", "unanswered"]],
    ids=["at once", "nobody listens yet", "what came too early is cut", "it is forgotten"],
)
async def test_an_agent_is_reached_whatever_became_of_the_first_connections(
    vsock: Vsock, tmp_path: Path, plan: list[str]
) -> None:
    vsock.plan = list(plan)
    client = await connect(tmp_path / "vsock", port=PORT, epoch=1, timeout_s=60)
    try:
        assert vsock.asked == [b"CONNECT 1024\n"] * (len(plan) + 1)
        assert (await run(client, "echo there")).stdout == b"there\n"
    finally:
        await client.aclose()


async def test_an_agent_that_never_answers_is_given_up(vsock: Vsock, tmp_path: Path) -> None:
    vsock.plan = ["silent"] * 100
    with pytest.raises(GuestUnreachable, match=r"did not answer within 1\.5 s"):
        await connect(tmp_path / "vsock", port=PORT, epoch=1, timeout_s=1.5)
    assert len(vsock.asked) == 2
