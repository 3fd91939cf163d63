"""`AsyncTerminal`: a command in a terminal of a sandbox; typed into, resized, and shown again from where one was."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from typing_extensions import override

from torpor.base.aio import closing
from torpor.base.ids import new_id
from torpor.errors import (
    CommandLost,
    DaemonUnreachable,
    GuestUnreachable,
    NotFound,
    OperationTimeout,
)
from torpor.model import ExecId, ExecInfo
from torpor.sdk.client import Client, Connection, ConnectionLost, DaemonSilent, connection
from torpor.sdk.handle import AsyncHandle
from torpor.sdk.parse import exec_info
from torpor.sdk.process import Command
from torpor.sdk.sockets import Socket, opened

RETRY_LIMIT_S: Final = 60.0
"""Seconds without any progress after which a lost terminal is given up."""
_LOST: Final = (ConnectionLost, DaemonSilent, DaemonUnreachable, GuestUnreachable)


class AsyncTerminal:
    """A command in a terminal, running or ended; any number of handles may show one.

    Iterating shows it: bytes from `offset` on, which moves with them. A lost connection is made again. When the machine
    sleeps or is put back meanwhile, iterating raises `GenerationChanged`; iterating again wakes it and goes on at
    `offset`. The command runs on when nobody looks; the last mebibyte of what it shows is kept.
    """

    def __init__(
        self, client: Client, sandbox_id: str, exec_id: ExecId, *, offset: int = 0
    ) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self._socket: Socket | None = None
        self._end: ExecInfo | None = None
        self.exec_id = exec_id
        self.offset = offset
        """Which byte of all that it shows comes next."""

    @override
    def __repr__(self) -> str:
        return f"<AsyncTerminal {self.exec_id} in {self._sandbox_id}>"

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{self._sandbox_id}/execs/{self.exec_id}"

    @property
    def exit_code(self) -> int | None:
        """The command's, once its end was seen; else None."""
        return None if self._end is None else self._end.exit_code

    async def info(self) -> ExecInfo:
        """Return what is so about the command now."""
        return exec_info(await self._connection.call("GET", self._path))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.output()

    async def output(self) -> AsyncGenerator[bytes, None]:
        """Yield what it shows, until the command's end.

        Raises:
            GenerationChanged: the machine slept or was put back; ask again to go on.
            CommandLost: its end cannot be known.
            NotFound: there is no such command (any more).
        """
        generation: int | None = None
        gives_up_at = time.monotonic() + RETRY_LIMIT_S
        pause_s = 0.05
        while self._end is None:
            try:
                async with closing(self._connected(generation)) as messages:
                    async for message in messages:
                        gives_up_at, pause_s = time.monotonic() + RETRY_LIMIT_S, 0.05
                        if isinstance(message, bytes):
                            yield message
                        else:
                            generation = message
            except NotFound as error:
                if generation is None:
                    raise
                raise CommandLost(
                    f"{self.exec_id} is no longer known: {error.message}", exec_id=self.exec_id
                ) from error
            except _LOST:
                if generation is None or time.monotonic() > gives_up_at:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2.0, pause_s * 2)

    async def _connected(self, generation: int | None) -> AsyncGenerator[bytes | int, None]:
        """Yield the machine's life, then bytes, over one connection."""
        path = f"/v1/sandboxes/{self._sandbox_id}/terminals/{self.exec_id}"
        query = {"offset": self.offset, "generation": generation}
        async with opened(self._connection, path, query) as socket:
            self._socket = socket
            try:
                while (message := await socket.receive()) is not None:
                    if isinstance(message, bytes):
                        self.offset += len(message)
                        yield message
                    elif message["type"] == "started":
                        yield int(message["generation"])
                    elif message["type"] == "offset":
                        self.offset = int(message["offset"])
                    elif message["type"] == "exit":
                        self._end = exec_info(message)
                        return
                raise ConnectionLost("the terminal's connection ended before its command did")
            finally:
                self._socket = None

    async def send_input(self, data: str | bytes) -> None:
        """Type `data`. Ctrl-C is `"\\x03"`, Enter is `"\\r"`; what is typed is shown as the program shows it.

        Raises:
            Conflict: the command has ended.
        """
        content = data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")
        if self._socket is not None:
            await self._socket.send(content)
            return
        for begin in range(0, len(content), 1 << 20):
            piece = base64.b64encode(content[begin : begin + (1 << 20)]).decode("ascii")
            body = {"data_b64": piece, "eof": False}
            await self._connection.call("POST", f"{self._path}/stdin", body=body)

    async def resize(self, columns: int, rows: int) -> None:
        """Say how large the window is now; the program in it is told (SIGWINCH)."""
        body = {"columns": columns, "rows": rows}
        await self._connection.call("POST", f"{self._path}/resize", body=body)

    async def send_signal(self, signal: int | str) -> None:
        """Send a signal to what is in the foreground, by number or name (`TERM`)."""
        await self._connection.call("POST", f"{self._path}/signal", body={"signal": signal})

    async def kill(self) -> None:
        """Kill the command's whole process tree; nothing happens if it has ended."""
        await self.send_signal(9)

    async def wait(self, *, timeout_seconds: float | None = None) -> ExecInfo:
        """Return how the command ended; what it shows meanwhile is read and dropped.

        Raises:
            OperationTimeout: it has not ended in time; it runs on.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                async with closing(self.output()) as shown:
                    async for _ in shown:
                        pass
        except TimeoutError as exc:
            raise OperationTimeout(
                f"timeout: {self.exec_id} has not ended in {timeout_seconds:g} s; it runs on",
                exec_id=self.exec_id,
            ) from exc
        assert self._end is not None
        return self._end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._end is None:
            await self.kill()


async def open_terminal(client: Client, sandbox_id: str, body: dict[str, Any]) -> AsyncTerminal:
    """Start a command in a terminal; a start that may have been lost is sent again, once started."""
    path = f"/v1/sandboxes/{sandbox_id}/terminals"
    try:
        reply = await connection(client).call("POST", path, body=body, limit_s=120.0)
    except (ConnectionLost, DaemonSilent):
        reply = await connection(client).call("POST", path, body=body, limit_s=120.0)
    return AsyncTerminal(client, sandbox_id, exec_info(reply).exec_id)


def terminal_body(
    command: Command | None,
    *,
    columns: int,
    rows: int,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    term: str | None,
    timeout_seconds: float | None,
) -> dict[str, Any]:
    """Return the request that starts a terminal, under an id of ours."""
    body: dict[str, Any] = {
        "exec_id": new_id("exec"),
        "columns": columns,
        "rows": rows,
        "cwd": cwd,
        "env": dict(env or {}),
        "user": user,
        "term": term,
        "timeout_seconds": timeout_seconds,
    }
    if isinstance(command, str):
        body["cmd"] = command
    elif command is not None:
        body["argv"] = list(command)
    return body


class AsyncTerminals(AsyncHandle):
    """The part of `AsyncSandbox` about terminals."""

    @property
    def pty(self) -> AsyncPty:
        """The sandbox's terminals."""
        return AsyncPty(self._client, self._id)

    async def terminal(
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
    ) -> AsyncTerminal:
        """Start a command in a terminal; None is the user's login shell. As `pty.create`."""
        return await self.pty.create(
            command,
            columns=columns,
            rows=rows,
            cwd=cwd,
            env=env,
            user=user,
            term=term,
            timeout_seconds=timeout_seconds,
        )


