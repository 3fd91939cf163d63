"""The real agent: trees of processes, its own death, and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
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
from tests.contract.guest.steps import collect, content, follow, fresh_id, names, run, stream
from torpor.errors import (
    CommandLost,
    GuestFailed,
    GuestUnreachable,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from torpor.guest.client import GuestClient
from torpor.model import ExecEnded, ExecOutput, ExecSpec, ExecStarted

pytestmark = pytest.mark.anyio


class Family:
    """A command with a child, grandchildren that left the session, and a daemon that lost its parent.

    In a cgroup the daemon has lost its environment too: only there can it be found all the same.
    """

    def __init__(self, cgroup: str) -> None:
        self.marks = {f"6{i}.{secrets.randbelow(10**9):09}" for i in range(5)}
        child, grandchild, other, daemon, main = sorted(self.marks)
        self.main = main
        bare = "" if cgroup == "none" else "env -i"
        self.command = (
            f"sleep {child} & setsid sh -c 'sleep {grandchild} & sleep {other}' & "
            f"(setsid {bare} sleep {daemon} &)\n echo ready; sleep {main}"
        )

    def alive(self) -> set[str]:
        """Those of its processes that run."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    argv = (entry / "cmdline").read_bytes().split(b"\0")
                    if argv[0] == b"sleep":
                        found.add(argv[1].decode())
        return found & self.marks

    async def until(self, count: int) -> None:
        """Wait until that many of its processes run."""
        await eventually(lambda: len(self.alive()) == count)


@pytest.fixture
def family(agent: Agent) -> Family:
    return Family(agent.cgroup)


