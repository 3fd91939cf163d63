"""`ProbeMachine`: all that a check may do to a machine, which is to run a command in it with limits.

`GuestProbe` does it over a connected guest. Whatever happens, a command that was started is ended when its
limit is over or the caller is cancelled; nothing goes on in the machine for a check that is done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from torpor.base.aio import closing, finish
from torpor.base.ids import new_id
from torpor.errors import CommandLost, OperationTimeout, TorporError
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecId, ExecInfo, ExecOutput, ExecSpec, SandboxId
from torpor.sandboxes.port import EnginePort

OUTPUT_BYTES = 256 << 10
"""Kept of each stream of a command, unless the caller says otherwise."""
KILL_GRACE_S = 15.0
"""Seconds after a command's limit in which the guest has to report its end."""
STDIN_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command in the machine ended."""

    exit_code: int
    """0 to 255; 128 + n when signal n ended it."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """It was killed at its limit; the output is what it wrote until then."""
    stdout_is_cut: bool = False
    """It wrote more than was kept; so with `stderr_is_cut`."""
    stderr_is_cut: bool = False
    duration_ms: int = 0


class ProbeMachine(Protocol):
    """A machine that checks and inventories look into."""

    async def run(
        self,
        command: str | tuple[str, ...],
        *,
        user: str | None = None,
        timeout_seconds: float,
        stdin: bytes | None = None,
        output_limit_bytes: int = OUTPUT_BYTES,
    ) -> Ran:
        """Run a command in `/` and return how it ended, also when it was killed at its limit.

        Args:
            command: text for `/bin/sh -c`, or the words of a command run as they are.
            user: name or uid; None: root.
            timeout_seconds: then its whole process tree is killed.
            stdin: all that it reads; None: nothing.
            output_limit_bytes: kept of each stream.

        Raises:
            InvalidRequest: no such user or program.
            GuestFailed: the guest's kernel could not start it.
            GuestUnreachable: the guest does not answer.
            CommandLost: its end cannot be known.
            OperationTimeout: the guest did not report its end in time; it was told to kill it.
            LimitExceeded: too many commands run already.
        """
        ...


class GuestProbe:
    """A `ProbeMachine` over a connected guest."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    async def run(
        self,
        command: str | tuple[str, ...],
        *,
        user: str | None = None,
        timeout_seconds: float,
        stdin: bytes | None = None,
        output_limit_bytes: int = OUTPUT_BYTES,
    ) -> Ran:
        """See `ProbeMachine.run`."""
        exec_id = ExecId(new_id("exec"))
        spec = ExecSpec(
            command=command,
            cwd="/",
            user=user or "root",
            timeout_seconds=timeout_seconds,
            stdin=stdin is not None,
        )
        kept = _Kept(output_limit_bytes)
        try:
            async with asyncio.timeout(timeout_seconds + KILL_GRACE_S):
                info = await self._follow(exec_id, spec, stdin, kept)
        except TimeoutError as exc:
            await finish(self._kill(exec_id), within_s=5)
            raise OperationTimeout(
                f"the guest did not end the command within {KILL_GRACE_S:g} s of its limit of "
                f"{timeout_seconds:g} s; it was told to kill it",
                exec_id=exec_id,
            ) from exc
        except BaseException:
            await finish(self._kill(exec_id), within_s=5)
            raise
        await self._drop(exec_id)
        assert info.exit_code is not None
        return Ran(
            exit_code=info.exit_code,
            stdout=bytes(kept.stdout),
            stderr=bytes(kept.stderr),
            timed_out=info.timed_out,
            stdout_is_cut=info.stdout_bytes > len(kept.stdout),
            stderr_is_cut=info.stderr_bytes > len(kept.stderr),
            duration_ms=info.duration_ms or 0,
        )

    async def _follow(
        self, exec_id: ExecId, spec: ExecSpec, stdin: bytes | None, kept: _Kept
    ) -> ExecInfo:
        async with self._guest.exec_run(exec_id, spec) as events, closing(events) as followed:
            if stdin is not None:
                await self._feed(exec_id, stdin)
            async for event in followed:
                if isinstance(event, ExecOutput):
                    kept.add(event)
                elif isinstance(event, ExecEnded):
                    return event.info
        raise CommandLost(f"{exec_id} sent no end", exec_id=exec_id)

    async def _feed(self, exec_id: ExecId, data: bytes) -> None:
        for begin in range(0, max(1, len(data)), STDIN_CHUNK_BYTES):
            end = begin + STDIN_CHUNK_BYTES
            await self._guest.exec_stdin(exec_id, data[begin:end], eof=end >= len(data))

    async def _drop(self, exec_id: ExecId) -> None:
        """Keep nothing of a command that has ended: a few runs would push out what the user ran."""
        if "exec.drop" in self._guest.info.capabilities:
            with contextlib.suppress(TorporError):  # that it ended, and how, is known all the same
                await self._guest.exec_drop(exec_id)

    async def _kill(self, exec_id: ExecId) -> None:
        try:
            await self._guest.exec_signal(exec_id, 9)
        except TorporError:
            return  # it never started, has ended, or nobody answers: there is nothing more to do


class _Kept:
    """The beginning of what a command wrote."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.stdout = bytearray()
        self.stderr = bytearray()

    def add(self, event: ExecOutput) -> None:
        kept = self.stdout if event.stream == "stdout" else self.stderr
        kept += event.data[: max(0, self._limit - len(kept))]


@contextlib.asynccontextmanager
async def probing(engine: EnginePort, sandbox_id: SandboxId) -> AsyncIterator[GuestProbe]:
    """Enter with a probe of a sandbox, which is woken if it sleeps and kept awake meanwhile.

    Raises:
        NotFound: no such sandbox.
        WrongState: it is not running.
        GuestUnreachable: its agent does not answer.
        GenerationChanged: it was put back or slept while the context was held.
    """
    async with engine.guest(sandbox_id) as guest:
        yield GuestProbe(guest)
