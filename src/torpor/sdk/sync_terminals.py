"""The synchronous face of terminals; `torpor.sdk.terminals` says what each call does."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from typing_extensions import override

from torpor.model import ExecId, ExecInfo
from torpor.sdk.loop import loop_thread
from torpor.sdk.process import Command
from torpor.sdk.sync_handle import Handle
from torpor.sdk.terminals import AsyncPty, AsyncTerminal


class Terminal:
    """A command in a terminal, running or ended. See `AsyncTerminal`. Calls may be made from any thread."""

    def __init__(self, terminal: AsyncTerminal) -> None:
        self._terminal = terminal

    @override
    def __repr__(self) -> str:
        return repr(self._terminal).replace("AsyncTerminal", "Terminal")

    @property
    def exec_id(self) -> ExecId:
        """The command's id, `exec_…`."""
        return self._terminal.exec_id

    @property
    def offset(self) -> int:
        """Which byte of all that it shows comes next."""
        return self._terminal.offset

    @property
    def exit_code(self) -> int | None:
        """The command's, once its end was seen; else None."""
        return self._terminal.exit_code

    def info(self) -> ExecInfo:
        """Return what is so about the command now."""
        return loop_thread.run(self._terminal.info())

    def __iter__(self) -> Iterator[bytes]:
        return self.output()

    def output(self) -> Iterator[bytes]:
        """Yield what it shows, until the command's end. Raises `GenerationChanged` and `CommandLost`."""
        return loop_thread.iterate(self._terminal.output())

    def send_input(self, data: str | bytes) -> None:
        """Type `data`. Ctrl-C is `"\\x03"`, Enter is `"\\r"`."""
        loop_thread.run(self._terminal.send_input(data))

    def resize(self, columns: int, rows: int) -> None:
        """Say how large the window is now; the program in it is told (SIGWINCH)."""
        loop_thread.run(self._terminal.resize(columns, rows))

    def send_signal(self, signal: int | str) -> None:
        """Send a signal to what is in the foreground, by number or name (`TERM`)."""
        loop_thread.run(self._terminal.send_signal(signal))

    def kill(self) -> None:
        """Kill the command's whole process tree; nothing happens if it has ended."""
        loop_thread.run(self._terminal.kill())

    def wait(self, *, timeout_seconds: float | None = None) -> ExecInfo:
        """Return how the command ended; what it shows meanwhile is read and dropped."""
        return loop_thread.run(self._terminal.wait(timeout_seconds=timeout_seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop_thread.run(self._terminal.__aexit__(kind, error, traceback))


class Terminals(Handle):
    """The part of `Sandbox` about terminals."""

    @property
    def pty(self) -> Pty:
        """The sandbox's terminals."""
        return Pty(self._sandbox.pty)

    def terminal(
        self,
        command: Command | None = None,
        *,
        columns: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        term: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Terminal:
        """Start a command in a terminal; None is the user's login shell. As `pty.create`."""
        return self.pty.create(
            command,
            columns=columns,
            rows=rows,
            cwd=cwd,
            env=env,
            user=user,
            term=term,
            timeout_seconds=timeout_seconds,
        )


class Pty:
    """`sandbox.pty`: makes terminals and finds them again."""

    def __init__(self, pty: AsyncPty) -> None:
        self._pty = pty

    def create(
        self,
        command: Command | None = None,
        *,
        columns: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        term: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Terminal:
        """Start a command in a terminal and return its handle; None is the user's login shell."""
        return Terminal(
            loop_thread.run(
                self._pty.create(
                    command,
                    columns=columns,
                    rows=rows,
                    cwd=cwd,
                    env=env,
                    user=user,
                    term=term,
                    timeout_seconds=timeout_seconds,
                )
            )
        )

    def attach(self, exec_id: str, *, offset: int = 0) -> Terminal:
        """Return a handle of a terminal that anyone opened before. Raises `NotFound`."""
        return Terminal(loop_thread.run(self._pty.attach(exec_id, offset=offset)))

    def list(self) -> builtins.list[ExecInfo]:
        """Return the terminals that run in the machine, oldest first."""
        return loop_thread.run(self._pty.list())
