"""The synchronous face of the names of others; `torpor.sdk.familiar` says more of each call."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Self, overload

from torpor.errors import CommandLost, TorporError
from torpor.model import ExecInfo, FileInfo, SandboxInfo
from torpor.sdk.collect import OUTPUT_LIMIT_BYTES, Collector, TextCallback
from torpor.sdk.dir_watch import WatchHandle
from torpor.sdk.dual import dual, dual_self
from torpor.sdk.familiar_commands import TIMEOUT_S, AsyncCommands, check_run
from torpor.sdk.familiar_files import AsyncFiles, Format, WriteEntry
from torpor.sdk.loop import loop_thread
from torpor.sdk.results import ExecResult
from torpor.sdk.sync_files import Content
from torpor.sdk.sync_handle import Handle
from torpor.sdk.sync_process import Process


class Commands:
    """Commands of one sandbox. `Sandbox.exec` does more."""

    def __init__(self, commands: AsyncCommands) -> None:
        self._commands = commands

    @overload
    def run(
        self,
        cmd: str,
        background: Literal[False] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        stdin: bool | None = None,
        timeout: float | None = TIMEOUT_S,
    ) -> ExecResult: ...
    @overload
    def run(
        self,
        cmd: str,
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        stdin: bool | None = None,
        timeout: float | None = TIMEOUT_S,
    ) -> Process: ...
    def run(
        self,
        cmd: str,
        background: bool | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        stdin: bool | None = None,
        timeout: float | None = TIMEOUT_S,
    ) -> ExecResult | Process:
        """Run a command line by `/bin/sh -c`; return how it ended, or with `background` its handle at once.

        Callbacks are called in this thread.

        Raises:
            CommandFailed: its exit code is not 0; facts have exit_code, stdout, stderr. Not with `background`.
            OperationTimeout: it was killed at its limit: `timeout` seconds, None or 0 for none.
            InvalidRequest: no such user or folder, or arguments that do not go together.
        """
        check_run(background, stdin, on_stdout, on_stderr)
        started = loop_thread.run(
            self._commands.run(
                cmd,
                background=True,
                envs=envs,
                user=user,
                cwd=cwd,
                stdin=stdin,
                timeout=timeout,
            )
        )
        process = Process(started)
        if background:
            return process
        collector = Collector(OUTPUT_LIMIT_BYTES, on_stdout=on_stdout, on_stderr=on_stderr)
        return _collected(process, collector).check()

    def list(self) -> builtins.list[ExecInfo]:
        """Return the commands that run, oldest first; each has `pid` and `exec_id`."""
        return loop_thread.run(self._commands.list())

    def kill(self, pid: int | str) -> bool:
        """Kill a command, by pid or exec id, with all its children; return whether it ran."""
        return loop_thread.run(self._commands.kill(pid))

    def connect(self, pid: int | str) -> Process:
        """Return the handle of a command that runs, by pid or exec id; it has all output from the beginning.

        Raises:
            NotFound: no such command runs.
        """
        return Process(loop_thread.run(self._commands.connect(pid)))

    def send_stdin(self, pid: int | str, data: str | bytes) -> None:
        """Write to the stdin of a command that was run with `stdin=True`. Raises `NotFound`, `Conflict`."""
        loop_thread.run(self._commands.send_stdin(pid, data))

    def close_stdin(self, pid: int | str) -> None:
        """Let a command that was run with `stdin=True` read the end of its input. Raises `NotFound`, `Conflict`."""
        loop_thread.run(self._commands.close_stdin(pid))


class Files:
    """Files of one sandbox. `Sandbox.filesystem` does more."""

    def __init__(self, files: AsyncFiles) -> None:
        self._files = files

    @overload
    def read(self, path: str, format: Literal["text"] = "text") -> str: ...
    @overload
    def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    @overload
    def read(self, path: str, format: Literal["stream"]) -> Iterator[bytes]: ...
    def read(self, path: str, format: Format = "text") -> str | bytes | Iterator[bytes]:
        """Return a file as text, as bytes, or as chunks of bytes to iterate. Raises `NotFound`."""
        if format == "stream":
            return loop_thread.iterate(loop_thread.run(self._files.read(path, "stream")))
        if format == "bytes":
            return loop_thread.run(self._files.read(path, "bytes"))
        return loop_thread.run(self._files.read(path, format))

    def write(self, path: str, data: Content, user: str | None = None) -> FileInfo:
        """Replace a file by `data`, at once when all has arrived; missing folders are made."""
        return loop_thread.run(self._files.write(path, data, user))

    def write_files(
        self, files: Iterable[Mapping[str, object] | WriteEntry], user: str | None = None
    ) -> builtins.list[FileInfo]:
        """Write several files (`{"path": …, "data": …}`), one after the other. Raises `InvalidRequest`."""
        return loop_thread.run(self._files.write_files(files, user))

    def list(self, path: str, depth: int = 1) -> builtins.list[FileInfo]:
        """Return what is in a folder, and with a larger `depth` below it."""
        return loop_thread.run(self._files.list(path, depth))

    def exists(self, path: str) -> bool:
        """Return whether there is anything at a path."""
        return loop_thread.run(self._files.exists(path))

    def get_info(self, path: str) -> FileInfo:
        """Return what a path is. Raises `NotFound`."""
        return loop_thread.run(self._files.get_info(path))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it. Raises `NotFound`."""
        loop_thread.run(self._files.remove(path))

    def rename(self, old_path: str, new_path: str) -> FileInfo:
        """Rename within one file system of the guest. Raises `NotFound`."""
        return loop_thread.run(self._files.rename(old_path, new_path))

    def make_dir(self, path: str) -> bool:
        """Make a folder and those above it; return False if it is there already."""
        return loop_thread.run(self._files.make_dir(path))

    def watch_dir(self, path: str, *, recursive: bool = False) -> WatchHandle:
        """Watch a folder from now on; the handle's `get_new_events` has what happened, its `stop` ends it.

        Where more happened than could be told, an event of type `MISSED` says so. While it lasts the sandbox does not
        fall asleep by itself.

        Args:
            path: the folder.
            recursive: with all folders below it, 8192 at most.

        Raises:
            NotFound: there is no such folder.
            InvalidRequest: it is no folder.
            LimitExceeded: too much is watched already, or it has too many folders below it.
        """
        return WatchHandle(loop_thread.run(self._files._watched(path, recursive=recursive)))


