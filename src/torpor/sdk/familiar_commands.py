"""`sandbox.commands`: commands under the names that E2B's users know."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Literal, overload

from torpor.errors import InvalidRequest, NotFound
from torpor.model import ExecInfo
from torpor.model_contexts import context_of
from torpor.sdk.client import Client, connection, quote_part
from torpor.sdk.collect import OUTPUT_LIMIT_BYTES, Collector, TextCallback
from torpor.sdk.feed import ExecFeed
from torpor.sdk.parse import exec_info
from torpor.sdk.process import AsyncProcess, collect, exec_body, start_process
from torpor.sdk.results import ExecResult

TIMEOUT_S = 60.0
"""Seconds that a command may run unless its caller says otherwise; as it is there."""


class AsyncCommands:
    """Commands of one sandbox. `AsyncSandbox.exec` does more."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._id = sandbox_id

    @overload
    async def run(
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
    async def run(
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
    ) -> AsyncProcess: ...
    async def run(
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
    ) -> ExecResult | AsyncProcess:
        """Run a command line by `/bin/sh -c`; return how it ended, or with `background` its handle at once.

        Args:
            cmd: the command line.
            background: do not wait for its end.
            envs: laid over the sandbox's environment.
            user: name or uid; None: the template's default user.
            cwd: where to run; None: the template's default.
            on_stdout: called with text as it comes; not with `background`, whose handle has iterators.
            on_stderr: the same for stderr.
            stdin: with `background`: keep stdin open for `send_stdin`.
            timeout: in seconds; then its whole process tree is killed. None or 0: no limit.

        Raises:
            CommandFailed: its exit code is not 0; facts have exit_code, stdout, stderr. Not with `background`.
            OperationTimeout: it was killed at its limit.
            InvalidRequest: no such user or folder, or arguments that do not go together.
        """
        check_run(background, stdin, on_stdout, on_stderr)
        body = exec_body(
            cmd,
            timeout_seconds=timeout or None,
            cwd=cwd,
            env=envs,
            user=user,
            stdin=True if stdin else None,
            background=bool(background),
        )
        if background:
            return await start_process(self._client, self._id, body)
        feed = ExecFeed(connection(self._client), self._id, body["exec_id"], start=body)
        collector = Collector(OUTPUT_LIMIT_BYTES, on_stdout=on_stdout, on_stderr=on_stderr)
        return (await collect(feed, collector)).check()

    async def list(self) -> builtins.list[ExecInfo]:
        """Return the commands that run, oldest first; each has `pid` and `exec_id`."""
        path = f"/v1/sandboxes/{quote_part(self._id)}/execs"
        found: builtins.list[ExecInfo] = []
        cursor: str | None = None
        while True:
            page = await connection(self._client).call("GET", path, query={"cursor": cursor})
            found += [exec_info(item) for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return [i for i in found if i.state == "running" and context_of(i) is None]

    async def kill(self, pid: int | str) -> bool:
        """Kill a command, by pid or exec id, with all its children; return whether it ran."""
        try:
            process = await self.connect(pid)
        except NotFound:
            return False
        await process.kill()
        return True

    async def connect(self, pid: int | str) -> AsyncProcess:
        """Return the handle of a command that runs, by pid or exec id; it has all output from the beginning.

        Raises:
            NotFound: no such command runs.
        """
        for info in await self.list():
            if pid in (info.pid, info.exec_id):
                return AsyncProcess(self._client, self._id, info.exec_id)
        raise NotFound(
            f"no command {pid} runs in {self._id}", hint="commands.list() has those that run"
        )

    async def send_stdin(self, pid: int | str, data: str | bytes) -> None:
        """Write to the stdin of a command that was run with `stdin=True`. Raises `NotFound`, `Conflict`."""
        await (await self.connect(pid)).write_stdin(data)

    async def close_stdin(self, pid: int | str) -> None:
        """Let a command that was run with `stdin=True` read the end of its input. Raises `NotFound`, `Conflict`."""
        await (await self.connect(pid)).close_stdin()


def check_run(
    background: bool | None,
    stdin: bool | None,
    on_stdout: TextCallback | None,
    on_stderr: TextCallback | None,
) -> None:
    """Raise `InvalidRequest` for arguments that do not go together."""
    if stdin and not background:
        raise InvalidRequest(
            "stdin=True keeps stdin open, and nobody could write to it", hint="use background=True"
        )
    if background and (on_stdout or on_stderr):
        raise InvalidRequest(
            "callbacks are called while a command is waited for, and with background=True nobody waits",
            hint="iterate the handle's `stdout` or `stderr`",
        )
