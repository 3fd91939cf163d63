"""Terminals over the daemon, with a real agent: WebSockets, the SDK, and the command line in a pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import unix_connect

from tests.contract.api.conftest import Rest
from tests.contract.guest.agent import Agent, running_agent
from tests.fakes.engine import FakeGuest
from tests.fakes.serving import CuttingProxy, ServerThread
from torpor import AsyncSandbox, Client, Sandbox
from torpor.base.home import Home
from torpor.cli.shell import Keys
from torpor.errors import GenerationChanged, InvalidRequest, NotFound, OperationTimeout
from torpor.guest.client import GuestClient
from torpor.sdk.sync_terminals import Terminal

ENV = {"PS1": "$ ", "ENV": "", "PATH": "/usr/bin:/bin"}
SH = ["/bin/sh"]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with running_agent(tmp_path_factory.mktemp("agent") / "guest") as found:
        yield found


class RealAgent(FakeGuest):
    """A guest of the fake engine whose commands are a real agent's; a machine that sleeps is one that is not connected."""

    def __init__(self, agent: Agent) -> None:
        super().__init__({})
        self.agent = agent
        self.client: GuestClient | None = None
        self.connecting = asyncio.Lock()

    async def ping(self) -> None:
        """Connect, as the engine does when a machine goes on."""
        async with self.connecting:
            if self.client is None:
                self.client = await self.agent.connect()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("exec_") or name in ("processes", "ports", "open_port"):
            return getattr(object.__getattribute__(self, "client"), name)
        return super().__getattribute__(name)

    def cut(self) -> RealAgent:
        """Put the machine to sleep: its channel is cut, and what runs in it knows nothing of that."""
        self.is_cut.set()
        if self.client is not None:
            self.client._channel.close()
        return RealAgent(self.agent)

    async def end(self) -> None:
        """End all that runs."""
        await self.ping()
        assert self.client is not None
        for info in await self.client.exec_list():
            await self.client.exec_signal(info.exec_id, 9)
        await self.client.aclose()


@pytest.fixture
def sandbox(server: ServerThread, rest: Rest, agent: Agent) -> Iterator[Sandbox]:
    """A sandbox whose guest is a real agent."""
    found = rest.create()
    fake = server.guest(found)
    sandboxes: Any = server.engine.sandboxes
    sandboxes[found].guest = RealAgent(agent)
    yield Sandbox.handle(found)
    server.run(sandboxes[found].guest.end())
    sandboxes[found].guest = fake


def until(output: Iterator[bytes], wanted: bytes) -> bytes:
    """Read until something is shown."""
    shown = b""
    while wanted not in shown:
        shown += next(output)
    return shown


def busy(sandbox: Sandbox, terminal: Terminal) -> None:
    """Wait until `sleep 60` runs in a terminal; before it is that, its shell's copy may ignore a signal."""
    ends_at = time.monotonic() + 20
    while not any(
        process.command == "sleep 60" and process.exec_id == terminal.exec_id
        for process in sandbox.processes()
    ):
        assert time.monotonic() < ends_at
    assert not terminal.info().is_idle


# ---- the SDK ----


