"""The real agent's hooks: real processes, whatever they do, and whatever becomes of the agent."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contract.guest.agent import Agent, eventually
from tests.contract.guest.test_quiesce import command, spec
from tests.contract.guest.test_snapshots import renewal
from torpor.errors import GuestUnreachable, InvalidRequest
from torpor.guest.client import GuestClient
from torpor.model_quiesce import HookSpec, QuiesceSpec

pytestmark = pytest.mark.anyio


def logged(name: str, log: Path, **more: Any) -> HookSpec:
    """A hook that writes down each of its phases."""
    line = f'echo {name} "$TORPOR_QUIESCE_PHASE" $TORPOR_QUIESCE_OUTCOME $TORPOR_QUIESCE_FAILED_PHASE >> {log}'
    phases = dict.fromkeys(("prepare", "hold", "release"), line)
    return HookSpec(name=name, **{**phases, **more})


def lines(log: Path) -> list[str]:
    """What was written down."""
    return log.read_text().splitlines() if log.exists() else []


def running(word: str) -> list[int]:
    """The processes with `word` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def test_prepared_then_held_in_order_and_released_in_reverse(
    client: GuestClient, home: Path
) -> None:
    log = home / "log"
    hooks = (logged("b", log, order=2), logged("c", log, order=3), logged("a", log, order=1))
    quiet = await client.quiesce(spec(*hooks))
    assert quiet.held
    await client.quiesce_release(quiet.token, "taken")
    assert lines(log) == [
        *("a prepare", "b prepare", "c prepare", "a hold", "b hold", "c hold"),
        *("c release taken", "b release taken", "a release taken"),
    ]


@pytest.mark.parametrize("phase", ["prepare", "hold"])
async def test_a_failure_releases_in_reverse_and_tells(
    client: GuestClient, home: Path, phase: str
) -> None:
    log = home / "log"
    bad = logged("b", log, order=2, **{phase: "echo out of order >&2; exit 3"})
    quiet = await client.quiesce(spec(logged("a", log, order=1), bad, logged("c", log, order=3)))
    assert not quiet.held
    assert quiet.reason == f"hook b: {phase} ended with status 3: out of order"
    released = [line for line in lines(log) if "release" in line]
    expected = ["b release failed " + phase, "a release failed"]
    if phase == "hold":
        expected.insert(0, "c release failed")
    assert released == expected
    assert "c hold" not in lines(log)


async def test_a_hang_is_killed_with_its_whole_tree(client: GuestClient, home: Path) -> None:
    tree = "sleep 71.25 & (setsid sleep 71.25 &) ; sleep 71.25"
    begun = time.monotonic()
    quiet = await client.quiesce(spec(command(prepare=tree, prepare_timeout_seconds=0.5)))
    assert time.monotonic() - begun < 8
    assert "prepare ran longer than 0.5 s and was killed" in quiet.reason
    await eventually(lambda: not running("sleep\x0071.25"))


async def test_a_release_that_hangs_holds_up_the_others_for_so_long(
    client: GuestClient, home: Path
) -> None:
    log = home / "log"
    quiet = await client.quiesce(
        spec(logged("a", log, order=1), command("z", order=9, release="sleep 72.25"))
    )
    released = await client.quiesce_release(quiet.token, "taken")
    by_name = {hook.name: hook for hook in released.hooks}
    assert "was killed" in by_name["z"].release_problem
    assert lines(log)[-1] == "a release taken"


async def test_a_hold_that_lives(client: GuestClient, home: Path) -> None:
    log = home / "log"
    hold = f"trap 'echo let go >> {log}; exit 0' TERM; echo held; while :; do sleep 0.05; done"
    quiet = await client.quiesce(spec(command(hold=hold, release=f"echo released >> {log}")))
    assert quiet.held
    assert (await client.quiesce_confirm(quiet.token)).held
    await client.quiesce_release(quiet.token, "taken")
    assert lines(log) == ["let go", "released"]


async def test_a_hold_that_dies_is_noticed(client: GuestClient) -> None:
    quiet = await client.quiesce(spec(command(hold="echo held; echo oh no; sleep 0.2")))
    assert quiet.held
    async with asyncio.timeout(10):
        while (confirmed := await client.quiesce_confirm(quiet.token)).held:
            await asyncio.sleep(0.05)
    assert confirmed.reason.startswith("hook app: its hold ended by itself")
    assert confirmed.hooks[0].state == "lost"
    released = await client.quiesce_release(quiet.token, "failed")
    assert released.hooks[0].state == "lost"


async def test_a_confirm_that_fails(client: GuestClient, home: Path) -> None:
    hook = command(confirm=f"test ! -e {home}/moved")
    quiet = await client.quiesce(spec(hook))
    assert (await client.quiesce_confirm(quiet.token)).held
    (home / "moved").touch()
    confirmed = await client.quiesce_confirm(quiet.token)
    assert not confirmed.held
    (home / "moved").unlink()
    assert not (await client.quiesce_confirm(quiet.token)).held, "once lost, always lost"
    await client.quiesce_release(quiet.token, "failed")


