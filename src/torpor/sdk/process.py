"""Handles of commands: start, follow, feed, signal."""

from __future__ import annotations

import asyncio
import base64
import codecs
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from typing_extensions import override

from torpor.base.aio import closing
from torpor.base.ids import new_id
from torpor.errors import CommandLost, InvalidRequest, OperationTimeout, TorporError
from torpor.model import ExecEvent, ExecId, ExecInfo, ExecOutput
from torpor.sdk.client import Client, Connection, ConnectionLost, DaemonSilent, connection
from torpor.sdk.collect import OUTPUT_LIMIT_BYTES, Collector
from torpor.sdk.feed import ExecFeed, StreamName
from torpor.sdk.parse import exec_info
from torpor.sdk.results import ExecResult

Command = str | Sequence[str]


def exec_body(
    command: Command,
    *,
    timeout_seconds: float | None,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    stdin: str | bytes | bool | None,
    background: bool = False,
) -> dict[str, Any]:
    """Return the request that starts `command`, with an id of our own: sent twice it starts once."""
    body: dict[str, Any] = {
        "exec_id": new_id("exec"),
        "cwd": cwd,
        "env": dict(env or {}),
        "user": user,
        "timeout_seconds": timeout_seconds,
        "background": background,
    }
    if isinstance(command, str):
        body["cmd"] = command
    else:
        body["argv"] = list(command)
    if stdin is True:
        body["stdin_open"] = True
    elif isinstance(stdin, (str, bytes)):
        data = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "surrogateescape")
        body["stdin_b64"] = base64.b64encode(data).decode("ascii")
    return body


async def start_process(client: Client, sandbox_id: str, body: dict[str, Any]) -> AsyncProcess:
    """Start a command and return its handle; a start that may have been lost is sent again, once started."""
    path = f"/v1/sandboxes/{sandbox_id}/exec"
    try:
        reply = await connection(client).call("POST", path, body=body)
    except (ConnectionLost, DaemonSilent):
        if body.get("stdin_b64"):
            raise
        reply = await connection(client).call("POST", path, body=body)
    return AsyncProcess(client, sandbox_id, exec_info(reply).exec_id)


class AsyncProcess:
    """A command in a sandbox, running or ended; any number of handles may follow one command."""

    def __init__(
        self,
        client: Client,
        sandbox_id: str,
        exec_id: ExecId,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
    ) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self._offsets: dict[StreamName, int] = {"stdout": stdout_offset, "stderr": stderr_offset}
        self.exec_id = exec_id

    @override
    def __repr__(self) -> str:
        return f"<AsyncProcess {self.exec_id} in {self._sandbox_id}>"

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{self._sandbox_id}/execs/{self.exec_id}"

    async def info(self) -> ExecInfo:
        """Return what is so about the command now."""
        return exec_info(await self._connection.call("GET", self._path))

    async def events(self) -> AsyncGenerator[ExecEvent, None]:
        """Yield `ExecStarted`, output from the handle's offsets on, `ExecEnded` last.

        A lost connection is made again; no byte is lost or repeated.

        Raises:
            OperationTimeout: the command was killed at its time limit.
            CommandLost: its end cannot be known.
        """
        async with closing(self._feed().events()) as events:
            async for event in events:
                yield event

    def _feed(self, *, limit_bytes: int | None = None, streams: str = "stdout,stderr") -> ExecFeed:
        return ExecFeed(
            self._connection,
            self._sandbox_id,
            self.exec_id,
            stdout_offset=self._offsets["stdout"],
            stderr_offset=self._offsets["stderr"],
            limit_bytes=limit_bytes,
            streams=streams,
        )

    @property
    def stdout(self) -> AsyncIterator[str]:
        """Text of stdout as it comes, from the handle's offset to the command's end."""
        return self._texts("stdout")

    @property
    def stderr(self) -> AsyncIterator[str]:
        """Text of stderr as it comes, from the handle's offset to the command's end."""
        return self._texts("stderr")

    async def _texts(self, stream: Literal["stdout", "stderr"]) -> AsyncGenerator[str, None]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async with closing(self._feed(streams=stream).events()) as events:
            async for event in events:
                if isinstance(event, ExecOutput):
                    text = decoder.decode(event.data)
                    if text:
                        yield text
        rest = decoder.decode(b"", final=True)
        if rest:
            yield rest

    async def wait(
        self,
        *,
        timeout_seconds: float | None = None,
        check: bool = False,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> ExecResult:
        """Return how the command ended, with its output from the beginning up to the limit.

        Args:
            timeout_seconds: how long to wait; the command runs on after it. None: for ever.
            check: raise for an exit code other than 0.
            output_limit_bytes: of each stream.

        Raises:
            OperationTimeout: it has not ended in time, or it was killed at its own limit.
            CommandFailed: with `check`.
            CommandLost: its end cannot be known.
        """
        feed = ExecFeed(
            self._connection, self._sandbox_id, self.exec_id, limit_bytes=output_limit_bytes
        )
        try:
            async with asyncio.timeout(timeout_seconds):
                result = await collect(feed, Collector(output_limit_bytes))
        except TimeoutError as exc:
            raise OperationTimeout(
                f"timeout: {self.exec_id} has not ended in {timeout_seconds:g} s; it runs on",
                exec_id=self.exec_id,
            ) from exc
        return result.check() if check else result

    async def kill(self) -> None:
        """Kill the command's whole process tree; nothing happens if it has ended."""
        await self.send_signal(9)

    async def send_signal(self, signal: int | str) -> None:
        """Send a signal, by number or name (`TERM`); nothing happens if the command has ended."""
        await self._connection.call("POST", f"{self._path}/signal", body={"signal": signal})

    async def write_stdin(self, data: str | bytes) -> None:
        """Write to the command's stdin; returns when the guest has taken all. Needs `stdin=True`."""
        content = data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")
        for begin in range(0, len(content), 1 << 20):
            await self._stdin(content[begin : begin + (1 << 20)], eof=False)

    async def close_stdin(self) -> None:
        """Let the command read the end of its input."""
        await self._stdin(b"", eof=True)

    async def _stdin(self, data: bytes, *, eof: bool) -> None:
        body = {"data_b64": base64.b64encode(data).decode("ascii"), "eof": eof}
        await self._connection.call("POST", f"{self._path}/stdin", body=body)


async def collect(feed: ExecFeed, collector: Collector) -> ExecResult:
    """Follow `feed` to its end and return the result; an error gets what was written until then."""
    try:
        async with closing(feed.events()) as events:
            async for event in events:
                collector.add(event)
    except TorporError as error:
        collector.explain(error)
        raise
    if collector.result is None:
        raise CommandLost("the command sent no end")
    return collector.result


def check_exec_args(background: bool, stdin: str | bytes | bool | None) -> None:
    """Refuse an open stdin that nobody could feed.

    Raises:
        InvalidRequest: `stdin=True` without `background`.
    """
    if stdin is True and not background:
        raise InvalidRequest(
            "stdin=True keeps stdin open, and nobody could write to it",
            hint="use background=True with stdin=True, or give the input itself",
        )