@pytest.fixture(params=["sessions", "cgroups"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agent]:
    with cgroup_choice(request.param) as choice:
        if choice is None:
            pytest.skip("no cgroup v2 folder that we may write to")
        with running_agent(tmp_path / "guest", cgroup=choice) as found:
            yield found


async def test_a_timeout_kills_the_whole_tree(family: Family, client: GuestClient) -> None:
    ran = await run(client, family.command, timeout_seconds=0.7)
    assert (ran.info.timed_out, ran.info.exit_code) == (True, 137)
    assert ran.stdout == b"ready\n"
    await family.until(0)


async def test_signal_9_kills_the_whole_tree(family: Family, client: GuestClient) -> None:
    exec_id = fresh_id()
    async with client.exec_run(exec_id, ExecSpec(command=family.command)) as events:
        async for event in events:
            if isinstance(event, ExecOutput):
                break
        await family.until(5)
        mine = {p.command for p in await client.processes() if p.exec_id == exec_id}
        assert mine >= {f"sleep {mark}" for mark in family.marks}
        await client.exec_signal(exec_id, 9)
        assert (await collect(events, at=(6, 0))).info.exit_code == 137
    await family.until(0)


async def test_the_background_survives_the_end_and_its_output_is_kept(
    family: Family, client: GuestClient
) -> None:
    exec_id = fresh_id()
    command = f"(sleep 0.6; echo late; sleep {family.main}) & echo now"
    ran = await run(client, command, exec_id=exec_id)
    assert ran.stdout == b"now\n"
    late = b""
    async with asyncio.timeout(5):
        while not late:
            await asyncio.sleep(0.02)
            late = (await follow(client, exec_id, at=(4, 0))).stdout
    assert late == b"late\n"
    assert family.alive() == {family.main}
    for process in await client.processes():
        if process.exec_id == exec_id:
            os.kill(process.pid, 9)


async def test_an_agent_killed_in_the_middle(
    agent: Agent, family: Family, client: GuestClient
) -> None:
    done, running = fresh_id(), fresh_id()
    await run(client, "echo done; exit 4", exec_id=done)
    seen = []

    async def watch() -> None:
        async with client.exec_run(running, ExecSpec(command=family.command)) as events:
            async for event in events:
                seen.append(event)
                if isinstance(event, ExecOutput):
                    agent.kill()

    with pytest.raises(GuestUnreachable):
        await watch()
    assert not [event for event in seen if isinstance(event, ExecEnded)]
    with pytest.raises(GuestUnreachable):
        await client.exec_get(done)
    agent.start()
    again = await agent.connect()
    await family.until(0)  # nothing unknown runs on
    with pytest.raises(CommandLost):
        await follow(again, running)
    assert (await again.exec_get(running)).state == "lost"
    assert (await again.exec_get(running)).exit_code is None
    lost = await again.exec_start(running, ExecSpec(command="echo twice"))
    assert lost.state == "lost"  # an id that was used starts nothing any more
    async with again.exec_attach(running) as events:
        assert isinstance(await anext(events), ExecStarted)
        output = await anext(events)
        assert isinstance(output, ExecOutput)
        assert output.data == b"ready\n"
        with pytest.raises(CommandLost):
            await anext(events)
    kept = await follow(again, done)
    assert (kept.info.exit_code, kept.stdout) == (4, b"done\n")


async def test_a_command_outlives_its_client(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    command = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done; exit 9"
    got = b""
    async with client.exec_run(exec_id, ExecSpec(command=command)) as events:
        async for event in events:
            if isinstance(event, ExecOutput):
                got += event.data
                break
        await client.aclose()
        with pytest.raises(GuestUnreachable):
            await collect(events, at=(len(got), 0))
    again = await agent.connect()
    ran = await follow(again, exec_id, at=(len(got), 0))
    assert got + ran.stdout == b"1\n2\n3\n4\n5\n6\n"
    assert ran.info.exit_code == 9


async def test_stopping_the_agent_kills_what_runs(
    agent: Agent, family: Family, client: GuestClient
) -> None:
    await client.exec_start(fresh_id(), ExecSpec(command=family.command))
    await family.until(5)
    await asyncio.to_thread(agent.stop)
    await family.until(0)


async def test_commands_survive_their_spawner(agent: Agent, client: GuestClient) -> None:
    goes_on, ends_meanwhile = fresh_id(), fresh_id()
    await client.exec_start(
        goes_on, ExecSpec(command="echo a; read x; echo $x; exit 7", stdin=True)
    )
    await client.exec_start(ends_meanwhile, ExecSpec(command="read x; exit 5", stdin=True))
    spawner = spawner_of(agent)
    os.kill(spawner, signal.SIGSTOP)  # the end of a command is there, and nobody has looked
    await client.exec_stdin(ends_meanwhile, b"now\n")
    pid = (await client.exec_get(ends_meanwhile)).pid
    await eventually(lambda: b"State:\tZ" in Path(f"/proc/{pid}/status").read_bytes())
    os.kill(spawner, signal.SIGKILL)
    assert (await follow(client, ends_meanwhile)).info.exit_code == 5
    assert (await run(client, "echo next")).stdout == b"next\n"
    assert spawner_of(agent) != spawner
    await client.exec_stdin(goes_on, b"b\n", eof=True)
    ran = await follow(client, goes_on)
    assert (ran.info.exit_code, ran.stdout) == (7, b"a\nb\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as another user")
async def test_another_user(agent: Agent, client: GuestClient) -> None:
    for user in ("nobody", "65534"):
        ran = await run(client, "id -u; echo $USER $LOGNAME $HOME; id -Gn", user=user, cwd="/")
        lines = ran.stdout.decode().split("\n")
        assert (ran.info.user, lines[0], lines[1].split()[:2]) == (
            "nobody",
            "65534",
            ["nobody"] * 2,
        )
        assert "root" not in lines[2].split()
    ran = await run(client, "cat /proc/self/status", user="nobody", cwd="/")
    status = dict(line.split(":", 1) for line in ran.stdout.decode().splitlines())
    assert status["Uid"].split() == ["65534"] * 4, "also the saved one: there is no way back"
    assert len(set(status["Gid"].split())) == 1
    assert status["Gid"].split()[0] != "0"
    assert {status[name].strip("\t0") for name in ("CapPrm", "CapEff", "CapAmb")} == {""}
    ran = await run(client, "id -u; id -g; echo $HOME", user="54321", cwd="/")
    assert ran.stdout == b"54321\n54321\n/\n"
    with pytest.raises(InvalidRequest):
        await run(client, "true", user="nobody", cwd="/root")


async def test_commands_start_from_a_clean_slate(agent: Agent, client: GuestClient) -> None:
    ran = await run(
        client,
        "env; grep -E 'Sig(Ign|Blk)' /proc/self/status; ls /proc/self/fd | wc -l; umask;"
        " cat /proc/self/oom_score_adj",
    )
    text = ran.stdout.decode()
    assert "PYTHONPATH" not in text
    assert "SigBlk:\t0000000000000000" in text
    ignored = int(text.partition("SigIgn:\t")[2].split()[0], 16)
    assert (
        ignored & 0x7FFFFFFF == 0
    )  # glibc's posix_spawn has its two own signals, 32 and 33, ignored
    assert text.endswith("\n4\n0022\n0\n")  # 0, 1, 2 and that of `ls` itself


async def test_too_many_at_once(agent: Agent, client: GuestClient) -> None:
    if agent.cgroup == "none":
        pytest.skip("takes long where each kill looks at every process")
    ids = [fresh_id() for _ in range(256)]
    await asyncio.gather(*(client.exec_start(i, ExecSpec(command=("sleep", "60"))) for i in ids))
    with pytest.raises(LimitExceeded):
        await client.exec_start(fresh_id(), ExecSpec(command="true"))
    again = await client.exec_start(ids[0], ExecSpec(command="true"))
    assert again.state == "running"
    await asyncio.gather(*(client.exec_signal(i, 9) for i in ids))
    await asyncio.gather(*(follow(client, i) for i in ids))


async def test_ended_execs_are_pruned(agent: Agent, client: GuestClient) -> None:
    if agent.cgroup == "none":
        pytest.skip("the other kind of agent is enough")
    first = fresh_id()
    await run(client, "echo x", exec_id=first)
    for _ in range(16):
        await asyncio.gather(*(run(client, "echo x") for _ in range(17)))
    await eventually(lambda: len(names(agent.folder / "state/exec")) <= 257)  # and the journal
    with pytest.raises(NotFound):
        await client.exec_get(first)
    assert len(await client.exec_list()) <= 256


async def test_output_files_are_the_users(agent: Agent, client: GuestClient) -> None:
    ran = await run(client, "echo kept")
    assert content(ran.info.stdout_path) == b"kept\n"
    assert ran.info.stderr_path == ""


async def test_machine_methods_use_the_machines_programs(agent: Agent, client: GuestClient) -> None:
    calls = agent.folder / "calls"
    for name in ("systemctl", "fstrim", "resize2fs"):
        script = agent.folder / "bin" / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\necho running\n')
        script.chmod(0o755)
    (agent.folder / "sys/vm").mkdir(parents=True)
    await client.settle(timeout_s=5)
    assert (agent.folder / "sys/vm/drop_caches").read_text() == "3\n"
    assert await client.grow_disk() > 1 << 20
    await client.shutdown()
    said = [line for line in calls.read_text().splitlines() if not line.startswith("resize2fs")]
    assert said == [
        "systemctl is-system-running --wait",
        "fstrim -a",
        "systemctl --no-block poweroff",
    ]
    (agent.folder / "bin/systemctl").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    with pytest.raises(Exception, match="longer than"):
        await client.settle(timeout_s=0.2)
    (agent.folder / "bin/systemctl").write_text("#!/bin/sh\necho broken; exit 1\n")
    with pytest.raises(GuestFailed, match="broken"):
        await client.shutdown()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk(agent: Agent, client: GuestClient, small_disk: Path) -> None:
    old = small_disk / "f"
    old.write_text("old")
    big = [bytes(64 << 10)] * 64
    with pytest.raises(GuestFailed, match="No space left"):
        await client.write(str(old), stream(big))
    with pytest.raises(GuestFailed, match="No space left"):
        await client.write(str(old), stream(big), append=True)
    assert (names(small_disk), old.read_text()) == (["f"], "old")


async def test_a_full_disk_for_output(tmp_path: Path, small_disk: Path) -> None:
    with running_agent(tmp_path / "guest", state=small_disk / "state") as agent:
        client = await agent.connect()
        ran = await run(client, "head -c 5000000 /dev/zero; echo end >&2; exit 3")
        assert (ran.info.exit_code, ran.info.stdout_bytes) == (3, 5000000)
        assert 500_000 < len(ran.stdout) < 1 << 20
        await client.aclose()
