"""Runs code in a context: its events as they come, or all of them as one result."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from torpor.base.aio import closing, finish
from torpor.contexts.asking import ask, asking, lost
from torpor.contexts.lines import RESULTS_MOST, event_of
from torpor.errors import CommandLost, GuestFailed, OperationTimeout, TorporError
from torpor.guest.port import Guest
from torpor.model_contexts import (
    CodeEnded,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeResult,
    CodeSpec,
    CodeStarted,
    ContextInfo,
)

STOP_GRACE_S = 420.0
"""Seconds after its limit in which code is interrupted, or its interpreter started anew, and the end told."""
_RESULT_BYTES = 16 << 20


async def run(
    guest: Guest, context: ContextInfo, spec: CodeSpec
) -> AsyncGenerator[CodeEvent, None]:
    """Yield what comes of code, `CodeEnded` last. Closing this lets the code run on, unless the spec says otherwise.

    Raises:
        OperationTimeout: it was interrupted at its limit; the facts say whether the interpreter was started anew.
        Busy: too many runs wait for this context.
        WrongState: the context's program is gone.
        CommandLost: it ended meanwhile, and how is not known.
        GuestFailed: what it answers makes no sense.
    """
    request = {
        "op": "run",
        "code": spec.code,
        "timeout_seconds": spec.timeout_seconds,
        "output_limit_bytes": spec.output_limit_bytes,
        "result_limit_bytes": _RESULT_BYTES,
    }
    is_over = False
    try:
        async with closing(_events(guest, context, request, spec)) as events:
            async for event in events:
                is_over = isinstance(event, CodeEnded)
                yield event
    except (asyncio.CancelledError, GeneratorExit):
        if spec.interrupt_on_disconnect and not is_over:
            await finish(_interrupt(guest, context), within_s=10)
        raise


async def _events(
    guest: Guest, context: ContextInfo, request: Mapping[str, object], spec: CodeSpec
) -> AsyncGenerator[CodeEvent, None]:
    began_s = time.monotonic()
    results = 0
    try:
        async with (
            asyncio.timeout(None) as limit,
            closing(asking(guest, context, request)) as lines,
        ):
            async for said in lines:
                event = event_of(said, duration_ms=round((time.monotonic() - began_s) * 1000))
                if isinstance(event, CodeStarted):
                    began_s = time.monotonic()
                    if spec.timeout_seconds is not None:
                        now = asyncio.get_running_loop().time()
                        limit.reschedule(now + spec.timeout_seconds + STOP_GRACE_S)
                results += isinstance(event, (CodeResult, CodeError))
                if results > RESULTS_MOST:
                    raise GuestFailed(f"the code shows more than {RESULTS_MOST} results")
                if isinstance(event, CodeEnded) and event.status == "timeout":
                    raise _timed_out(context, spec, event)
                if event is not None:
                    yield event
                if isinstance(event, CodeEnded):
                    return
    except TimeoutError as exc:
        raise OperationTimeout(
            f"timeout: code context {context.id} did not end the code within {STOP_GRACE_S:g} s of its limit",
            hint="delete the context",
            context_id=context.id,
        ) from exc
    raise lost(context)


def _timed_out(context: ContextInfo, spec: CodeSpec, ended: CodeEnded) -> OperationTimeout:
    what = (
        "it did not stop when it was interrupted, so the interpreter was started anew and what had been set is gone"
        if ended.restarted
        else "it was interrupted, and what had been set is there"
    )
    return OperationTimeout(
        f"timeout: the code ran {spec.timeout_seconds:g} s, to its limit; {what}",
        hint="give it more time (timeout_seconds, --timeout)",
        context_id=context.id,
        restarted=ended.restarted,
        duration_ms=ended.duration_ms,
        stdout_bytes=ended.stdout_bytes,
        stderr_bytes=ended.stderr_bytes,
    )


async def _interrupt(guest: Guest, context: ContextInfo) -> None:
    with contextlib.suppress(TorporError):
        await ask(guest, context, {"op": "interrupt"}, limit_s=8)


@dataclass(slots=True)
class Ran:
    """What came of one piece of code."""

    pieces: dict[str, list[str]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    """Of its output: a million of them are joined once, and not one by one."""
    results: list[CodeResult] = field(default_factory=list)
    error: CodeError | None = None
    ended: CodeEnded | None = None

    @property
    def stdout(self) -> str:
        """What it wrote there."""
        return "".join(self.pieces["stdout"])

    @property
    def stderr(self) -> str:
        """What it wrote there."""
        return "".join(self.pieces["stderr"])

    def add(self, event: CodeEvent) -> None:
        """Take in one event."""
        if isinstance(event, CodeOutput):
            self.pieces[event.stream].append(event.text)
        elif isinstance(event, CodeResult):
            self.results.append(event)
        elif isinstance(event, CodeError):
            self.error = event
        elif isinstance(event, CodeEnded):
            self.ended = event


async def run_whole(guest: Guest, context: ContextInfo, spec: CodeSpec) -> Ran:
    """Run code and return all that came of it. Raises as `run`; a limit's facts have the output until then."""
    ran = Ran()
    try:
        async with closing(run(guest, context, spec)) as events:
            async for event in events:
                ran.add(event)
    except (OperationTimeout, CommandLost) as error:
        error.facts.update(stdout=ran.stdout, stderr=ran.stderr)
        raise
    return ran