class AsyncPty:
    """`sandbox.pty`: makes terminals and finds them again."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    async def create(
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
    ) -> AsyncTerminal:
        """Start a command in a terminal and return its handle; one that sleeps is woken.

        Args:
            command: text for `/bin/sh -c`, or words; None: the user's login shell.
            columns: of the window, 1 to 4096.
            rows: the same.
            cwd: where to run; None: the template's default.
            env: laid over the sandbox's environment.
            user: name or uid; None: the template's default user.
            term: what programs take it for; None: `xterm-256color`.
            timeout_seconds: then its whole process tree is killed; None: no limit.

        Raises:
            InvalidRequest: no such user, folder or program, or no window is so large.
            LimitExceeded: 64 terminals are open in the machine.
            HostNotReady: the agent in the machine is too old.
        """
        body = terminal_body(
            command,
            columns=columns,
            rows=rows,
            cwd=cwd,
            env=env,
            user=user,
            term=term,
            timeout_seconds=timeout_seconds,
        )
        return await open_terminal(self._client, self._sandbox_id, body)

    async def attach(self, exec_id: str, *, offset: int = 0) -> AsyncTerminal:
        """Return a handle of a terminal that anyone opened before; it shows from `offset` on, as far as that is kept.

        Raises:
            NotFound: there is none.
        """
        found = AsyncTerminal(self._client, self._sandbox_id, ExecId(exec_id), offset=offset)
        if not (await found.info()).terminal:
            raise NotFound(f"{exec_id} has no terminal", hint="sandbox.attach follows it")
        return found

    async def list(self) -> list[ExecInfo]:
        """Return the terminals that run in the machine, oldest first."""
        path = f"/v1/sandboxes/{self._sandbox_id}/execs"
        body = await connection(self._client).call("GET", path, query={"limit": 1000})
        found = [exec_info(item) for item in body["items"]]
        return [info for info in found if info.terminal and info.state == "running"]
