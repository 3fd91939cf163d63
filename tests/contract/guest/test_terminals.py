"""Commands in a terminal: the real agent, real pseudo-terminals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.guest.agent import Agent, eventually
from tests.contract.guest.steps import fresh_id
from torpor.errors import CommandLost, Conflict, InvalidRequest, LimitExceeded
from torpor.guest.client import GuestClient
from torpor.model import ExecEnded, ExecEvent, ExecId, ExecInfo, ExecOutput, ExecSpec
from torpor.model_terminals import TerminalSpec
from torpor_guest.scrollback import LIMIT_BYTES, REST_BYTES, Scrollback

pytestmark = pytest.mark.anyio

SH = ("/bin/sh",)
ENV = {"PS1": "$ ", "ENV": "", "PATH": "/usr/bin:/bin"}


def in_terminal(
    command: str | tuple[str, ...], columns: int = 80, rows: int = 24, **kwargs: object
) -> ExecSpec:
    """A command in a terminal."""
    size = TerminalSpec(columns=columns, rows=rows)
    return ExecSpec(command=command, env=ENV, stdin=True, terminal=size, **kwargs)  # type: ignore[arg-type]


class Screen:
    """Follows a terminal."""

    def __init__(self, events: AsyncIterator[ExecEvent]) -> None:
        self._events = events
        self.text = b""
        self.offset: int | None = None
        self.first: int | None = None
        self.gaps = 0
        self.end: ExecInfo | None = None

    async def until(self, wanted: str | bytes) -> bytes:
        """Read until it has shown `wanted`; return all that it has shown until then, which is taken off."""
        mark = wanted.encode() if isinstance(wanted, str) else wanted
        async with asyncio.timeout(20):
            while mark not in self.text:
                assert await self._step(), f"it ended: {self.text!r}"
        before, _, self.text = self.text.partition(mark)
        return before + mark

    async def rest(self) -> bytes:
        """All until the end."""
        async with asyncio.timeout(30):
            while await self._step():
                pass
        return self.text

    async def _step(self) -> bool:
        event = await anext(self._events, None)
        if isinstance(event, ExecOutput):
            assert event.stream == "stdout"
            self.first = event.offset if self.first is None else self.first
            self.gaps += self.offset not in (None, event.offset)
            self.offset = event.offset + len(event.data)
            self.text += event.data
        elif isinstance(event, ExecEnded):
            self.end = event.info
        return event is not None


@contextlib.asynccontextmanager
async def shown(
    client: GuestClient, spec: ExecSpec, exec_id: ExecId | None = None
) -> AsyncIterator[tuple[Screen, ExecId]]:
    """Start a command in a terminal and follow it."""
    found = exec_id or fresh_id()
    async with client.exec_run(found, spec) as events:
        yield Screen(events), found


async def test_it_is_a_terminal_that_controls_its_session(client: GuestClient) -> None:
    code = (
        "import os,sys;print(all(map(os.isatty,(0,1,2))),os.getsid(0)==os.getpid(),"
        "os.tcgetpgrp(0)==os.getpgrp(),os.get_terminal_size(),os.environ['TERM'],"
        "open('/dev/tty').isatty())"
    )
    async with shown(client, in_terminal((sys.executable, "-S", "-c", code), 132, 43)) as (s, _):
        text = (await s.rest()).decode()
    assert text == (
        "True True True os.terminal_size(columns=132, lines=43) xterm-256color True\r\n"
    )
    assert s.end is not None
    assert (s.end.exit_code, s.end.terminal) == (0, True)


async def test_what_is_typed_arrives_and_is_echoed(client: GuestClient) -> None:
    async with shown(client, in_terminal(SH)) as (screen, exec_id):
        await screen.until("$ ")
        await client.exec_stdin(exec_id, b"echo $((6*7))\n")
        assert await screen.until("42\r\n") == b"echo $((6*7))\r\n42\r\n"
        await client.exec_stdin(exec_id, b"exit 7\n")
        await screen.rest()
    assert screen.end is not None
    assert screen.end.exit_code == 7


async def test_control_c_interrupts_what_runs_and_not_the_shell(client: GuestClient) -> None:
    async with shown(client, in_terminal(("/bin/bash", "--norc", "-i"))) as (screen, exec_id):
        await screen.until("$ ")
        await client.exec_stdin(exec_id, b"sleep 60\n")
        await eventually_busy(client, exec_id)
        await client.exec_stdin(exec_id, b"\x03")
        await screen.until("$ ")
        await client.exec_stdin(exec_id, b"echo still $?\n")
        await screen.until("still 130\r\n")
        await client.exec_signal(exec_id, signal.SIGKILL)
        await screen.rest()


async def eventually_busy(client: GuestClient, exec_id: ExecId) -> None:
    """Wait until `sleep 60` runs in a terminal; before it is that, its shell's copy may ignore a signal."""
    async with asyncio.timeout(20):
        while not any(
            process.command == "sleep 60" and process.exec_id == exec_id
            for process in await client.processes()
        ):
            await asyncio.sleep(0.02)
    assert not (await client.exec_get(exec_id)).is_idle