def test_a_terminal_in_python(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(SH, env=ENV, columns=100, rows=30)
    output = iter(terminal)
    until(output, b"$ ")
    terminal.send_input("stty size\n")
    until(output, b"30 100\r\n")
    terminal.resize(132, 50)
    terminal.send_input("stty size; echo $TERM\n")
    assert b"50 132\r\nxterm-256color\r\n" in until(output, b"256color\r\n")
    assert [info.exec_id for info in sandbox.pty.list()] == [terminal.exec_id]
    terminal.send_input(b"exit 5\n")
    assert terminal.wait(timeout_seconds=20).exit_code == 5
    assert terminal.exit_code == 5
    assert list(terminal) == []
    assert sandbox.pty.list() == []


def test_the_end_of_the_context_ends_the_command(sandbox: Sandbox) -> None:
    with sandbox.terminal(SH, env=ENV) as terminal:
        until(iter(terminal), b"$ ")
    assert terminal.wait(timeout_seconds=20).signal == 9


def test_it_is_found_again_and_shown_from_an_offset(sandbox: Sandbox) -> None:
    first = sandbox.terminal(SH, env=ENV)
    output = iter(first)
    until(output, b"$ ")
    first.send_input("echo before\n")
    until(output, b"\r\nbefore\r\n$ ")
    del output
    again = sandbox.pty.attach(first.exec_id, offset=first.offset)
    again.send_input("echo after\n")
    assert b"before" not in until(iter(again), b"\r\nafter\r\n")
    with pytest.raises(OperationTimeout, match="it runs on"):
        again.wait(timeout_seconds=0.2)
    again.send_signal("KILL")
    assert again.wait(timeout_seconds=20).signal == 9
    with pytest.raises(NotFound):
        sandbox.pty.attach("exec_00000000000000000000")


def test_a_lost_connection_is_made_again_and_no_byte_is_lost(
    sandbox: Sandbox, server: ServerThread, home: Home, tmp_path: Path
) -> None:
    cuts = [100_000, 100_000, 700, 300_000]
    path = tmp_path / "p.sock"
    terminal = sandbox.terminal(
        ["/bin/sh", "-c", "stty -opost; read x; seq 1 150000; echo the end"], env=ENV
    )
    proxy = CuttingProxy(server, home.socket, path, [700, *cuts])
    try:
        client = Client(url=proxy.url)
        again = Sandbox.handle(sandbox.id, client=client).pty
        found = again.attach(terminal.exec_id)
        terminal.send_input("\n")
        shown = b"".join(found)
        lines = [int(line) for line in shown.replace(b"\r", b"").split() if line.isdigit()]
        assert lines == list(range(1, 150_001))
        assert proxy.connections > len(cuts)
    finally:
        proxy.close()


def test_a_terminal_outlives_a_sleep_and_typing_wakes_it(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal(SH, env=ENV)
    output = iter(terminal)
    until(output, b"$ ")
    terminal.send_input("kept=41\n")
    until(output, b"$ ")
    sandbox.hibernate()
    with pytest.raises(GenerationChanged):
        next(output)
    assert sandbox.refresh().state == "hibernated"
    terminal.send_input("echo $((kept+1))\n")
    assert sandbox.refresh().state == "running"
    output = iter(terminal)
    assert until(output, b"\n42\r\n").count(b"kept=41") == 0
    sandbox.hibernate()
    with pytest.raises(GenerationChanged):
        list(output)
    terminal.send_input("exit 7\n")
    assert terminal.wait(timeout_seconds=20).exit_code == 7


def test_asynchronously(sandbox: Sandbox) -> None:
    async def work() -> bytes:
        found = AsyncSandbox.handle(sandbox.id)
        async with await found.terminal(SH, env=ENV) as terminal:
            shown = b""
            async for data in terminal:
                if not shown:
                    await terminal.send_input("echo $((2*21))\nexit 3\n")
                shown += data
            assert terminal.exit_code == 3
            return shown

    assert b"42\r\n" in asyncio.run(work())


def test_what_cannot_be_a_terminal_is_refused(sandbox: Sandbox, rest: Rest) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.terminal(SH, columns=0)
    with pytest.raises(InvalidRequest):
        sandbox.terminal(SH, rows=5000)
    with pytest.raises(InvalidRequest):
        sandbox.terminal("")
    with pytest.raises(InvalidRequest, match="cannot be run"):
        sandbox.terminal(["/no/such/program"])
    path = f"/v1/sandboxes/{sandbox.id}/terminals"
    rest.fails("POST", path, 400, "request.invalid", json={"cmd": "a", "argv": ["b"]})
    rest.fails("POST", path, 400, "request.invalid", json={"term": "a b"})
    process = sandbox.exec(["/bin/sleep", "5"], background=True)
    body = {"columns": 5, "rows": 5}
    path = f"/v1/sandboxes/{sandbox.id}/execs/{process.exec_id}/resize"
    rest.fails("POST", path, 409, "object.conflict", json=body)
    process.kill()


# ---- odd WebSockets ----


def opened(home: Home, sandbox: Sandbox, exec_id: str, query: str = "") -> Any:
    url = f"ws://torpor/v1/sandboxes/{sandbox.id}/terminals/{exec_id}{query}"
    return unix_connect(str(home.socket), url, open_timeout=20)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"type":"resize"}',
        '{"type":"resize","columns":"8","rows":8}',
        '{"type":"resize","columns":0,"rows":8}',
        '{"type":"resize","columns":true,"rows":8}',
        '{"type":"signal","signal":"NONE"}',
        '{"type":"signal","signal":99999999999999999999999}',
        '{"type":"signal","signal":-1}',
        '{"type":"input","data":7}',
        '{"type":["x"]}',
        "[" * 20_000,
        '{"type":"input","data":"\\ud800"}',
    ],
)
def test_odd_messages_end_the_connection_in_words_and_not_the_command(
    sandbox: Sandbox, home: Home, message: str
) -> None:
    terminal = sandbox.terminal(["/bin/cat"], env=ENV)
    with opened(home, sandbox, terminal.exec_id) as socket:
        assert json.loads(socket.recv())["type"] == "started"
        socket.send(message)
        assert json.loads(socket.recv())["type"] == "error"
        with pytest.raises(Exception, match=r"1008|1011"):
            socket.recv()
    assert terminal.info().state == "running"
    terminal.kill()


