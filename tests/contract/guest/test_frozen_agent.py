"""The real agent while its file systems are frozen, on paper: it never blocks, and nothing is lost."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.guest.agent import Agent, eventually
from tests.contract.guest.steps import (
    collect,
    follow,
    fresh_id,
    names,
    run,
    slurp,
    stream,
    temporary,
)
from tests.contract.guest.test_files import member, tar
from tests.contract.guest.test_snapshots import renewal
from tests.fakes.guest_kernel import mount_line
from torpor.errors import GuestFailed, GuestUnreachable
from torpor.guest.client import GuestClient
from torpor.model import ExecOutput, ExecSpec
from torpor_guest import protocol

pytestmark = pytest.mark.anyio

SETTLE_S = 0.3
MIB = 1 << 20


def calls(agent: Agent) -> list[list[object]]:
    """What was asked of the kernel."""
    return [json.loads(line) for line in (agent.root / "calls").read_text().splitlines()]


def refuse(agent: Agent, **refusals: list[int]) -> None:
    """Let the kernel refuse some calls from now on."""
    (agent.root / "refuse").write_text(json.dumps(refusals))


@pytest.fixture(autouse=True)
def never_blocked(agent: Agent) -> object:
    """The loop never wrote to a frozen disk."""
    yield
    blocked = agent.root / "blocked"
    assert not blocked.exists(), blocked.read_text()


async def test_output_waits_and_nothing_is_lost(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    command = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done; exit 3"
    async with client.exec_run(exec_id, ExecSpec(command=command)) as events:
        got, frozen_for = b"", 0
        async for event in events:
            if isinstance(event, ExecOutput):
                got += event.data
            if len(got) > 1000 and not frozen_for:
                await client.freeze(dead_man_seconds=30)
                frozen_for = (await client.exec_get(exec_id)).stdout_bytes
                await asyncio.sleep(SETTLE_S)
                assert (await client.exec_get(exec_id)).stdout_bytes == frozen_for
                assert await client.thaw() is True
    assert got == b"".join(b"%d\n" % i for i in range(20000))
    info = await client.exec_get(exec_id)
    assert (info.exit_code, info.stdout_bytes) == (3, len(got))


async def test_much_output_waits_too(agent: Agent, client: GuestClient) -> None:
    """Beyond a size the agent writes output in threads."""
    exec_id = fresh_id()
    await client.exec_start(exec_id, ExecSpec(command=f"head -c {8 * MIB} /dev/zero; echo end"))
    for _ in range(20):
        await client.freeze(dead_man_seconds=30)
        await asyncio.sleep(0.005)
        assert await client.thaw() is True
    ran = await follow(client, exec_id)
    assert (len(ran.stdout), ran.stdout[-4:]) == (8 * MIB + 4, b"end\n")


async def test_an_end_waits_and_is_true(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    spec = ExecSpec(command="read line; echo $line; sleep 0.05; exit 5", stdin=True)
    await client.exec_start(exec_id, spec)
    await client.freeze(dead_man_seconds=30)
    await client.exec_stdin(exec_id, b"word\n", eof=True)
    await asyncio.sleep(SETTLE_S)
    info = await client.exec_get(exec_id)
    assert (info.state, info.stdout_bytes) == ("running", 0)
    await client.thaw()
    ran = await follow(client, exec_id)
    assert (ran.info.exit_code, ran.stdout) == (5, b"word\n")
    assert ran.info.duration_ms is not None


async def test_a_kill_works_on_a_frozen_guest(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    await client.exec_start(exec_id, ExecSpec(command="sleep 66.5", timeout_seconds=30))
    await client.freeze(dead_man_seconds=30)
    await client.exec_signal(exec_id, 9)
    await asyncio.sleep(0.05)
    assert not any(p.exec_id == exec_id for p in await client.processes())
    await client.thaw()
    assert (await follow(client, exec_id)).info.exit_code == 137


async def test_what_is_kept_can_be_read_again(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    await run(client, "echo kept", exec_id=exec_id)
    await client.freeze(dead_man_seconds=30)
    assert (await follow(client, exec_id)).stdout == b"kept\n"
    await asyncio.sleep(SETTLE_S)
    await client.thaw()


async def test_an_end_just_before(agent: Agent, client: GuestClient) -> None:
    """What tidies up after an end comes a little later; then it finds the disk frozen."""
    for _ in range(5):
        await run(client, "echo hi; echo there >&2")
        await client.freeze(dead_man_seconds=30)
        await asyncio.sleep(0.08)
        await client.thaw()


async def test_a_start_that_nobody_waits_for_any_more(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    await client.freeze(dead_man_seconds=30)
    start = asyncio.get_running_loop().create_task(
        client.exec_start(exec_id, ExecSpec(command="echo twice"))
    )
    await asyncio.sleep(0.05)
    await client.aclose()
    with pytest.raises(GuestUnreachable):
        await start
    again = await agent.connect()
    await again.thaw()
    assert await again.exec_list() == [], "what was not begun ends with who asked"
    assert (await again.exec_start(exec_id, ExecSpec(command="true"))).command == "true"


async def test_uploads_wait_and_leave_nothing(
    agent: Agent, client: GuestClient, home: Path
) -> None:
    """More of them than the agent has threads; half of them are given up."""
    piece, half, there = b"x" * 50_000, asyncio.Event(), []

    async def slow(index: int) -> object:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(10):
                if number == 5:
                    there.append(index)
                    await half.wait()
                    if index % 2:
                        raise ZeroDivisionError
                yield piece

        return await client.write(f"{home}/{index}", pieces())

    tasks = [asyncio.get_running_loop().create_task(slow(index)) for index in range(20)]
    await eventually(lambda: len(there) == 20)
    await asyncio.sleep(0.1)
    await client.freeze(dead_man_seconds=30)
    half.set()
    await asyncio.sleep(SETTLE_S)
    waited = agent.root / "waited"
    in_time = len(waited.read_text().splitlines()) if waited.exists() else 0
    assert in_time < 8, "only what was being written already takes up threads"
    (home / "old").write_bytes(b"old")
    assert await slurp(client.read(f"{home}/old")) == b"old"
    await client.thaw()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, ZeroDivisionError) for result in results) == 10
    assert sorted(path.name for path in home.iterdir()) == sorted(
        [*(str(index) for index in range(0, 20, 2)), "old"]
    )


@pytest.mark.parametrize("given_up", [False, True])
async def test_unpacking_waits(
    agent: Agent, client: GuestClient, home: Path, given_up: bool
) -> None:
    data = tar((member("a"), b"a" * 70_000), (member("b"), b"b" * 70_000))
    half = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield data[:50_000]
        await half.wait()
        if given_up:
            raise ZeroDivisionError
        yield data[50_000:]

    task = asyncio.get_running_loop().create_task(client.unpack(f"{home}/in", pieces()))
    await eventually(lambda: temporary(home))
    await asyncio.sleep(0.1)
    await client.freeze(dead_man_seconds=30)
    half.set()
    await asyncio.sleep(0.1)
    assert not (agent.root / "waited").exists()
    await client.thaw()
    if given_up:
        with pytest.raises(ZeroDivisionError):
            await task
        await eventually(lambda: names(home / "in") == [])
    else:
        assert await task == 2
        assert (home / "in/b").read_bytes() == b"b" * 70_000
    assert temporary(home) == []


@pytest.mark.parametrize("method", ["read", "pack"])
async def test_a_reader_of_a_file_that_is_gone_leaves(
    agent: Agent, client: GuestClient, home: Path, method: str
) -> None:
    (home / "gone").write_bytes(b"x" * 4 * MIB)
    reading = getattr(client, method)(f"{home}/gone")
    await anext(reading)
    (home / "gone").unlink()
    await client.freeze(dead_man_seconds=30)
    await reading.aclose()
    await client.ping()
    await asyncio.sleep(0.05)
    await client.thaw()


async def test_log_lines_wait(agent: Agent, client: GuestClient) -> None:
    await client.freeze(dead_man_seconds=30)
    client._channel._write(protocol.encode(protocol.HELLO, 0, agent.epoch, 0, b"no JSON"))
    await client.ping()
    await asyncio.sleep(0.05)
    assert "bad frame" not in agent.log()
    await client.thaw()
    assert "bad frame from the host: a message is not JSON" in agent.log()


async def test_a_disk_that_cannot_be_frozen(agent: Agent, client: GuestClient) -> None:
    (agent.root / "mounts").write_text(mount_line("/") + mount_line("/dev/shm", "btrfs"))
    refuse(agent, freeze=[errno.EOPNOTSUPP, 1])
    with pytest.raises(GuestFailed, match="cannot be frozen") as caught:
        await client.freeze(dead_man_seconds=30)
    assert "consistency=crash" in (caught.value.hint or "")
    assert (await run(client, "echo hi")).stdout == b"hi\n"
    assert [call[0] for call in calls(agent)][-3:] == ["freeze", "freeze", "thaw"]


async def test_a_disk_that_cannot_be_written(agent: Agent, client: GuestClient) -> None:
    refuse(agent, sync=[errno.EIO, 0])
    with pytest.raises(GuestFailed, match="could not be written"):
        await client.sync()
    with pytest.raises(GuestFailed, match="Input/output error"):
        await client.freeze(dead_man_seconds=30)
    assert "freeze" not in [call[0] for call in calls(agent)]


async def test_a_host_that_leaves_while_it_is_frozen(agent: Agent, client: GuestClient) -> None:
    await client.freeze(dead_man_seconds=30)
    await client.aclose()
    again = await agent.connect()
    assert await again.thaw() is True, "only the dead man and a thaw let go"


async def test_the_agent_is_stopped_while_it_is_frozen(agent: Agent, client: GuestClient) -> None:
    await client.freeze(dead_man_seconds=30)
    await asyncio.to_thread(agent.stop)
    assert calls(agent)[-1][0] == "thaw"


async def test_the_agent_is_killed_while_it_is_frozen(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    await client.exec_start(exec_id, ExecSpec(command="sleep 67.5"))
    await client.freeze(dead_man_seconds=30)
    agent.kill()
    frozen = json.loads((agent.root / "run/torpor/frozen").read_text())
    assert frozen == ["/"]
    agent.start()
    assert calls(agent)[-1] == ["thaw", "/"], "before anything that writes"
    again = await agent.connect()
    assert (await run(again, "echo hi")).stdout == b"hi\n"


async def test_a_renewal_of_the_real_agent(agent: Agent, client: GuestClient) -> None:
    for folder in ("etc/torpor/on-restore.d", "proc/sys/kernel/random"):
        (agent.root / folder).mkdir(parents=True)
    (agent.root / "proc/sys/kernel/random/boot_id").write_text("old\n")
    hook = agent.root / "etc/torpor/on-restore.d/50-tell"
    hook.write_text(
        '#!/bin/sh\necho "$# $1 $TORPOR_RESTORE_REASON $TORPOR_GENERATION" > $0.told; pwd >> $0.told\n'
    )
    hook.chmod(0o755)
    await client.freeze(dead_man_seconds=30)
    await client.renew(renewal("sbx-abc"))
    assert Path(f"{hook}.told").read_text() == "1 fork fork 2\n/\n"
    assert (agent.root / "etc/hostname").read_text() == "sbx-abc\n"
    assert json.loads((agent.root / "run/torpor/generation").read_text())["generation"] == 2
    refuse(agent, reseed=[errno.EPERM, 0])
    with pytest.raises(GuestFailed, match="reseed"):
        await client.renew(renewal("sbx-def"))
    assert (agent.root / "etc/hostname").read_text() == "sbx-abc\n"


async def test_a_hook_that_hangs_is_killed(agent: Agent, client: GuestClient) -> None:
    folder = agent.root / "etc/torpor/on-restore.d"
    folder.mkdir(parents=True)
    for name in ("1-daemon", "2-good"):
        (folder / name).write_text(f"#!/bin/sh\n(sleep 68.5 &)\necho > {folder}/{name}.ran\n")
        (folder / name).chmod(0o755)
    async with asyncio.timeout(8):
        await client.renew(renewal())
    assert (folder / "2-good.ran").exists()
    await run(client, "pkill -f 'sleep 68.5'")


async def test_the_sandboxs_environment(agent: Agent, client: GuestClient) -> None:
    file = f"{agent.folder}/sandbox.json"
    show = "echo $FROM_IMAGE $LAYER $OF_SANDBOX $OF_EXEC"
    assert (await run(client, show)).stdout == b"yes image\n"
    data = json.dumps({"env": {"LAYER": "sandbox", "OF_SANDBOX": "1", "OF_EXEC": "no"}}).encode()
    await client.write(file, stream([data]), mode=0o600)
    assert (await run(client, show, env={"OF_EXEC": "2"})).stdout == b"yes sandbox 1 2\n"
    assert (await run(client, show, env={"LAYER": "exec"})).stdout == b"yes exec 1 no\n"
    await client.write(file, stream([b'{"env": {"LAYER": "other"}}']), mode=0o600)
    assert (await run(client, show)).stdout == b"yes other\n"
    await client.write(file, stream([b"{"]), mode=0o600)
    with pytest.raises(GuestFailed, match=r"sandbox\.json"):
        await run(client, show)
    await client.remove(file)
    assert (await run(client, show)).stdout == b"yes image\n"


async def test_a_stopped_agent_goes_on_in_the_restored_machine(
    agent: Agent, client: GuestClient
) -> None:
    """As in a snapshot: frozen, stopped with execs running, and a new host when it goes on."""
    exec_id = fresh_id()
    command = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done; exit 4"
    async with client.exec_run(exec_id, ExecSpec(command=command)) as events:
        await anext(events)
        await client.freeze(dead_man_seconds=30)
        os.kill(agent.pid, signal.SIGSTOP)
        await client.aclose()
        with pytest.raises(GuestUnreachable):
            await collect(events)
    os.kill(agent.pid, signal.SIGCONT)
    again = await agent.connect()
    await again.renew(renewal())
    ran = await follow(again, exec_id)
    assert (ran.info.exit_code, ran.stdout) == (4, b"1\n2\n3\n4\n5\n6\n7\n8\n")
    await eventually(lambda: "thaw" in [call[0] for call in calls(agent)])
