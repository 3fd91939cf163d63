"""The synchronous face of a command; `torpor.sdk.process` says what each call does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import cast

from typing_extensions import override

from torpor.model import ExecEvent, ExecId, ExecInfo
from torpor.sdk.collect import OUTPUT_LIMIT_BYTES
from torpor.sdk.loop import loop_thread
from torpor.sdk.process import AsyncProcess
from torpor.sdk.results import ExecResult


class Process:
    """A command in a sandbox, running or ended; any number of handles may follow one command."""

    def __init__(self, process: AsyncProcess) -> None:
        self._process = process

    @override
    def __repr__(self) -> str:
        return repr(self._process).replace("AsyncProcess", "Process")

    @property
    def exec_id(self) -> ExecId:
        """The command's id, `exec_…`."""
        return self._process.exec_id

    def info(self) -> ExecInfo:
        """Return what is so about the command now."""
        return loop_thread.run(self._process.info())

    def events(self) -> Iterator[ExecEvent]:
        """Yield `ExecStarted`, output from the handle's offsets on, `ExecEnded` last."""
        return loop_thread.iterate(self._process.events())

    @property
    def stdout(self) -> Iterator[str]:
        """Text of stdout as it comes, from the handle's offset to the command's end."""
        return loop_thread.iterate(cast("AsyncGenerator[str, None]", self._process.stdout))

    @property
    def stderr(self) -> Iterator[str]:
        """Text of stderr as it comes, from the handle's offset to the command's end."""
        return loop_thread.iterate(cast("AsyncGenerator[str, None]", self._process.stderr))

    def wait(
        self,
        *,
        timeout_seconds: float | None = None,
        check: bool = False,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> ExecResult:
        """Return how the command ended, with its output from the beginning up to the limit."""
        return loop_thread.run(
            self._process.wait(
                timeout_seconds=timeout_seconds, check=check, output_limit_bytes=output_limit_bytes
            )
        )

    def kill(self) -> None:
        """Kill the command's whole process tree; nothing happens if it has ended."""
        loop_thread.run(self._process.kill())

    def send_signal(self, signal: int | str) -> None:
        """Send a signal, by number or name (`TERM`); nothing happens if the command has ended."""
        loop_thread.run(self._process.send_signal(signal))

    def write_stdin(self, data: str | bytes) -> None:
        """Write to the command's stdin; returns when the guest has taken all. Needs `stdin=True`."""
        loop_thread.run(self._process.write_stdin(data))

    def close_stdin(self) -> None:
        """Let the command read the end of its input."""
        loop_thread.run(self._process.close_stdin())