def test_all_that_a_socket_can_do(sandbox: Sandbox, home: Home) -> None:
    terminal = sandbox.terminal(["/bin/sh"], env=ENV)
    with opened(home, sandbox, terminal.exec_id) as socket:
        messages = iter(socket)

        def until_shown(wanted: bytes) -> bytes:
            shown = b""
            while wanted not in shown:
                message = next(messages)
                shown += message if isinstance(message, bytes) else b""
            return shown

        until_shown(b"$ ")
        socket.send(json.dumps({"type": "resize", "columns": 90, "rows": 20}))
        socket.send(json.dumps({"type": "input", "data": "stty size\n"}))
        until_shown(b"20 90\r\n")
        socket.send(b"sleep 60\n")
        busy(sandbox, terminal)
        socket.send(json.dumps({"type": "signal", "signal": "TERM"}))
        until_shown(b"$ ")
        socket.send(b"exit 6\n")
        *_, last = messages
        assert json.loads(last)["type"] == "exit"
        assert json.loads(last)["exit_code"] == 6


@pytest.mark.parametrize(
    "query", ["?offset=x", "?offset=-1", "?generation=1.5", "?offset=" + "9" * 30]
)
def test_an_offset_that_cannot_be_is_answered(sandbox: Sandbox, home: Home, query: str) -> None:
    with pytest.raises(Exception, match="HTTP 400"):
        opened(home, sandbox, "exec_00000000000000000000", query)


def test_what_is_no_terminal_is_answered(sandbox: Sandbox, home: Home) -> None:
    process = sandbox.exec(["/bin/sleep", "5"], background=True)
    with pytest.raises(Exception, match="HTTP 409"):
        opened(home, sandbox, process.exec_id)
    with pytest.raises(Exception, match="HTTP 404"):
        opened(home, sandbox, "exec_00000000000000000000")
    with pytest.raises(Exception, match="HTTP 409"):
        opened(home, sandbox, process.exec_id, "?generation=99")
    process.kill()


# ---- the command line ----


class Person:
    """Somebody at a real terminal in which `torpor` runs."""

    def __init__(self, *args: str, columns: int = 80, rows: int = 24) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows, tell=False)
        self._before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torpor.cli", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "80", "LINES": "24"},  # not the window's
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.text = b""

    def resize(self, columns: int, rows: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self._ours, data)

    def sees(self, wanted: bytes, *, within_s: float = 30) -> bytes:
        """Wait until something is shown."""
        ends_at = time.monotonic() + within_s
        while wanted not in self.text:
            left = ends_at - time.monotonic()
            assert left > 0, f"{wanted!r} is not in {self.text!r}"
            if select.select([self._ours], [], [], left)[0]:
                self.text += os.read(self._ours, 65536)
        before, _, self.text = self.text.partition(wanted)
        return before + wanted

    @property
    def is_raw(self) -> bool:
        return not termios.tcgetattr(self._theirs)[3] & termios.ICANON

    def exit_code(self) -> int:
        """Wait for its end; our terminal is as it was."""
        code = self.process.wait(30)
        assert termios.tcgetattr(self._theirs) == self._before
        return code

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def at_terminal() -> Iterator[Any]:
    people: list[Person] = []

    def begin(*args: str, **kwargs: Any) -> Person:
        people.append(Person(*args, **kwargs))
        return people[-1]

    yield begin
    for person in people:
        person.close()