async def test_a_signal_goes_to_the_foreground(client: GuestClient) -> None:
    async with shown(client, in_terminal(("/bin/bash", "--norc", "-i"))) as (screen, exec_id):
        await screen.until("$ ")
        assert (await client.exec_get(exec_id)).is_idle
        await client.exec_stdin(exec_id, b"sleep 60\n")
        await eventually_busy(client, exec_id)
        await client.exec_signal(exec_id, signal.SIGTERM)
        await screen.until("erminated")
        await client.exec_stdin(exec_id, b"exit\n")
        await screen.rest()
    assert screen.end is not None
    assert not screen.end.is_idle


async def test_the_window_can_be_resized(client: GuestClient) -> None:
    code = (
        "import os,signal,sys\n"
        # not print: the signal may come in the middle of one
        "show=lambda *_: os.write(1, b'size %d %d\\n' % os.get_terminal_size())\n"
        "signal.signal(signal.SIGWINCH, show)\nshow()\n"
        "while True: signal.pause()\n"
    )
    async with shown(client, in_terminal((sys.executable, "-S", "-c", code))) as (screen, exec_id):
        await screen.until("size 80 24")
        await client.exec_resize(exec_id, 200, 50)
        await screen.until("size 200 50")
        for columns, rows in ((0, 5), (5, 0), (-1, 5), (5, 5000), (True, 5)):
            with pytest.raises(InvalidRequest):
                await client.exec_resize(exec_id, columns, rows)
        await client.exec_signal(exec_id, signal.SIGKILL)
        await screen.rest()
    await client.exec_resize(exec_id, 10, 10)  # it has ended: no effect


async def test_only_a_terminal_can_be_resized(client: GuestClient) -> None:
    exec_id = fresh_id()
    await client.exec_start(exec_id, ExecSpec(command="exec sleep 47"))
    with pytest.raises(Conflict, match="without a terminal"):
        await client.exec_resize(exec_id, 10, 10)
    await client.exec_signal(exec_id, signal.SIGKILL)


async def test_who_comes_back_reads_on_where_they_were(agent: Agent, client: GuestClient) -> None:
    exec_id = fresh_id()
    async with shown(client, in_terminal(SH), exec_id) as (screen, _):
        await screen.until("$ ")
        await client.exec_stdin(exec_id, b"echo one\n")
        await screen.until("one\r\none\r\n$ ")
        seen = screen.offset
        assert seen is not None
    await client.aclose()
    again = await agent.connect()  # as after a hibernation: another host, another epoch
    await again.exec_stdin(exec_id, b"echo two\n")
    async with again.exec_attach(exec_id, stdout_offset=seen) as events:
        screen = Screen(events)
        assert await screen.until("\r\ntwo\r\n") == b"echo two\r\ntwo\r\n"
        assert screen.first == seen
    async with again.exec_attach(exec_id) as events:
        assert (await Screen(events).until("two\r\ntwo")).count(b"echo") == 2
    async with again.exec_attach(exec_id, stdout_offset=1 << 40) as events:  # after a rollback
        await again.exec_stdin(exec_id, b"exit\n")
        screen = Screen(events)
        assert b"one" not in await screen.rest()
    assert screen.end is not None


async def test_only_the_last_of_it_is_kept_and_a_slow_reader_is_told(
    agent: Agent, client: GuestClient
) -> None:
    lines = 400_000
    command = f"stty -opost; seq -f 'line %010.0f' 1 {lines}; echo; echo the end; read x"
    async with shown(client, in_terminal(("/bin/sh", "-c", command))) as (screen, exec_id):
        async with asyncio.timeout(60):
            while (await client.exec_get(exec_id)).stdout_bytes < lines * 16:
                await asyncio.sleep(0.05)
        await client.exec_stdin(exec_id, b"\n")
        text = await screen.rest()
    assert screen.gaps >= 1
    assert b"the end" in text[-100:]
    numbers = [int(n) for n in re.findall(rb"line (\d{10})\n", text)]
    assert numbers[-1] == lines
    assert numbers == sorted(numbers)
    assert len(text) < 4 * LIMIT_BYTES + (2 << 20)
    assert agent.rss_bytes(peak=True) < 200 << 20
    async with client.exec_attach(exec_id) as events:
        late = Screen(events)
        assert LIMIT_BYTES <= len(await late.rest()) <= LIMIT_BYTES * 5 // 4 + 65536
    assert late.first == late.offset - len(late.text)  # type: ignore[operator]


async def test_end_of_input_is_typed(client: GuestClient) -> None:
    async with shown(client, in_terminal(("/bin/cat",))) as (screen, exec_id):
        await client.exec_stdin(exec_id, b"line\n", eof=True)
        assert await screen.rest() == b"line\r\nline\r\n"
    assert screen.end is not None
    assert screen.end.exit_code == 0


