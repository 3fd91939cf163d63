"""All commands that the agent knows: started once an id, kept after their end, found again after a restart.

The journal knows of a command before it starts, so an id that was used is known whatever happens to the agent.
Output is in `ID.stdout` and `ID.stderr` beside it, as soon as there is some.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

from torpor_guest import errors, proctree
from torpor_guest.command import Command, Request
from torpor_guest.errors import AgentError
from torpor_guest.gate import DISK
from torpor_guest.journal import Journal
from torpor_guest.launcher import Launcher, Program, StartLost
from torpor_guest.sandboxfile import SandboxFile
from torpor_guest.scrollback import Scrollback
from torpor_guest.spool import DEFAULT_LIMIT, Spool
from torpor_guest.terminal import MAX_TERMINALS, TerminalRequest, Window, open_pair, terminal_in
from torpor_guest.users import Image, User, environment, find_user

MAX_RUNNING = 256
MAX_KEPT = 256
KEEP_S = 24 * 3600.0
WHOLE_S = 600.0
"""How long after a terminal's end all that was kept of it is there for who lost their connection meanwhile."""
WHOLE_TERMINALS = 16
"""How many ended ones that is so for, the newest."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OUTPUTS = ("stdout", "stderr")


class Execs:
    """The agent's commands, by id."""

    def __init__(
        self, root: Path, launcher: Launcher, image: Image, sandbox: SandboxFile, executor: Executor
    ) -> None:
        self._root = root
        self._launcher = launcher
        self._image = image
        self._sandbox = sandbox
        self._executor = executor
        self._commands: dict[str, Command] = {}
        self._starting: dict[str, asyncio.Task[Command]] = {}
        self._journal = Journal(root / "journal")
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def restore(self) -> int:
        """Take over what an agent before us left: kill what still runs, call it lost; return how many were."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._launcher.cgroups.kill_leftovers()
        lost = 0
        for exec_id, info in self._journal.load().items():
            if info.get("state") == "running":
                proctree.kill_tree(-1, exec_id)
                info["state"] = "lost"
                lost += 1
            command = _revive(exec_id, info, self._spools(exec_id, 0, None, info.get("terminal")))
            if info["state"] == "lost":
                self._journal.put(command.info())
            self._commands[exec_id] = command
        for file in self._root.glob("*.std*"):
            if file.stem not in self._commands:
                file.unlink(missing_ok=True)
        self._prune()
        return lost

    async def get(self, exec_id: object) -> Command:
        """Return the command with that id, or raise `AgentError`; one that is being started is waited for."""
        known = _check_id(exec_id)
        if known in self._starting:
            await asyncio.wait([self._starting[known]])
        command = self._commands.get(known)
        if command is None:
            raise AgentError(errors.NOT_FOUND, f"the guest knows no exec {exec_id}")
        return command

    def list(self) -> list[Command]:
        """Return all commands, oldest first."""
        return sorted(self._commands.values(), key=lambda c: c.request.started_at)

    async def start(self, params: dict[str, Any]) -> Command:
        """Start a command, or return the one that has this id already. A cancelled caller stops neither."""
        exec_id = _check_id(params.get("exec_id"))
        if exec_id not in self._commands:
            await DISK.passed()  # here, so that what a snapshot holds of it ends with who asked
        command = self._commands.get(exec_id)
        if command:
            return command
        task = self._starting.get(exec_id)
        if task is None:
            running = sum(command.is_running for command in self._commands.values())
            if running + len(self._starting) >= MAX_RUNNING:
                raise AgentError(
                    errors.LIMIT, f"{running} execs run already; the limit is {MAX_RUNNING}"
                )
            task = asyncio.get_running_loop().create_task(self._start(exec_id, params))
            self._starting[exec_id] = task
            task.add_done_callback(lambda done: self._started(exec_id, done))
        return await asyncio.shield(task)

    def _started(self, exec_id: str, task: asyncio.Task[Command]) -> None:
        del self._starting[exec_id]
        if not task.cancelled():
            task.exception()  # who waits for it gets it; if all have left, nobody needs it

    async def _start(self, exec_id: str, params: dict[str, Any]) -> Command:
        await DISK.passed()
        user = find_user(params.get("user") or self._image.default_user)
        cwd = _check_cwd(params.get("cwd") or self._image.default_cwd or user.home)
        terminal = terminal_in(params)
        layers = [self._image.env, self._sandbox.env()]
        if terminal is not None:
            self._check_terminals()
            layers.append({"TERM": terminal.term})
            params = {**params, "command": params.get("command") or [user.shell, "-l"]}
        program = _program(exec_id, params, user, cwd, layers)
        program.has_terminal = terminal is not None
        request = Request(
            exec_id=exec_id,
            command=params["command"],
            user=user.name,
            cwd=cwd,
            background=bool(params.get("background")),
            timeout_s=_check_timeout(params.get("timeout_s")),
            started_at=time.time(),
            has_terminal=terminal is not None,
        )
        limit = params.get("output_limit_bytes")
        limit = limit if isinstance(limit, int) and 0 <= limit <= DEFAULT_LIMIT else DEFAULT_LIMIT
        owner = (user.uid, user.gid) if os.geteuid() == 0 else None
        command = Command(request, self._spools(exec_id, limit, owner, terminal))
        try:
            self._journal.put(command.info())
        except OSError as exc:
            raise errors.from_os(exc, f"keep a record of exec {exec_id}") from exc
        try:
            if terminal is not None:
                await self._launch_in(terminal, user, command, program)
            else:
                await self._launch(command, program, wants_stdin=bool(params.get("stdin")))
        except StartLost:  # it may have run, so its id is used
            command.lose()
            self._commands[exec_id] = command
            DISK.run(partial(self._ended, command))
        except BaseException:
            DISK.run(partial(self._journal.forget, exec_id))
            raise
        return command

    def _spools(
        self, exec_id: str, limit: int, owner: tuple[int, int] | None, terminal: object = None
    ) -> tuple[Spool | Scrollback, Spool]:
        out, err = (
            Spool(f"{self._root}/{exec_id}.{name}", limit=limit, owner=owner) for name in _OUTPUTS
        )
        return (Scrollback() if terminal else out), err

    def _check_terminals(self) -> None:
        running = sum(c.is_running and c.request.has_terminal for c in self._commands.values())
        if running >= MAX_TERMINALS:
            raise AgentError(
                errors.LIMIT, f"{running} terminals are open; the limit is {MAX_TERMINALS}"
            )

    async def _launch_in(
        self, terminal: TerminalRequest, user: User, command: Command, program: Program
    ) -> None:
        """Start a command in a terminal of its own."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            mine, slave = open_pair(user, terminal.window)
            ours.callback(os.close, mine)
            theirs.callback(os.close, slave)
            feed = os.dup(mine)
            ours.callback(os.close, feed)
            child = await self._launcher.launch(program, (slave, slave, slave), command.exited)
            ours.pop_all()
        command.on_end = self._ended
        self._commands[command.request.exec_id] = command
        command.run(self._launcher, child, (feed, mine, -1), self._executor)

    async def resize(self, exec_id: object, params: dict[str, Any]) -> None:
        """Change the size of a command's terminal."""
        (await self.get(exec_id)).resize(Window.of(params))

    async def _launch(self, command: Command, program: Program, *, wants_stdin: bool) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            stdin, feed = os.pipe() if wants_stdin else (self._null, -1)
            if wants_stdin:
                theirs.callback(os.close, stdin)
                ours.callback(os.close, feed)
                os.set_blocking(feed, False)
            ends = []
            for _ in command.spools:
                read, write = os.pipe()
                ours.callback(os.close, read)
                theirs.callback(os.close, write)
                os.set_blocking(read, False)
                ends.append((read, write))
            fds = (stdin, ends[0][1], ends[1][1])
            child = await self._launcher.launch(program, fds, command.exited)
            ours.pop_all()
        command.on_end = self._ended
        self._commands[command.request.exec_id] = command
        command.run(self._launcher, child, (feed, ends[0][0], ends[1][0]), self._executor)

    def _ended(self, command: Command) -> None:
        if command.request.has_terminal:
            ended = [c for c in self.list() if c.request.has_terminal and not c.is_running]
            for other in ended[:-WHOLE_TERMINALS]:
                other.shrink()
            asyncio.get_running_loop().call_later(WHOLE_S, command.shrink)
        with contextlib.suppress(OSError):
            self._journal.put(command.info())
        asyncio.get_running_loop().call_later(0.05, DISK.run, partial(self._tidy, command))

    def _tidy(self, command: Command) -> None:
        command.rest()
        self._prune()

    def _prune(self) -> None:
        ended = [command for command in self.list() if not command.is_running]
        horizon = time.time() - KEEP_S
        for index, command in enumerate(ended):
            is_old = command.request.started_at < horizon or index < len(ended) - MAX_KEPT
            if is_old and not command.followers:
                self._forget(command)

    def forget_ended(self) -> int:
        """Keep nothing of commands that have ended and that nobody follows; return how many those were."""
        ended = [c for c in self.list() if not c.is_running and not c.followers]
        for command in ended:
            self._forget(command)
        return len(ended)

    def forget_one(self, exec_id: object) -> int:
        """Keep nothing of one command if it has ended and nobody follows it; return how many that were."""
        command = self._commands.get(_check_id(exec_id))
        if command is None or command.is_running or command.followers:
            return 0
        self._forget(command)
        return 1

    def _forget(self, command: Command) -> None:
        del self._commands[command.request.exec_id]
        self._journal.forget(command.request.exec_id)
        for spool in command.spools:
            spool.close()
            if spool.path:
                Path(spool.path).unlink(missing_ok=True)

    def kill_all(self) -> None:
        """Kill all that runs (the agent is being stopped)."""
        for command in self._commands.values():
            if command.is_running:
                command.kill()