async def test_programs_in_quiesce_d(agent: Agent, client: GuestClient, home: Path) -> None:
    folder = agent.root / "etc/torpor/quiesce.d"
    folder.mkdir(parents=True)
    script = '#!/bin/sh\n{header}\necho "$(basename $0) $* $TORPOR_QUIESCE_NAME" >> {log}\n{more}\n'
    log = home / "log"
    for name, header, more in (
        ("20-second", "", ""),
        ("10-first", "# torpor-quiesce: optional hold_max=7 order=5", "exit 4"),
        ("30-backup~", "", ""),
        (".hidden", "", ""),
        ("40-not-executable", "", ""),
    ):
        (folder / name).write_text(script.format(header=header, log=log, more=more))
        (folder / name).chmod(0o644 if "not" in name else 0o755)
    quiet = await client.quiesce(QuiesceSpec(discover=False))
    assert quiet.held
    assert [(h.name, h.kind, h.required, h.state) for h in quiet.hooks] == [
        ("10-first", "program", False, "failed"),
        ("20-second", "program", True, "held"),
    ]
    await client.quiesce_release(quiet.token, "taken")
    assert lines(log) == [
        *("10-first prepare 10-first", "20-second prepare 20-second", "20-second hold 20-second"),
        *("20-second release 20-second", "10-first release 10-first"),
    ]
    (folder / "20-second").write_text("#!/bin/sh\n# torpor-quiesce: optionally\n")
    with pytest.raises(InvalidRequest, match="'optionally' in its header"):
        await client.quiesce(QuiesceSpec(discover=False))


async def test_the_host_leaves_while_it_prepares(
    agent: Agent, client: GuestClient, home: Path
) -> None:
    log = home / "log"
    hooks = (
        logged("a", log, order=1),
        command("b", order=2, prepare=f"touch {home}/there; sleep 73.25"),
    )
    task = asyncio.get_running_loop().create_task(client.quiesce(spec(*hooks)))
    await eventually((home / "there").exists)
    await client.aclose()
    with pytest.raises(GuestUnreachable):
        await task
    await agent.connect()
    await eventually(lambda: "a release failed" in lines(log))
    assert not running("sleep\x0073.25")


async def test_the_host_leaves_while_it_is_held(
    agent: Agent, client: GuestClient, home: Path
) -> None:
    log = home / "log"
    await client.quiesce(spec(logged("a", log, hold_max_seconds=1.0)))
    await client.aclose()
    await eventually(lambda: lines(log)[-1:] == ["a release expired"])


async def test_the_dead_man_breaks_off_a_hold(client: GuestClient, home: Path) -> None:
    log = home / "log"
    slow = command("b", order=2, hold="sleep 74.25")
    quiet = await client.quiesce(spec(logged("a", log, order=1, hold_max_seconds=0.5), slow))
    assert not quiet.held
    assert re.fullmatch(
        r"hook b: it took \d+\.\d s and did not hold before the time of all was over", quiet.reason
    )
    assert {h.name: (h.state, h.failed_phase) for h in quiet.hooks} == {
        "a": ("held", ""),
        "b": ("failed", "hold"),
    }
    assert lines(log)[-1] == "a release expired"
    assert not running("sleep\x0074.25")


async def test_the_agent_is_killed_while_it_is_held(
    agent: Agent, client: GuestClient, home: Path
) -> None:
    log = home / "log"
    living = command("z", hold="echo held; exec sleep 75.25")
    quiet = await client.quiesce(spec(logged("a", log), living))
    assert quiet.held
    agent.kill()
    assert json.loads((agent.folder / "state/quiesce.json").read_text())["hooks"]
    agent.start()
    again = await agent.connect()
    await eventually(lambda: lines(log)[-1:] == ["a release lost"])
    await eventually(lambda: not running("sleep\x0075.25"))
    quiet = await again.quiesce(spec(logged("a", log)))
    assert quiet.held
    await again.quiesce_release(quiet.token, "taken")
    assert not (agent.folder / "state/quiesce.json").exists()


async def test_the_agent_is_stopped_while_it_is_held(
    agent: Agent, client: GuestClient, home: Path
) -> None:
    log = home / "log"
    await client.quiesce(spec(logged("a", log)))
    await asyncio.to_thread(agent.stop)
    assert lines(log)[-1] == "a release lost"


async def test_a_restored_machine_is_released(
    agent: Agent, client: GuestClient, home: Path
) -> None:
    """As in a snapshot: held and frozen, stopped, and a new host when it goes on."""
    log = home / "log"
    quiet = await client.quiesce(spec(logged("a", log, hold_max_seconds=60)))
    await client.freeze(dead_man_seconds=30)
    os.kill(agent.pid, signal.SIGSTOP)
    await client.aclose()
    os.kill(agent.pid, signal.SIGCONT)
    again = await agent.connect()
    await again.renew(renewal())
    assert lines(log)[-1] == "a release restored"
    assert not (await again.quiesce_confirm(quiet.token)).held


async def test_what_hooks_say_is_bounded_and_cleaned(client: GuestClient) -> None:
    shout = "head -c 300000 /dev/zero | tr '\\0' x; printf 'end\\033[31m\\n'; exit 1"
    quiet = await client.quiesce(
        spec(command(prepare=shout), versions={"v": "printf '1\\033[0m\\nsecond'", "bad": "exit 7"})
    )
    assert len(quiet.reason) <= 500
    assert "end\\x1b[31m" in quiet.reason
    assert quiet.versions == {"v": "1\\x1b[0m", "bad": None}
    assert "status 7" in quiet.notes[0]


async def test_users(client: GuestClient) -> None:
    quiet = await client.quiesce(spec(command(user="nobody-of-that-name")))
    assert "no user" in quiet.reason
