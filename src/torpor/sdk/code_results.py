"""What comes of code, gathered; for both faces of the SDK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torpor.errors import CommandLost, OperationTimeout, TorporError
from torpor.model_contexts import (
    CodeEnded,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeResult,
    CodeStatus,
    ContextId,
)

TextCallback = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Logs:
    """What code wrote."""

    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRun:
    """All that came of one piece of code."""

    context_id: ContextId
    status: CodeStatus
    """`ok`; `error`: it raised, or its exit code is not 0; `died`: its interpreter ended; `stopped`: it was restarted."""
    results: tuple[CodeResult, ...]
    """What it showed: the value of its last expression, plots, tables."""
    logs: Logs
    error: CodeError | None
    """What it raised, as data."""
    exit_code: int | None
    """Of bash code."""
    execution_count: int | None
    duration_ms: int
    restarted: bool
    """The interpreter was started anew, just before the code or because of it: what had been set is gone."""
    stdout_bytes: int
    """All that it wrote, what is left out of `logs` included."""
    stderr_bytes: int

    @property
    def text(self) -> str | None:
        """The value of the last expression, as text; None if it has none."""
        return next((result.text for result in self.results if result.is_main), None)

    @property
    def ok(self) -> bool:
        """Whether the status is `ok`."""
        return self.status == "ok"


@dataclass(slots=True)
class CodeCollector:
    """Keeps what comes of code, and hands it to callbacks."""

    on_stdout: TextCallback | None = None
    on_stderr: TextCallback | None = None
    on_result: Callable[[CodeResult], object] | None = None
    on_error: Callable[[CodeError], object] | None = None
    stdout: str = ""
    stderr: str = ""
    results: tuple[CodeResult, ...] = ()
    error: CodeError | None = None
    ended: CodeEnded | None = None

    def add(self, event: CodeEvent) -> None:
        """Take in one event."""
        if isinstance(event, CodeOutput):
            self._output(event)
        elif isinstance(event, CodeResult):
            self.results += (event,)
            if self.on_result is not None:
                self.on_result(event)
        elif isinstance(event, CodeError):
            self.error = event
            if self.on_error is not None:
                self.on_error(event)
        elif isinstance(event, CodeEnded):
            self.ended = event

    def _output(self, event: CodeOutput) -> None:
        if event.stream == "stdout":
            self.stdout += event.text
            told = self.on_stdout
        else:
            self.stderr += event.text
            told = self.on_stderr
        if told is not None:
            told(event.text)

    def explain(self, error: TorporError) -> None:
        """Give an error that ended the code what it wrote until then."""
        if isinstance(error, (OperationTimeout, CommandLost)):
            error.facts.update(stdout=self.stdout, stderr=self.stderr)

    def made_of(self, context_id: ContextId) -> CodeRun:
        """Return the run. Raises `CommandLost` if it has no end."""
        if self.ended is None:
            raise CommandLost(f"the code in {context_id} sent no end", context_id=context_id)
        return CodeRun(
            context_id=context_id,
            status=self.ended.status,
            results=self.results,
            logs=Logs(self.stdout, self.stderr),
            error=self.error,
            exit_code=self.ended.exit_code,
            execution_count=self.ended.execution_count,
            duration_ms=self.ended.duration_ms,
            restarted=self.ended.restarted,
            stdout_bytes=self.ended.stdout_bytes,
            stderr_bytes=self.ended.stderr_bytes,
        )
