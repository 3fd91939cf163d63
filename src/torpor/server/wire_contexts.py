"""The shapes of code contexts, and of what comes of code, in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from torpor.contexts.running import Ran
from torpor.errors import CommandLost
from torpor.model_contexts import (
    CODE_BYTES_MOST,
    OUTPUT_LIMIT_BYTES,
    OUTPUT_LIMIT_MAX_BYTES,
    CodeEnded,
    CodeError,
    CodeResult,
    CodeSpec,
    CodeStatus,
    ContextInfo,
    ContextSpec,
    ContextState,
    Language,
)
from torpor.server.wire import Wire
from torpor.server.wire_exec import TIMEOUT_MAX_S


class ContextRequest(Wire):
    """What POST …/contexts takes; nothing is needed."""

    language: Language = "python"
    cwd: Annotated[str | None, Field(description="Default: the template's.")] = None
    env: dict[str, str] = Field(default_factory=dict)
    user: Annotated[str | None, Field(description="Name or uid; default: the template's.")] = None

    def spec(self) -> ContextSpec:
        """Return the request as the model has it."""
        return ContextSpec(language=self.language, cwd=self.cwd, env=self.env, user=self.user)


class ContextWire(Wire):
    """One code context."""

    id: str
    language: Language
    state: Annotated[
        ContextState,
        Field(description="`ended` and `lost`: its program is gone; delete it and make another."),
    ]
    user: str
    cwd: str
    created_at: datetime

    @staticmethod
    def of(info: ContextInfo) -> ContextWire:
        """Return `info` as JSON has it."""
        return ContextWire(
            id=info.id,
            language=info.language,
            state=info.state,
            user=info.user,
            cwd=info.cwd,
            created_at=info.created_at,
        )


class ContextListWire(Wire):
    """A page of code contexts."""

    items: Sequence[ContextWire]
    next_cursor: str | None = None


class CodeRequest(Wire):
    """What POST …/contexts/{context_id}/run and …/run/stream take."""

    code: Annotated[str, Field(max_length=CODE_BYTES_MOST)]
    timeout_seconds: Annotated[
        float | None,
        Field(
            gt=0,
            le=TIMEOUT_MAX_S,
            description="From when it begins. Then the code is interrupted; if it does not stop, the interpreter is "
            "started anew, and the error's facts say so (`restarted`).",
        ),
    ] = None
    output_limit_bytes: Annotated[
        int,
        Field(ge=0, le=OUTPUT_LIMIT_MAX_BYTES, description="Of stdout and of stderr."),
    ] = OUTPUT_LIMIT_BYTES
    interrupt_on_disconnect: Annotated[
        bool,
        Field(
            description="Interrupt the code when the client hangs up, instead of letting it run."
        ),
    ] = False

    def spec(self) -> CodeSpec:
        """Return the request as the model has it."""
        return CodeSpec(
            code=self.code,
            timeout_seconds=self.timeout_seconds,
            output_limit_bytes=self.output_limit_bytes,
            interrupt_on_disconnect=self.interrupt_on_disconnect,
        )


class DefaultCodeRequest(CodeRequest):
    """What POST …/run and …/run/stream take: code for the sandbox's default context of a language."""

    language: Language = "python"


class CodeResultWire(Wire):
    """One value that the code showed."""

    data: Annotated[
        Mapping[str, Any],
        Field(description="By MIME type: text; base 64 for `image/png`; JSON for JSON types."),
    ]
    is_main: Annotated[bool, Field(description="The value of the code's last expression.")]
    omitted: Annotated[
        Mapping[str, int], Field(description="Forms that were too large, with their sizes.")
    ]

    @staticmethod
    def of(result: CodeResult) -> CodeResultWire:
        """Return `result` as JSON has it."""
        return CodeResultWire(data=result.data, is_main=result.is_main, omitted=result.omitted)


class CodeErrorWire(Wire):
    """What the code raised."""

    name: str
    value: str
    traceback: Annotated[str, Field(description="Without colours.")]

    @staticmethod
    def of(error: CodeError) -> CodeErrorWire:
        """Return `error` as JSON has it."""
        return CodeErrorWire(name=error.name, value=error.value, traceback=error.traceback)


class CodeEndedWire(Wire):
    """How the code ended."""

    status: Annotated[
        CodeStatus,
        Field(
            description="`error`: it raised, or its exit code is not 0; `died`: its interpreter ended; `stopped`: "
            "somebody restarted it. At its time limit the answer is an error instead."
        ),
    ]
    duration_ms: int
    restarted: Annotated[
        bool, Field(description="The interpreter was started anew: what had been set is gone.")
    ]
    exit_code: Annotated[int | None, Field(description="Of bash code.")]
    execution_count: Annotated[int | None, Field(description="Of Python code.")]
    stdout_bytes: Annotated[int, Field(description="All that it wrote, what is left out included.")]
    stderr_bytes: int

    @staticmethod
    def of(ended: CodeEnded) -> CodeEndedWire:
        """Return `ended` as JSON has it."""
        return CodeEndedWire(**_ended(ended))


class CodeRunWire(CodeEndedWire):
    """All that came of one piece of code. What it raised is part of it; the request succeeded."""

    context_id: str
    stdout: str
    stderr: str
    results: Sequence[CodeResultWire]
    error: CodeErrorWire | None

    @staticmethod
    def made_of(context: ContextInfo, ran: Ran) -> CodeRunWire:
        """Return a run as JSON has it. Raises `CommandLost` if it has no end."""
        if ran.ended is None:
            raise CommandLost(f"the code in {context.id} sent no end", context_id=context.id)
        return CodeRunWire(
            **_ended(ran.ended),
            context_id=context.id,
            stdout=ran.stdout,
            stderr=ran.stderr,
            results=[CodeResultWire.of(result) for result in ran.results],
            error=None if ran.error is None else CodeErrorWire.of(ran.error),
        )


def _ended(ended: CodeEnded) -> dict[str, Any]:
    return {
        "status": ended.status,
        "duration_ms": ended.duration_ms,
        "restarted": ended.restarted,
        "exit_code": ended.exit_code,
        "execution_count": ended.execution_count,
        "stdout_bytes": ended.stdout_bytes,
        "stderr_bytes": ended.stderr_bytes,
    }
