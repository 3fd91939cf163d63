"""Machines for checks: one that answers from a table, and one that is this host's own shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping

from torpor.recovery.checks.probe import OUTPUT_BYTES, Ran

Answer = Ran | Exception | Callable[[], Ran]


def ran(
    exit_code: int = 0, stdout: str | bytes = b"", stderr: str | bytes = b"", **more: bool
) -> Ran:
    """Return how a command ended."""
    out, err = (text.encode() if isinstance(text, str) else text for text in (stdout, stderr))
    return Ran(exit_code=exit_code, stdout=out, stderr=err, **more)  # type: ignore[arg-type]


class TableProbe:
    """Answers commands from a table; one that is not in it ends with 127. Commands that hold a key match too."""

    def __init__(self, answers: Mapping[str, Answer | list[Answer]] | None = None) -> None:
        self.answers = dict(answers or {})
        self.asked: list[str] = []
        self.users: list[str | None] = []
        self.running = self.most_running = 0

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
        text = command if isinstance(command, str) else " ".join(command)
        self.asked.append(text)
        self.users.append(user)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        key = text if text in self.answers else next((k for k in self.answers if k in text), None)
        answer = self.answers[key] if key is not None else ran(127, stderr="not found")
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Ran) else answer()


class LocalProbe:
    """Runs commands on this host, as whoever the tests run as."""

    def __init__(self) -> None:
        self.asked: list[str] = []

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
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        self.asked.append(" ".join(argv))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", start_new_session=True
        )
        timed_out = False
        try:
            async with asyncio.timeout(timeout_seconds):
                out, err = await process.communicate(stdin or b"")
        except TimeoutError:
            timed_out, out, err = True, b"", b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        assert process.returncode is not None
        code = process.returncode
        return Ran(
            exit_code=code if code >= 0 else 128 - code,
            stdout=out[:output_limit_bytes],
            stderr=err[:output_limit_bytes],
            timed_out=timed_out,
            stdout_is_cut=len(out) > output_limit_bytes,
            stderr_is_cut=len(err) > output_limit_bytes,
        )
