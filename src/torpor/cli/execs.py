"""Commands that run commands, and list them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes
from torpor.cli.app import tell_as_asked
from torpor.cli.find import SandboxArg, find
from torpor.cli.output import AsJson, age, pairs, print_json, print_table
from torpor.errors import InvalidRequest, TorporError
from torpor.model import ExecEnded, ExecEvent, ExecInfo, ExecOutput, ExecStarted

if TYPE_CHECKING:
    from torpor.sdk.sync_process import Process
    from torpor.sdk.sync_sandbox import Sandbox

_NO_PROGRAM, _NOT_RUN = 127, 126

Env = Annotated[
    list[str] | None, typer.Option("-e", "--env", metavar="KEY=VALUE", help="Its environment.")
]
Cwd = Annotated[str | None, typer.Option("-w", "--cwd", help="The folder to run in.")]
User = Annotated[str | None, typer.Option("-u", "--user", help="Name or uid.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", help="Seconds until its whole process tree is killed.")
]
Interactive = Annotated[bool, typer.Option("-i", "--stdin", help="Forward our stdin to it.")]
Detached = Annotated[bool, typer.Option("-d", "--detach", help="Print its exec id and leave it.")]


def exec_command(
    sandbox: SandboxArg,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND…", help="One text for /bin/sh, or a program and its arguments."
        ),
    ],
    env: Env = None,
    cwd: Cwd = None,
    user: User = None,
    timeout: Timeout = None,
    stdin: Interactive = False,
    detach: Detached = False,
    as_json: AsJson = False,
) -> None:
    """Run a command in a sandbox.

    Options stand before the sandbox's id. The exit code is the command's. Ctrl-C is sent to it; twice kills it.
    """
    with _refusal_as_a_shell():
        _exec(sandbox, command, env, cwd, user, timeout, stdin, detach, as_json)


exec_command.settings = {"allow_interspersed_args": False}  # type: ignore[attr-defined]


@contextlib.contextmanager
def _refusal_as_a_shell() -> Iterator[None]:
    """Exit as a shell does when there is no such program (127), or when it cannot be run (126)."""
    try:
        yield
    except InvalidRequest as error:
        if error.facts.get("step") != "program":
            raise
        tell_as_asked(error)
        missing = error.facts.get("errno") in ("ENOENT", "ENOTDIR")
        raise typer.Exit(_NO_PROGRAM if missing else _NOT_RUN) from None


def _exec(
    sandbox: str,
    command: list[str],
    env: list[str] | None,
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    stdin: bool,
    detach: bool,
    as_json: bool,
) -> None:
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise InvalidRequest("there is no command", hint=f"torpor exec {sandbox} -- COMMAND…")
    found = find(sandbox)
    text: str | list[str] = words[0] if len(words) == 1 else words
    given = pairs(env or [], "--env")
    if detach:
        process = found.exec(
            text, env=given, cwd=cwd, user=user, timeout_seconds=timeout, background=True
        )
        print_json({"exec_id": process.exec_id}) if as_json else print(process.exec_id)
        return
    if as_json:
        data = sys.stdin.buffer.read() if stdin else None
        result = found.exec(
            text, env=given, cwd=cwd, user=user, timeout_seconds=timeout, stdin=data
        )
        print_json(result)
        raise typer.Exit(result.exit_code)
    if stdin:
        process = found.exec(
            text,
            env=given,
            cwd=cwd,
            user=user,
            timeout_seconds=timeout,
            stdin=True,
            background=True,
        )
        threading.Thread(target=_forward, args=(process,), daemon=True).start()
        events = process.events()
    else:
        events = found.exec_stream(text, env=given, cwd=cwd, user=user, timeout_seconds=timeout)
    raise typer.Exit(_follow(found, events))


def shell(
    sandbox: SandboxArg,
    command: Annotated[
        str | None, typer.Option("-c", "--command", metavar="TEXT", help="The command line to run.")
    ] = None,
    env: Env = None,
    cwd: Cwd = None,
    user: User = None,
    timeout: Timeout = None,
    attach: Annotated[
        str | None,
        typer.Option("--attach", metavar="EXEC", help="Show a terminal that was opened before."),
    ] = None,
) -> None:
    """Open a login shell in a sandbox, in this terminal; or run one command line in it.

    All keys go to the shell, Ctrl-C too. `~.` after Enter leaves it running. The exit code is the shell's.
    """
    found = find(sandbox)
    if command is None:
        from torpor.cli.shell import run

        given = pairs(env or [], "--env")
        code = run(found.id, attach=attach, env=given, cwd=cwd, user=user, timeout_seconds=timeout)
        raise typer.Exit(code)
    if attach is not None:
        raise InvalidRequest("-c starts a command, and --attach finds one", hint="give one of both")
    events = found.exec_stream(
        command, env=pairs(env or [], "--env"), cwd=cwd, user=user, timeout_seconds=timeout
    )
    raise typer.Exit(_follow(found, events))


def attach(
    sandbox: SandboxArg,
    exec_id: Annotated[str, typer.Argument(metavar="EXEC", help="Its exec id.")],
    stdout_offset: Annotated[int, typer.Option(help="First byte of stdout to print.")] = 0,
    stderr_offset: Annotated[int, typer.Option(help="First byte of stderr to print.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Follow a command that was started before; Ctrl-C only leaves it."""
    process = find(sandbox).attach(
        exec_id, stdout_offset=stdout_offset, stderr_offset=stderr_offset
    )
    if as_json:
        result = process.wait()
        print_json(result)
        raise typer.Exit(result.exit_code)
    code = 0
    for event in process.events():
        code = _show(event) or code
    raise typer.Exit(code)


