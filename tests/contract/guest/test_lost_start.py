"""The real agent when its spawner dies or hangs in the middle of a start."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.guest.agent import (
    Agent,
    cgroup_choice,
    eventually,
    running_agent,
    spawner_of,
)
from tests.contract.guest.steps import follow, fresh_id, run
from torpor.errors import CommandLost, GuestFailed, NotFound
from torpor.guest.client import GuestClient
from torpor.model import ExecSpec
from torpor_guest import spawner

pytestmark = pytest.mark.anyio

LIMIT_S = 1.5
DYING = """\
import importlib.util, os, sys, time

spec = importlib.util.spec_from_file_location("spawner", {real!r})
spawner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(spawner)
start = spawner._start


def start_and_die(request, *rest):
    answer = start(request, *rest)
    ran = request[5].get(b"DIE_WHEN")
    if ran:
        while not os.path.exists(ran):
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    return answer


spawner._start = start_and_die
spawner.main(int(sys.argv[1]), sys.argv[2])
"""
"""A spawner that is killed behind a start, before it has answered."""


@pytest.fixture(params=["sessions", "cgroups"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agent]:
    script = tmp_path / "spawner.py"
    script.write_text(DYING.format(real=spawner.__file__))
    env = {"TORPOR_TEST_SPAWNER": str(script), "TORPOR_TEST_START_LIMIT_S": str(LIMIT_S)}
    with cgroup_choice(request.param) as choice:
        if choice is None:
            pytest.skip("no cgroup v2 folder that we may write to")
        with running_agent(tmp_path / "guest", cgroup=choice, env=env) as found:
            yield found


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except FileNotFoundError:
        return False


async def test_a_start_that_was_not_answered_is_lost_and_not_made_again(
    agent: Agent, client: GuestClient, home: Path
) -> None:
    exec_id, ran = fresh_id(), home / "ran"
    spec = ExecSpec(
        command="echo $$ >> pids; setsid sleep 61 & echo $! >> pids; mv pids ran; wait",
        env={"DIE_WHEN": str(ran)},
        cwd=str(home),
    )
    info = await client.exec_start(exec_id, spec)
    pids = [int(line) for line in ran.read_text().split()]
    assert (info.state, info.exit_code, len(pids)) == ("lost", None, 2)
    await eventually(lambda: not any(map(is_alive, pids)))
    ran.unlink()
    assert (await client.exec_start(exec_id, spec)).state == "lost"
    assert (await client.exec_get(exec_id)).state == "lost"
    with pytest.raises(CommandLost):
        await run(client, "echo twice", exec_id=exec_id)
    assert (await run(client, "echo next")).stdout == b"next\n"
    assert not ran.exists()
    agent.kill()
    agent.start()
    again = await agent.connect()
    assert (await again.exec_get(exec_id)).state == "lost"
    assert await again.exec_drop(exec_id)


async def test_a_request_that_nobody_took_is_made_of_the_next_spawner(
    agent: Agent, client: GuestClient
) -> None:
    await run(client, "true")
    stopped = spawner_of(agent)
    os.kill(stopped, signal.SIGSTOP)
    running = asyncio.create_task(run(client, "echo once"))
    await client.ping()  # the agent has the request, and asked
    os.kill(stopped, signal.SIGKILL)
    assert (await running).stdout == b"once\n"
    assert spawner_of(agent) != stopped


@pytest.mark.parametrize("pieces", [0, 10])
async def test_a_spawner_that_hangs_blocks_nobody_for_good(
    agent: Agent, client: GuestClient, pieces: int
) -> None:
    going_on, exec_id = fresh_id(), fresh_id()
    await client.exec_start(going_on, ExecSpec(command="read x; exit 7", stdin=True))
    os.kill(spawner_of(agent), signal.SIGSTOP)
    env = {f"K{n}": "x" * 100_000 for n in range(pieces)}
    begun = time.monotonic()
    first = asyncio.create_task(client.exec_start(exec_id, ExecSpec(command="true", env=env)))
    others = [asyncio.create_task(run(client, f"echo {n}")) for n in range(3)]
    with pytest.raises(GuestFailed, match="was not started"):
        await first
    assert time.monotonic() - begun > LIMIT_S / 2
    for n, other in enumerate(others):
        assert (await other).stdout == b"%d\n" % n
    with pytest.raises(NotFound):
        await client.exec_get(exec_id)
    await client.exec_stdin(going_on, b"now\n")
    assert (await follow(client, going_on)).info.exit_code == 7
