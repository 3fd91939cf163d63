"""The shapes of execs in JSON.

Output is text in `chunk`, `stdout` and `stderr`. Where it is not UTF-8 the text has U+FFFD in place of what
cannot be decoded, and a twin field ending in `b64` holds the exact bytes.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated

from pydantic import Field, model_validator

from torpor.errors import InvalidRequest
from torpor.model import ExecInfo, ExecSpec, ExecState, ProcessInfo
from torpor.server.query import to_bytes
from torpor.server.wire import Wire

OUTPUT_LIMIT_BYTES = 1 << 20
OUTPUT_LIMIT_MAX_BYTES = 64 << 20
TIMEOUT_MAX_S = 30 * 86400.0


class ExecRequest(Wire):
    """What POST …/exec and …/exec/stream take: exactly one of `cmd` and `argv`."""

    cmd: Annotated[str | None, Field(description="Run by /bin/sh -c.")] = None
    argv: Annotated[list[str] | None, Field(description="Run as it is, without a shell.")] = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    user: str | None = None
    timeout_seconds: Annotated[
        float | None, Field(gt=0, le=TIMEOUT_MAX_S, description="Then the whole tree is killed.")
    ] = None
    stdin: Annotated[str | None, Field(description="Text for stdin, which is closed after it.")] = (
        None
    )
    stdin_b64: Annotated[str | None, Field(description="The same, any bytes in base 64.")] = None
    stdin_open: Annotated[
        bool, Field(description="Keep stdin open for POST …/execs/{exec_id}/stdin.")
    ] = False
    background: Annotated[
        bool, Field(description="Answer 202 at once; ignored by …/exec/stream.")
    ] = False
    exec_id: Annotated[
        str | None,
        Field(
            description="An id of the client's choice: a repeat with the same id follows the first.",
            pattern=r"^exec_[0-9a-z]{20}$",
        ),
    ] = None
    output_limit_bytes: Annotated[
        int | None,
        Field(
            ge=0,
            le=OUTPUT_LIMIT_MAX_BYTES,
            description="Bytes of each stream in the answer; the whole is in the guest. "
            "Default: 1 MiB; …/exec/stream: no limit.",
        ),
    ] = None
    kill_on_disconnect: Annotated[
        bool,
        Field(description="Kill the tree when the client hangs up, instead of letting it run."),
    ] = False

    @model_validator(mode="after")
    def _one_command(self) -> ExecRequest:
        if (self.cmd is None) == (self.argv is None):
            raise ValueError("give exactly one of `cmd` and `argv`")
        if self.argv is not None and not self.argv:
            raise ValueError("`argv` is empty")
        if (self.stdin is not None) + (self.stdin_b64 is not None) + self.stdin_open > 1:
            raise ValueError("give at most one of `stdin`, `stdin_b64` and `stdin_open`")
        return self

    def stdin_bytes(self) -> bytes | None:
        """Return what stdin gets before it is closed; None if nothing."""
        if self.stdin_b64 is not None:
            return decode_base64(self.stdin_b64, "stdin_b64")
        return None if self.stdin is None else to_bytes(self.stdin, "stdin")

    def spec(self) -> ExecSpec:
        """Return the request in the guest's words."""
        for text in (
            self.cmd or "",
            *(self.argv or ()),
            *self.env,
            *self.env.values(),
            self.cwd or "",
        ):
            to_bytes(text, "the request")
        return ExecSpec(
            command=tuple(self.argv) if self.argv is not None else self.cmd or "",
            cwd=self.cwd,
            env=self.env,
            user=self.user,
            timeout_seconds=self.timeout_seconds,
            stdin=self.stdin_open or self.stdin is not None or self.stdin_b64 is not None,
            background=self.background,
        )


class ExecWire(Wire):
    """What is so about one exec; also the data of the event `exit`."""

    exec_id: str
    command: str | list[str]
    state: ExecState
    pid: int | None
    user: str
    cwd: str
    background: bool
    started_at: datetime
    exit_code: int | None
    signal: int | None
    timed_out: bool
    oom_killed: bool
    duration_ms: int | None
    stdout_bytes: int
    stderr_bytes: int
    stdout_path: str
    stderr_path: str
    terminal: Annotated[bool, Field(description="It runs in a terminal.")] = False
    is_idle: Annotated[
        bool, Field(description="A terminal in which nothing but its shell runs.")
    ] = False

    @staticmethod
    def of(info: ExecInfo) -> ExecWire:
        """Return `info` as JSON has it."""
        return ExecWire(
            exec_id=info.exec_id,
            command=info.command if isinstance(info.command, str) else list(info.command),
            state=info.state,
            pid=info.pid,
            user=info.user,
            cwd=info.cwd,
            background=info.background,
            started_at=info.started_at,
            exit_code=info.exit_code,
            signal=info.signal,
            timed_out=info.timed_out,
            oom_killed=info.oom_killed,
            duration_ms=info.duration_ms,
            stdout_bytes=info.stdout_bytes,
            stderr_bytes=info.stderr_bytes,
            stdout_path=info.stdout_path,
            stderr_path=info.stderr_path,
            terminal=info.terminal,
            is_idle=info.is_idle,
        )


class ExecListWire(Wire):
    """The execs that the guest's agent knows, oldest first."""

    items: list[ExecWire]
    next_cursor: str | None = None


class ExecResultWire(Wire):
    """How a command ended, with its output up to the limit."""

    exec_id: str
    exit_code: int
    signal: int | None
    timed_out: bool
    oom_killed: bool
    duration_ms: int | None
    stdout: str
    stderr: str
    stdout_b64: str | None
    stderr_b64: str | None
    stdout_bytes: Annotated[int, Field(description="Bytes that the command wrote in all.")]
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_path: Annotated[str, Field(description="File in the guest with the whole output.")]
    stderr_path: str


class StdinRequest(Wire):
    """What POST …/stdin takes: more input, its end, or both."""

    data: str = ""
    data_b64: str | None = None
    eof: bool = False

    def content(self) -> bytes:
        """Return the bytes to write."""
        if self.data_b64 is not None:
            return decode_base64(self.data_b64, "data_b64")
        return to_bytes(self.data, "data")


class SignalRequest(Wire):
    """What POST …/signal takes: a name such as `TERM` or `SIGTERM`, or a number."""

    signal: str | int


class ProcessWire(Wire):
    """One process in the guest."""

    pid: int
    ppid: int
    user: str
    state: str
    rss_bytes: int
    command: str
    exec_id: str | None

    @staticmethod
    def of(info: ProcessInfo) -> ProcessWire:
        """Return `info` as JSON has it."""
        return ProcessWire(
            pid=info.pid,
            ppid=info.ppid,
            user=info.user,
            state=info.state,
            rss_bytes=info.rss_bytes,
            command=info.command,
            exec_id=info.exec_id,
        )


class ProcessListWire(Wire):
    """The guest's processes."""

    items: list[ProcessWire]


def decode_base64(text: str, field: str) -> bytes:
    """Return the bytes that `text` stands for.

    Raises:
        InvalidRequest: it is not base 64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"{field} is not base 64: {exc}", field=field) from exc