def ps(
    sandbox: SandboxArg,
    execs: Annotated[
        bool, typer.Option("--execs", help="List the commands that were run instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the processes or commands in a sandbox."""
    if execs:
        _print_execs(find(sandbox).execs(), as_json)
        return
    found = find(sandbox).processes()
    if as_json:
        print_json(found)
        return
    print_table(
        ("PID", "PPID", "USER", "STATE", "MEMORY", "EXEC", "COMMAND"),
        [
            (p.pid, p.ppid, p.user, p.state, format_bytes(p.rss_bytes), p.exec_id, p.command)
            for p in found
        ],
        empty="no processes",
    )


def _print_execs(found: list[ExecInfo], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(
        ("EXEC", "STATE", "EXIT", "PID", "USER", "AGE", "OUTPUT", "COMMAND"),
        [
            (
                e.exec_id,
                e.state,
                e.exit_code,
                e.pid,
                e.user,
                age(e.started_at),
                format_bytes(e.stdout_bytes + e.stderr_bytes),
                e.command if isinstance(e.command, str) else " ".join(e.command),
            )
            for e in found
        ],
        empty="no commands were run",
    )


def _follow(sandbox: Sandbox, events: Iterator[ExecEvent]) -> int:
    """Show a command's output until its end and return its exit code; Ctrl-C goes to the command."""
    process: Process | None = None
    offsets = {"stdout": 0, "stderr": 0}
    exec_id: str | None = None
    interrupts = 0
    while True:
        try:
            for event in events:
                if isinstance(event, ExecStarted):
                    exec_id = event.exec_id
                elif isinstance(event, ExecOutput):
                    offsets[event.stream] = event.offset + len(event.data)
                code = _show(event)
                if code is not None:
                    return code
        except KeyboardInterrupt:
            interrupts += 1
            if exec_id is None:
                raise
            process = process or sandbox.attach(exec_id)
            process.send_signal("INT" if interrupts == 1 else "KILL")
            events = sandbox.attach(
                exec_id, stdout_offset=offsets["stdout"], stderr_offset=offsets["stderr"]
            ).events()
            continue
        return 0


def _show(event: ExecEvent) -> int | None:
    """Write output where it belongs; return the exit code if this is the end."""
    if isinstance(event, ExecOutput):
        target = sys.stdout if event.stream == "stdout" else sys.stderr
        target.buffer.write(event.data)
        target.buffer.flush()
    return event.info.exit_code if isinstance(event, ExecEnded) else None


def _forward(process: Process) -> None:
    """Feed our stdin to a command until it ends, in a thread of its own."""
    try:
        while data := os.read(sys.stdin.fileno(), 65536):
            process.write_stdin(data)
        process.close_stdin()
    except TorporError:
        return  # the command has ended, or its end will say what is wrong