class Familiar(Handle):
    """The part of `Sandbox` with the names of others. docs/reference/mapping.md has the whole table."""

    @property
    def commands(self) -> Commands:
        """Commands: `run`, `list`, `kill`, `connect`, `send_stdin`."""
        return Commands(self._sandbox.commands)

    @property
    def files(self) -> Files:
        """Files: `read`, `write`, `list`, `exists`, `get_info`, `remove`, `rename`, `make_dir`, `watch_dir`."""
        return Files(self._sandbox.files)

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""
        return self._sandbox.id

    @dual
    def get_info(self) -> SandboxInfo:
        """Ask what is so about the sandbox, and return it: `refresh`. Raises `NotFound`."""
        return loop_thread.run(self._sandbox.get_info())

    @dual
    def is_running(self) -> bool:
        """Return whether the sandbox runs now. Raises `NotFound`."""
        return loop_thread.run(self._sandbox.is_running())

    @dual
    def set_timeout(self, timeout: int) -> None:
        """Let the sandbox end `timeout` seconds from now: `set_ttl`."""
        loop_thread.run(self._sandbox.set_timeout(timeout))

    def get_host(self, port: int) -> str:
        """Return the name (`PORT-ID.HOST`, with the daemon's port) under which HTTP reaches a port of the sandbox.

        Whoever asks there needs a token of the daemon's (header `X-Torpor-Token`); `preview_url` is a link that needs none.

        Raises:
            InvalidRequest: there is no such port.
            HostNotReady: this client talks to the daemon by a Unix socket, or by an address below which nothing has a name.
        """
        return self._sandbox.get_host(port)

    @dual_self
    def connect(self, timeout: int | None = None) -> Self:
        """Return the sandbox running: one that is paused goes on, one that hibernates is woken.

        Args:
            timeout: let it run at least so many seconds from now. A longer lease, or none, stays as it is.

        Raises:
            NotFound: there is no such sandbox.
            WrongState: it is neither running nor can be made to.
        """
        loop_thread.run(self._sandbox.connect(timeout))
        return self


def _collected(process: Process, collector: Collector) -> ExecResult:
    """Follow a command in this thread, where the callbacks may call the SDK again."""
    try:
        for event in process.events():
            collector.add(event)
    except TorporError as error:
        collector.explain(error)
        raise
    if collector.result is None:
        raise CommandLost("the command sent no end")
    return collector.result
