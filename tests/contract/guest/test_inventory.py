"""The agent's inventory over the channel: asked, cancelled, killed, and asked again."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.guest.agent import Agent, eventually
from tests.unit.guest.inventory.machine import Machine, hermes
from torpor.errors import GuestFailed, HostNotReady, InvalidRequest, OperationTimeout
from torpor.guest.client import GuestClient
from torpor.recovery.inventory import compare, detect, take
from torpor.recovery.inventory.plan import plan_of
from torpor.recovery.profiles import parse_profile, shipped

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def machine(agent: Agent) -> Machine:
    found = Machine(agent.root)
    hermes(found)
    return found


def _workers(agent: Agent) -> list[int]:
    """The processes that take inventories of that agent's machine."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(agent.root).encode() in words:
            found.append(int(entry.name))
    return found


async def test_twice_with_one_process(client: GuestClient, agent: Agent, machine: Machine) -> None:
    found = await detect(client)
    assert (found.profile.name, found.fits, found.is_own) == ("hermes", ("hermes",), False)
    before = await take(client, now=NOW)
    (worker,) = _workers(agent)
    assert list(before.entries("skills")) == ["mail", "notes", "web/search"]
    assert before.taken_at == NOW
    machine.path("/home/agent/.hermes/skills/mail/SKILL.md").unlink()
    after = await take(client, now=NOW)
    assert compare(before, after).sentences() == ("1 skill gone: mail",)
    assert _workers(agent) == [worker]
    await client.ping()


async def test_the_agent_s_end_ends_the_process(
    client: GuestClient, agent: Agent, machine: Machine
) -> None:
    await take(client, now=NOW)
    assert len(_workers(agent)) == 1
    agent.kill()
    await eventually(lambda: not _workers(agent))
    agent.start()
    again = await agent.connect()
    assert (await take(again, now=NOW)).entries("skills")


async def test_a_process_that_dies_is_replaced(
    client: GuestClient, agent: Agent, machine: Machine
) -> None:
    first = await take(client, now=NOW)
    os.kill(_workers(agent)[0], 9)
    await eventually(lambda: not _workers(agent))
    assert compare(first, await take(client, now=NOW)).is_empty


async def test_one_that_is_not_waited_for_is_ended(
    client: GuestClient, agent: Agent, machine: Machine
) -> None:
    profile = parse_profile(
        "format: 1\nname: slow\nversions: [{name: v, command: sleep 60}]\n", source="test"
    )
    task = asyncio.get_running_loop().create_task(take(client, profile, now=NOW, commands=True))
    await eventually(lambda: _workers(agent))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not _workers(agent))
    assert (await take(client, now=NOW)).entries("skills")


async def test_commands_tell_versions(client: GuestClient, machine: Machine) -> None:
    profile = parse_profile(
        "format: 1\nname: mine\nversions:\n"
        "  - {name: good, command: 'echo 1.2.3; echo more'}\n"
        "  - {name: words, command: [/bin/echo, '$HOME']}\n"
        "  - {name: bad, command: 'echo x; exit 3'}\n"
        "  - {name: absent, command: /no/such/program}\n"
        "  - {name: late, command: {command: sleep 60, timeout_seconds: 0.2}}\n",
        source="test",
    )
    begun = time.monotonic()
    found = await take(client, profile, now=NOW, commands=True)
    assert time.monotonic() - begun < 20
    versions = found.entries("versions")
    assert versions["good"].shown == {"version": "1.2.3"}
    assert versions["words"].shown == {"version": "$HOME"}
    assert versions["bad"].unknown == versions["late"].unknown == ("version",)
    assert "absent" not in versions
    notes = "\n".join(found.sections["versions"].notes)
    assert "bad: it ended with status 3" in notes
    assert "late: it took longer than 0.2 s" in notes


async def test_while_frozen_it_waits_for_the_thaw(client: GuestClient, machine: Machine) -> None:
    await client.freeze(dead_man_seconds=30)
    task = asyncio.get_running_loop().create_task(take(client, shipped("hermes"), now=NOW))
    await asyncio.sleep(0.2)
    assert not task.done()
    await client.thaw()
    assert (await task).entries("skills")


async def test_an_agent_of_before(
    client: GuestClient, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    old = replace(client.info, capabilities=frozenset({"exec"}))
    monkeypatch.setattr(client, "_info", old)
    with pytest.raises(HostNotReady, match="takes no inventory"):
        await take(client, now=NOW)


@pytest.mark.parametrize("deadline", [0, -1, 1e9, float("nan")])
async def test_deadlines_that_cannot_be(client: GuestClient, deadline: float) -> None:
    with pytest.raises(InvalidRequest):
        await client._channel.call("inventory.take", {"deadline_s": deadline})


async def test_a_plan_that_makes_no_sense(client: GuestClient, machine: Machine) -> None:
    plan: dict[str, Any] = plan_of(shipped("hermes"), commands=False)
    with pytest.raises((GuestFailed, OperationTimeout)):
        await client.inventory({**plan, "homes": 5}, deadline_seconds=5)
    assert (await take(client, now=NOW)).entries("skills"), "it is served again"