def shell(sandbox: Sandbox, *more: str) -> tuple[str, ...]:
    env = [word for key, value in ENV.items() for word in ("-e", f"{key}={value}")]
    return ("shell", *env, *more, sandbox.id)


def test_a_shell_on_the_command_line(sandbox: Sandbox, at_terminal: Any) -> None:
    person = at_terminal(*shell(sandbox), columns=111, rows=33)
    person.type(b"PS1='ready> '\r")
    person.sees(b"\nready> ")
    assert person.is_raw
    person.type(b"stty size\r")
    person.sees(b"33 111")
    person.resize(77, 22)
    person.process.send_signal(signal.SIGWINCH)
    for _ in range(50):
        person.type(b"stty size\r")
        if b"22 77" in person.sees(b"\nready> "):
            break
    else:
        raise AssertionError("the window's new size did not arrive")
    person.type(b"sleep 60\r")
    person.sees(b"sleep 60\r\n")
    busy(sandbox, sandbox.pty.attach(sandbox.pty.list()[0].exec_id))
    person.type(b"\x03")
    person.sees(b"\nready> ")
    person.type(b"exit 9\r")
    assert person.exit_code() == 9


def test_leaving_a_shell_and_coming_back(sandbox: Sandbox, at_terminal: Any) -> None:
    person = at_terminal(*shell(sandbox))
    person.type(b"PS1='ready> '; kept=42\r")
    person.sees(b"\nready> ")
    person.type(b"\r~.")
    person.sees(b"\nleft; it runs on")  # on a line of its own
    command = person.sees(b"\n").decode()
    assert person.exit_code() == 0
    exec_id = command.split()[-1]
    again = at_terminal("shell", "--attach", exec_id, sandbox.id)
    again.sees(b"ready> ")
    again.type(b"echo kept=$kept; exit 4\r")
    again.sees(b"kept=42")
    assert again.exit_code() == 4


def test_a_shell_goes_on_after_its_machine_slept(sandbox: Sandbox, at_terminal: Any) -> None:
    person = at_terminal(*shell(sandbox))
    person.type(b"PS1='ready> '; kept=41\r")
    person.sees(b"\nready> ")
    sandbox.hibernate()
    person.sees(b"a key wakes it")
    assert person.is_raw
    assert sandbox.refresh().state == "hibernated"
    person.type(b"x")  # only wakes it
    ends_at = time.monotonic() + 20
    while sandbox.refresh().state != "running":
        assert time.monotonic() < ends_at
    person.type(b"echo $((kept+1)); exit 3\r")
    person.sees(b"42\r\n")
    assert person.exit_code() == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(
    sandbox: Sandbox, at_terminal: Any, number: signal.Signals
) -> None:
    person = at_terminal(*shell(sandbox))
    person.type(b"PS1='ready> '\r")
    person.sees(b"\nready> ")
    person.process.send_signal(number)
    assert person.exit_code() == 128 + number
    assert len(sandbox.pty.list()) == 1


def test_a_sandbox_that_is_not_there_leaves_the_terminal_as_it_was(at_terminal: Any) -> None:
    person = at_terminal("shell", "sbx_00000000000000000000")
    person.sees(b"error: ")
    assert person.exit_code() == NotFound.exit_code


def test_without_a_terminal_it_says_so(sandbox: Sandbox) -> None:
    for command, code in ((["shell", sandbox.id], InvalidRequest.exit_code),):
        done = subprocess.run(
            [sys.executable, "-m", "torpor.cli", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == code
        assert "needs a terminal" in done.stderr
        assert "-c" in done.stderr


@pytest.mark.parametrize(
    ("typed", "sent", "leaves"),
    [
        ([b"ls\r"], b"ls\r", False),
        ([b"~."], b"", True),
        ([b"~", b"."], b"", True),
        ([b"a\r~.", b"b"], b"a\r", True),
        ([b"a~."], b"a~.", False),
        ([b"~~x"], b"~x", False),
        ([b"~/bin\r"], b"~/bin\r", False),
        ([b"\n~", b"\r~."], b"\n~\r", True),
    ],
)
def test_keys_that_leave(typed: list[bytes], sent: bytes, leaves: bool) -> None:
    keys = Keys()
    found, left = b"", False
    for piece in typed:
        if not left:
            data, left = keys.take(piece)
            found += data
    assert (found, left) == (sent, leaves)
