"""/pandastack/v1/sandboxes/{sandbox}/repl…: code contexts, which that API calls sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from torpor.contexts import desk
from torpor.errors import InvalidRequest
from torpor.model_contexts import (
    CODE_BYTES_MOST,
    LANGUAGES,
    OUTPUT_LIMIT_MAX_BYTES,
    CodeSpec,
    ContextId,
    ContextSpec,
)
from torpor.server.compat.deps import TheSandbox
from torpor.server.compat.dispatch import PREFIX
from torpor.server.compat.wire import Asked
from torpor.server.contexts import code_run
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine, until_hang_up
from torpor.server.wire import Wire
from torpor.server.wire_contexts import CodeRunWire
from torpor.server.wire_exec import TIMEOUT_MAX_S

router = APIRouter(
    prefix=f"{PREFIX}/v1/sandboxes/{{sandbox}}/repl/sessions",
    tags=["pandastack"],
    responses=FAILURES,
)


class SessionAsked(Asked):
    """What POST …/repl/sessions takes."""

    language: str = "python"

    def spec(self) -> ContextSpec:
        """Return the context in the engine's words. Raises `InvalidRequest` for a language that there is not."""
        if self.language not in LANGUAGES:
            raise InvalidRequest(
                f"there is no interpreter for {self.language[:40]!r}", hint=" or ".join(LANGUAGES)
            )
        return ContextSpec(language=self.language)


class SessionTold(Wire):
    """A code context."""

    id: str
    language: str


class CodeAsked(Asked):
    """What POST …/repl/sessions/{session}/run takes."""

    code: Annotated[str, Field(max_length=CODE_BYTES_MOST)]
    timeout_ms: Annotated[
        int | None, Field(ge=0, le=int(TIMEOUT_MAX_S * 1000), description="null, 0: no limit.")
    ] = None


class CodeTold(Wire):
    """What came of one piece of code."""

    stdout: str
    stderr: str
    exit: int
    exit_code: int
    error: Annotated[str | None, Field(description="The traceback of what it raised.")]
    duration_ms: int
    results: Annotated[
        Sequence[Mapping[str, str]], Field(description="Each in all its forms, by MIME type.")
    ]

    @staticmethod
    def of(ran: CodeRunWire) -> CodeTold:
        """Return `ran` as JSON has it."""
        error = None if ran.error is None else ran.error.traceback or ran.error.value
        if error is None and ran.status in ("died", "stopped"):
            error = "the interpreter ended; what had been set is gone"
        code = ran.exit_code if ran.exit_code is not None else 0 if ran.status == "ok" else 1
        return CodeTold(
            stdout=ran.stdout,
            stderr=ran.stderr,
            exit=code,
            exit_code=code,
            error=error,
            duration_ms=ran.duration_ms,
            results=[
                {mime: _text(value) for mime, value in result.data.items()}
                for result in ran.results
            ],
        )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@router.post("", status_code=201, response_model=SessionTold)
async def pandastack_create_session(
    info: TheSandbox, engine: Engine, request: Request, body: SessionAsked | None = None
) -> Reply:
    """Make a context and answer when its interpreter is ready."""
    spec = (body or SessionAsked()).spec()
    async with engine.guest(info.id) as guest:
        made = await until_hang_up(request, desk.create(guest, spec))
    return Reply(SessionTold(id=made.id, language=made.language), 201)


@router.post("/{session}/run", response_model=CodeTold)
async def pandastack_run_in_session(
    info: TheSandbox, session: str, body: CodeAsked, engine: Engine, request: Request
) -> Reply:
    """Run code; what it raises is part of the answer. It is interrupted when its client goes away."""
    spec = CodeSpec(
        code=body.code,
        timeout_seconds=body.timeout_ms / 1000 if body.timeout_ms else None,
        output_limit_bytes=OUTPUT_LIMIT_MAX_BYTES,
        interrupt_on_disconnect=True,
    )
    ran = await until_hang_up(request, code_run(engine, info.id, ContextId(session), spec))
    return await asyncio.to_thread(lambda: Reply(CodeTold.of(ran)))  # it can be large


@router.delete("/{session}", status_code=204)
async def pandastack_delete_session(info: TheSandbox, session: str, engine: Engine) -> Response:
    """End a context and all that runs in it."""
    async with engine.guest(info.id) as guest:
        await desk.delete(guest, ContextId(session))
    return Response(status_code=204)
