"""pytest-testinfra's modules over our guest channel.

testinfra is synchronous: what uses it runs in a worker thread, and each of its commands is handed to the
event loop, which runs it in the machine within what is left of the attempt's time. The thread never waits
longer than that, and a cancelled attempt ends its thread before it is over. Only testinfra's own code runs
on this host; a checks file brings none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.host import Host
from typing_extensions import override

from torpor.base.aio import finish
from torpor.errors import TorporError
from torpor.recovery.checks.facts import Broken, Unclear
from torpor.recovery.checks.probe import ProbeMachine, Ran

T = TypeVar("T")

CONTENT_BYTES = 4 << 20
"""Most of a file's content that is compared."""


class Stopped(Exception):
    """Raised in the worker thread when its attempt is over."""


class Attempt:
    """What one attempt of one check may still do, and with which deadline."""

    def __init__(self, probe: ProbeMachine, deadline_s: float) -> None:
        self._probe = probe
        self._loop = asyncio.get_running_loop()
        self._deadline_s = deadline_s
        self._running: concurrent.futures.Future[Ran] | None = None
        self._over = threading.Event()
        self.output_is_cut = False
        self.idle = asyncio.Event()
        """Set while nothing of this attempt runs in the machine."""
        self.idle.set()

    @property
    def left_s(self) -> float:
        """Seconds until the attempt has to be over."""
        return self._deadline_s - self._loop.time()

    def run(self, command: str) -> Ran:
        """Run a command in the machine. For the worker thread."""
        left_s = self.left_s
        if self._over.is_set() or left_s <= 0:
            raise Stopped
        self._running = asyncio.run_coroutine_threadsafe(self._on_loop(command, left_s), self._loop)
        if self._over.is_set():  # `stop` may have come before there was anything for it to cancel
            self._running.cancel()
        try:
            ran = self._running.result()  # bounded: `probe.run` ends by itself
        except concurrent.futures.CancelledError:
            raise Stopped from None
        if ran.timed_out:
            raise Stopped
        self.output_is_cut = ran.stdout_is_cut
        return ran

    async def _on_loop(self, command: str, within_s: float) -> Ran:
        self.idle.clear()
        try:
            return await self._probe.run(
                command, timeout_seconds=within_s, output_limit_bytes=CONTENT_BYTES
            )
        finally:
            self.idle.set()

    def stop(self) -> None:
        """End what runs, and let nothing more begin."""
        self._over.set()
        if self._running is not None:
            self._running.cancel()


_attempt: contextvars.ContextVar[Attempt] = contextvars.ContextVar("torpor_check_attempt")


class GuestBackend(BaseBackend):  # type: ignore[misc]  # testinfra is not typed for others
    """testinfra's way into a machine: commands as root in `/`."""

    NAME = "torpor"

    @override
    def run(self, command: str, *args: str, **kwargs: Any) -> CommandResult:
        """Run a command line, with `args` quoted into it."""
        line = self.get_command(command, *args)
        ran = _attempt.get().run(line)
        return self.result(
            ran.exit_code, line.encode("utf-8", "surrogateescape"), ran.stdout, ran.stderr
        )

    @override
    def decode(self, data: bytes) -> str:
        return data.decode("utf-8", "replace")

    @override
    def encode(self, data: str) -> bytes:
        return data.encode("utf-8", "surrogateescape")


def make_host() -> Host:
    """Return testinfra's view of a machine; one is made for each run, and used by `in_thread` alone."""
    backend = GuestBackend("machine")
    host = Host(backend)
    backend.set_host(host)
    return host


async def in_thread(
    threads: concurrent.futures.Executor,
    probe: ProbeMachine,
    deadline_s: float,
    look: Callable[[Attempt], T],
) -> T:
    """Return what `look` returns, run in a worker thread in which testinfra works until `deadline_s`.

    When this is cancelled, or the deadline is over, what the thread does in the machine is ended and the
    thread has ended too.

    Args:
        threads: where it runs.
        probe: the machine.
        deadline_s: of the loop's clock.
        look: what to run.

    Raises:
        TimeoutError: the deadline is over.
        Unclear: a tool is missing in the machine, or testinfra cannot make sense of what it says.
        TorporError: as `ProbeMachine.run`.
    """
    attempt = Attempt(probe, deadline_s)
    context = contextvars.copy_context()
    context.run(_attempt.set, attempt)
    loop = asyncio.get_running_loop()
    thread = loop.run_in_executor(threads, context.run, _guarded, look, attempt)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        attempt.stop()
        await finish(_ended(thread, attempt), within_s=30)
        raise
    except Stopped:
        raise TimeoutError from None


async def _ended(thread: asyncio.Future[Any], attempt: Attempt) -> None:
    await asyncio.wait({thread})
    thread.exception()
    await attempt.idle.wait()


def _guarded(look: Callable[[Attempt], T], attempt: Attempt) -> T:
    try:
        return look(attempt)
    except (Stopped, TorporError, Unclear, Broken):
        raise
    except Exception as exc:  # testinfra raises all kinds for what it does not expect
        raise Unclear(f"testinfra cannot tell: {_said(exc)}") from exc


def _said(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text[:300]}" if text else type(exc).__name__