def _program(
    exec_id: str,
    params: dict[str, Any],
    user: User,
    cwd: str,
    layers: Sequence[Mapping[str, str]],
) -> Program:
    command, env = params.get("command"), params.get("env") or {}
    if isinstance(command, str):
        argv = ["/bin/sh", "-c", command]
    elif isinstance(command, list) and command and all(isinstance(a, str) for a in command):
        argv = command
    else:
        raise AgentError(errors.INVALID, "a command is a text or a list of texts, not empty")
    if not argv[0] or any("\0" in part for part in argv):
        raise AgentError(errors.INVALID, "a command's parts hold no NUL and its first is not empty")
    if not isinstance(env, dict) or not all(isinstance(v, str) for v in env.values()):
        raise AgentError(errors.INVALID, "an environment maps names to texts")
    full = environment(user, *layers, env, {proctree.MARKER: exec_id})
    if "/" in argv[0]:
        programs = [os.fsencode(argv[0])]
    else:
        path = full.get(b"PATH", b"").split(b":")
        programs = [(folder or b".") + b"/" + os.fsencode(argv[0]) for folder in path]
    return Program(
        argv=[os.fsencode(part) for part in argv],
        programs=programs,
        env=full,
        cwd=os.fsencode(cwd),
        user=user.credentials,
    )


