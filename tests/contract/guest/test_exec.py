"""Commands: one suite for the real agent and the fake."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.contract.guest.steps import collect, follow, fresh_id, run
from torpor.errors import Conflict, InvalidRequest, NotFound
from torpor.guest.port import Guest
from torpor.model import ExecId, ExecOutput, ExecSpec, ExecStarted

pytestmark = pytest.mark.anyio


async def test_exit_codes(guest: Guest) -> None:
    for code in (0, 1, 3, 127, 255):
        ran = await run(guest, f"exit {code}")
        assert (ran.info.state, ran.info.exit_code, ran.info.signal) == ("exited", code, None)
        assert not ran.info.timed_out


async def test_stdout_and_stderr_come_apart(guest: Guest) -> None:
    ran = await run(guest, "echo out; echo err >&2; echo out2")
    assert (ran.stdout, ran.stderr) == (b"out\nout2\n", b"err\n")
    assert isinstance(ran.events[0], ExecStarted)
    assert ran.events[0].pid == ran.info.pid
    assert (ran.info.stdout_bytes, ran.info.stderr_bytes) == (9, 4)
    assert ran.info.duration_ms is not None


async def test_a_tuple_is_run_without_a_shell(guest: Guest) -> None:
    ran = await run(guest, ("printf", "%s|", "a b", "$HOME", "*", ""))
    assert ran.stdout == b"a b|$HOME|*||"


async def test_a_signal_is_128_plus_n(guest: Guest) -> None:
    ran = await run(guest, "kill -TERM $$")
    assert (ran.info.exit_code, ran.info.signal) == (143, 15)


async def test_output_is_binary_safe(guest: Guest) -> None:
    ran = await run(guest, "printf '\\000\\001~}\\377\\176\\175]^'")
    assert ran.stdout == b"\x00\x01~}\xff~}]^"


async def test_environment_is_merged(guest: Guest) -> None:
    ran = await run(
        guest,
        'echo "$FROM_IMAGE $LAYER $MORE $TORPOR_EXEC_ID"',
        env={"LAYER": "exec", "MORE": "ü"},
        exec_id=ExecId("exec_env"),
    )
    assert ran.stdout == "yes exec ü exec_env\n".encode()


async def test_cwd(guest: Guest, home: Path) -> None:
    assert (await run(guest, "pwd", cwd=str(home))).stdout == f"{home}\n".encode()


async def test_a_program_that_is_missing_or_cannot_be_run_is_told_apart(
    guest: Guest, home: Path
) -> None:
    for program, number in (("no-such-program-anywhere", "ENOENT"), (str(home), "EACCES")):
        with pytest.raises(InvalidRequest) as caught:
            await guest.exec_start(fresh_id(), ExecSpec(command=(program,)))
        assert caught.value.facts == {"step": "program", "errno": number}


async def test_what_cannot_be_started_is_refused_and_not_remembered(guest: Guest) -> None:
    for spec in (
        ExecSpec(command="true", cwd="/no/such/place"),
        ExecSpec(command="true", cwd="relative"),
        ExecSpec(command="true", user="no-such-user"),
        ExecSpec(command=("no-such-program-anywhere",)),
        ExecSpec(command=("/etc/hostname/x",)),
        ExecSpec(command=()),
    ):
        exec_id = fresh_id()
        with pytest.raises(InvalidRequest):
            await guest.exec_start(exec_id, spec)
        with pytest.raises(NotFound):
            await guest.exec_get(exec_id)
        assert (await guest.exec_start(exec_id, ExecSpec(command="true"))).exec_id == exec_id
        await follow(guest, exec_id)


async def test_stdin_is_empty_unless_asked_for(guest: Guest) -> None:
    ran = await run(guest, "cat; echo done")
    assert ran.stdout == b"done\n"


async def test_stdin_is_fed(guest: Guest) -> None:
    exec_id = fresh_id()
    await guest.exec_start(exec_id, ExecSpec(command="cat; echo end", stdin=True))
    big = bytes(range(256)) * 2000
    await guest.exec_stdin(exec_id, b"first ")
    await guest.exec_stdin(exec_id, big)
    await guest.exec_stdin(exec_id, b"", eof=True)
    assert (await follow(guest, exec_id)).stdout == b"first " + big + b"end\n"
    with pytest.raises(Conflict):
        await guest.exec_stdin(exec_id, b"late")


async def test_a_timeout_ends_the_command_and_keeps_what_it_wrote(guest: Guest) -> None:
    begun = time.monotonic()
    ran = await run(guest, "echo before; sleep 60; echo after", timeout_seconds=0.4)
    assert time.monotonic() - begun < 10
    assert ran.info.timed_out
    assert (ran.info.exit_code, ran.info.signal) == (137, 9)
    assert ran.stdout == b"before\n"


async def test_signals_reach_the_command(guest: Guest) -> None:
    exec_id = fresh_id()
    spec = ExecSpec(
        command="trap 'echo usr; exit 7' USR1; echo ready; while :; do sleep 0.05; done"
    )
    async with guest.exec_run(exec_id, spec) as events:
        async for event in events:
            if isinstance(event, ExecOutput):
                assert event.data == b"ready\n"
                break
        await guest.exec_signal(exec_id, 10)
        ran = await collect(events, at=(6, 0))
    assert (ran.stdout, ran.info.exit_code) == (b"usr\n", 7)
    await guest.exec_signal(exec_id, 9)  # no effect
    with pytest.raises(InvalidRequest):
        await guest.exec_signal(exec_id, 0)
    with pytest.raises(NotFound):
        await guest.exec_signal(fresh_id(), 9)


async def test_kill(guest: Guest) -> None:
    exec_id = fresh_id()
    await guest.exec_start(exec_id, ExecSpec(command="sleep 60 & sleep 60; wait"))
    await guest.exec_signal(exec_id, 9)
    ran = await follow(guest, exec_id)
    assert (ran.info.exit_code, ran.info.signal, ran.info.timed_out) == (137, 9, False)


async def test_the_same_id_is_started_once(guest: Guest, home: Path) -> None:
    exec_id = fresh_id()
    spec = ExecSpec(command="echo x >> once; cat once", cwd=str(home))
    infos = await asyncio.gather(*(guest.exec_start(exec_id, spec) for _ in range(5)))
    assert len({info.pid for info in infos}) == 1
    assert (await follow(guest, exec_id)).stdout == b"x\n"
    assert (await run(guest, spec.command, exec_id=exec_id)).stdout == b"x\n"
    assert (home / "once").read_text() == "x\n"


async def test_attach_again_at_an_offset_gets_exactly_the_rest(guest: Guest, home: Path) -> None:
    exec_id = fresh_id()
    command = "i=0; while [ $i -lt 200 ]; do echo line-$i; i=$((i+1)); done; cat go; echo end"
    (home / "fifo").touch()
    spec = ExecSpec(command=f"mkfifo go; {command}", cwd=str(home))
    expected = b"".join(b"line-%d\n" % i for i in range(200)) + b"end\n"
    got = b""
    async with guest.exec_run(exec_id, spec) as events:
        async for event in events:
            if isinstance(event, ExecOutput):
                got += event.data
                break  # detached in the middle: the command runs on
    assert (await guest.exec_get(exec_id)).state == "running"
    fifo = await asyncio.to_thread((home / "go").open, "wb")
    fifo.close()
    ran = await follow(guest, exec_id, at=(len(got), 0))
    assert got + ran.stdout == expected
    assert ran.info.exit_code == 0
    again = await follow(guest, exec_id, at=(len(expected), 0))
    assert (again.stdout, again.info) == (b"", ran.info)
    with pytest.raises(InvalidRequest):
        await follow(guest, exec_id, at=(len(expected) + 1, 0))
    with pytest.raises(NotFound):
        await follow(guest, fresh_id())


async def test_output_beyond_the_limit_is_counted_and_not_kept(guest: Guest) -> None:
    ran = await run(guest, "head -c 300000 /dev/zero; exit 5", output_limit_bytes=1000)
    assert ran.info.exit_code == 5
    assert ran.stdout == bytes(1000)
    assert ran.info.stdout_bytes == 300000


async def test_twenty_at_once(guest: Guest) -> None:
    jobs = (run(guest, f"sleep 0.1; echo {i}; exit {i}") for i in range(20))
    for i, ran in enumerate(await asyncio.gather(*jobs)):
        assert (ran.info.exit_code, ran.stdout) == (i, b"%d\n" % i)


async def test_one_stalled_reader_holds_up_nobody(guest: Guest) -> None:
    exec_id = fresh_id()
    size = 8 << 20
    spec = ExecSpec(command=f"head -c {size} /dev/zero")
    async with guest.exec_run(exec_id, spec) as stalled:
        assert isinstance(await anext(stalled), ExecStarted)
        ran = await follow(guest, exec_id)
        assert len(ran.stdout) == size
        assert (await run(guest, "echo other")).stdout == b"other\n"
        assert len((await collect(stalled)).stdout) == size  # nothing was lost for it


async def test_the_end_does_not_wait_for_the_background(guest: Guest) -> None:
    exec_id = fresh_id()
    begun = time.monotonic()
    ran = await run(guest, "(sleep 1.5; echo late) & echo now", exec_id=exec_id)
    assert time.monotonic() - begun < 1.3
    assert (ran.info.exit_code, ran.stdout) == (0, b"now\n")


async def test_list(guest: Guest) -> None:
    ids = [fresh_id() for _ in range(3)]
    for exec_id in ids:
        await run(guest, ("true",), exec_id=exec_id)
    listed = [info.exec_id for info in await guest.exec_list()]
    assert [exec_id for exec_id in listed if exec_id in ids] == ids


async def test_what_has_ended_can_be_forgotten(guest: Guest) -> None:
    ended, running = fresh_id(), fresh_id()
    ran = await run(guest, "echo kept", exec_id=ended)
    await guest.exec_start(running, ExecSpec(command="exec sleep 47"))
    assert await guest.exec_forget() >= 1
    assert [info.exec_id for info in await guest.exec_list()] == [running]
    with pytest.raises(NotFound):
        await guest.exec_get(ended)
    assert ran.info.stdout_path
    assert await guest.exec_forget() == 0
    await guest.exec_signal(running, 9)


async def test_one_that_has_ended_can_be_dropped(guest: Guest) -> None:
    ended, other, running = fresh_id(), fresh_id(), fresh_id()
    await run(guest, "echo kept", exec_id=ended)
    await run(guest, "echo kept", exec_id=other)
    await guest.exec_start(running, ExecSpec(command="exec sleep 47"))
    assert "exec.drop" in guest.info.capabilities
    assert await guest.exec_drop(ended)
    assert not await guest.exec_drop(ended)
    assert not await guest.exec_drop(running)
    known = {info.exec_id for info in await guest.exec_list()}
    assert known & {ended, other, running} == {other, running}
    await guest.exec_signal(running, 9)


async def test_processes_tell_whose_they_are(guest: Guest) -> None:
    exec_id = fresh_id()
    await guest.exec_start(exec_id, ExecSpec(command="exec sleep 47"))
    pid = (await guest.exec_get(exec_id)).pid
    assert pid is not None
    async with asyncio.timeout(5):
        while True:
            found = {info.pid: info for info in await guest.processes()}
            if found[pid].rss_bytes > 0:  # not so while a new program is being loaded
                break
    assert found[pid].exec_id == exec_id
    assert "sleep 47" in found[pid].command
    await guest.exec_signal(exec_id, 9)
    await follow(guest, exec_id)


async def test_a_long_command_and_environment(guest: Guest) -> None:
    text, value = "x" * 100_000, "y" * 100_000
    ran = await run(guest, f"echo {text} $VALUE", env={"VALUE": value})
    assert ran.stdout == f"{text} {value}\n".encode()
    assert isinstance(ran.info.command, str)
    assert len(ran.info.command) > 100_000


async def test_ping_and_info(guest: Guest) -> None:
    await guest.ping()
    assert "exec" in guest.info.capabilities
    assert guest.info.instance
