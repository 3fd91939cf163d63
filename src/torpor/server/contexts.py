"""Runs code for requests, in a named context or in the sandbox's default one; a client that is gone leaves it running."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from weakref import WeakValueDictionary

from torpor.base.aio import closing
from torpor.contexts import desk
from torpor.contexts.running import run, run_whole
from torpor.guest.port import Guest
from torpor.model import SandboxId
from torpor.model_contexts import (
    LANGUAGES,
    CodeEnded,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeResult,
    CodeSpec,
    CodeStarted,
    ContextId,
    ContextInfo,
    Language,
)
from torpor.sandboxes.port import EnginePort
from torpor.server.replies import Last, sse
from torpor.server.wire_contexts import (
    CodeEndedWire,
    CodeErrorWire,
    CodeResultWire,
    CodeRunWire,
)

_making: WeakValueDictionary[tuple[SandboxId, Language], asyncio.Lock] = WeakValueDictionary()
"""Who makes, or looks for, the default context of a sandbox."""

Chosen = ContextId | Language
"""A context, or the default one of a language."""


@contextlib.asynccontextmanager
async def _entered(
    engine: EnginePort, sandbox_id: SandboxId, chosen: Chosen
) -> AsyncIterator[tuple[Guest, ContextInfo]]:
    async with engine.guest(sandbox_id) as guest:
        language = next((known for known in LANGUAGES if known == chosen), None)
        if language is not None:
            # one at a time: a second one would take away what the first puts in a dead one's place
            turn = _making.setdefault((sandbox_id, language), asyncio.Lock())
            async with turn:
                context = await desk.default(guest, language)
            yield guest, context
        else:
            yield guest, await desk.running(guest, ContextId(chosen))


async def code_run(
    engine: EnginePort, sandbox_id: SandboxId, chosen: Chosen, spec: CodeSpec
) -> CodeRunWire:
    """Return all that came of code. Raises as `run`, and as `desk.default` or `desk.running`."""
    async with _entered(engine, sandbox_id, chosen) as (guest, context):
        ran = await run_whole(guest, context, spec)
        return await asyncio.to_thread(CodeRunWire.made_of, context, ran)


async def code_frames(
    engine: EnginePort, sandbox_id: SandboxId, chosen: Chosen, spec: CodeSpec
) -> AsyncGenerator[bytes, None]:
    """Yield what comes of code as server-sent events, `done` last. Raises as `code_run`."""
    async with (
        _entered(engine, sandbox_id, chosen) as (guest, context),
        closing(run(guest, context, spec)) as events,
    ):
        async for event in events:
            if isinstance(event, CodeResult):  # it can be large
                yield await asyncio.to_thread(_frame, context, event)
            else:
                yield _frame(context, event)


def _frame(context: ContextInfo, event: CodeEvent) -> bytes:
    if isinstance(event, CodeStarted):
        return sse("started", {"context_id": context.id, "language": context.language})
    if isinstance(event, CodeOutput):
        return sse(event.stream, {"chunk": event.text})
    if isinstance(event, CodeResult):
        return sse("result", CodeResultWire.of(event))
    if isinstance(event, CodeError):
        return sse("raised", CodeErrorWire.of(event))
    assert isinstance(event, CodeEnded)
    return Last(sse("done", CodeEndedWire.of(event)))