def _check_id(exec_id: object) -> str:
    if not isinstance(exec_id, str) or not _ID.fullmatch(exec_id):
        raise AgentError(errors.INVALID, f"{str(exec_id)[:100]!r} is no exec id")
    return exec_id


def _check_cwd(cwd: object) -> str:
    if not isinstance(cwd, str) or not cwd.startswith("/") or "\0" in cwd:
        raise AgentError(errors.INVALID, f"the working directory {cwd!r} is not an absolute path")
    if not os.path.isdir(cwd):  # on the way of every command
        raise AgentError(errors.INVALID, f"the working directory {cwd!r} is no folder in the guest")
    return cwd


def _check_timeout(seconds: object) -> float | None:
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:
        raise AgentError(errors.INVALID, f"a timeout of {seconds!r} seconds cannot be")
    return float(seconds)


def _revive(
    exec_id: str, info: dict[str, Any], spools: tuple[Spool | Scrollback, Spool]
) -> Command:
    request = Request(
        exec_id=exec_id,
        command=info.get("command"),
        user=str(info.get("user")),
        cwd=str(info.get("cwd")),
        background=bool(info.get("background")),
        timeout_s=None,
        started_at=float(info.get("started_at") or 0),
        has_terminal=bool(info.get("terminal")),
    )
    for spool, name in zip(spools, _OUTPUTS):  # noqa: B905  # strict= is new in 3.10
        is_lost = info["state"] == "lost"
        kept = 1 << 62 if is_lost else int(info.get(f"{name}_kept") or 0)
        spool.restore(int(info.get(f"{name}_bytes") or 0), kept)
    command = Command(request, spools)
    command.state = info["state"]
    command.pid = info.get("pid")
    command.exit_code = info.get("exit_code")
    command.signal = info.get("signal")
    command.timed_out = bool(info.get("timed_out"))
    command.oom_killed = bool(info.get("oom_killed"))
    command.duration_ms = info.get("duration_ms")
    return command