async def test_a_program_left_in_the_background_is_hung_up_on(client: GuestClient) -> None:
    async with shown(client, in_terminal(("/bin/sh", "-c", "sleep 61 & echo $!"))) as (screen, _):
        pid = int(await screen.until("\r\n"))
        await screen.rest()
    await eventually(lambda: not alive(pid))


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/stat").open() as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def test_kill_and_time_limit_take_the_whole_tree(client: GuestClient) -> None:
    command = "sleep 62 & echo pid $!; wait"
    for kill in (True, False):
        spec = in_terminal(("/bin/sh", "-c", command), timeout_seconds=None if kill else 0.5)
        async with shown(client, spec) as (screen, exec_id):
            await screen.until("pid ")
            pid = int(await screen.until("\r\n"))
            if kill:
                await client.exec_signal(exec_id, signal.SIGKILL)
            await screen.rest()
        assert screen.end is not None
        assert (screen.end.signal, screen.end.timed_out) == (9, not kill)
        await eventually(lambda pid=pid: not alive(pid))  # type: ignore[misc]


async def test_without_a_command_it_is_a_login_shell(client: GuestClient) -> None:
    async with shown(client, in_terminal("")) as (screen, exec_id):
        await client.exec_stdin(exec_id, b"echo shell=$0; exit 3\n")
        await screen.rest()
    assert screen.end is not None
    assert screen.end.exit_code == 3
    assert screen.end.command[-1] == "-l"


@pytest.mark.parametrize(
    "terminal",
    [
        "yes",
        3,
        [],
        {"columns": 0},
        {"columns": "80"},
        {"rows": -1},
        {"rows": 10**9},
        {"term": "a b"},
        {"term": "x" * 65},
        {"term": "../x\0"},
        {"term": 7},
    ],
)
async def test_what_is_no_terminal_is_refused_and_its_id_is_free(
    client: GuestClient, terminal: object
) -> None:
    exec_id = fresh_id()
    with pytest.raises(InvalidRequest):
        await client._channel.call(
            "exec.start", {"exec_id": exec_id, "command": "true", "terminal": terminal}
        )
    async with shown(client, in_terminal(("/bin/echo", "fine")), exec_id) as (screen, _):
        assert await screen.rest() == b"fine\r\n"


async def test_a_program_that_cannot_be_run_leaves_no_terminal_behind(
    agent: Agent, client: GuestClient
) -> None:
    before = len(list(Path(f"/proc/{agent.pid}/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(InvalidRequest, match="cannot be run"):
            await client.exec_start(fresh_id(), in_terminal(("/no/such/program",)))
    assert len(list(Path(f"/proc/{agent.pid}/fd").iterdir())) <= before


async def test_terminals_are_bounded(client: GuestClient) -> None:
    ids = [fresh_id() for _ in range(64)]
    for exec_id in ids:
        await client.exec_start(exec_id, in_terminal(("/bin/sleep", "63")))
    with pytest.raises(LimitExceeded, match="64 terminals are open"):
        await client.exec_start(fresh_id(), in_terminal(("/bin/sleep", "63")))
    for exec_id in ids:
        await client.exec_signal(exec_id, signal.SIGKILL)


async def test_when_the_agent_dies_its_terminals_are_lost(
    agent: Agent, client: GuestClient
) -> None:
    exec_id = fresh_id()
    await client.exec_start(exec_id, in_terminal(SH))
    agent.kill()
    agent.start()
    again = await agent.connect()
    info = await again.exec_get(exec_id)
    assert (info.state, info.terminal, info.is_idle) == ("lost", True, False)
    async with again.exec_attach(exec_id) as events:
        with pytest.raises(CommandLost):
            await Screen(events).rest()


def test_scrollback_keeps_the_newest() -> None:
    kept = Scrollback(limit=10)
    whole = b""
    for size in (3, 1, 9, 30, 0, 7, 21, 2):
        piece = os.urandom(size)
        whole += piece
        assert kept.append(piece) == size
        assert kept.total == kept.kept == len(whole)
        assert len(whole) - kept.begin <= 12
        assert kept.begin == 0 or len(whole) - kept.begin >= 10
        assert kept.read(kept.begin, 1 << 20) == whole[kept.begin :]
        assert kept.read(len(whole), 10) == b""
    kept = Scrollback()
    kept.append(bytes(LIMIT_BYTES))
    kept.shrink()
    assert (kept.begin, kept.total) == (LIMIT_BYTES - REST_BYTES, LIMIT_BYTES)
    assert len(kept.read(kept.begin, LIMIT_BYTES)) == REST_BYTES


async def test_many_that_have_ended_take_little_memory(agent: Agent, client: GuestClient) -> None:
    flood = in_terminal(("/bin/sh", "-c", "stty -opost; head -c 1200000 /dev/zero"))
    ids = [fresh_id() for _ in range(20)]
    for exec_id in ids:
        async with shown(client, flood, exec_id) as (screen, _):
            await screen.rest()
    for exec_id, least, most in (
        (ids[0], REST_BYTES, REST_BYTES),
        (ids[-1], LIMIT_BYTES, 1_200_000),
    ):
        async with client.exec_attach(exec_id) as events:
            assert least <= len(await Screen(events).rest()) <= most
