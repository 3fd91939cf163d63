"""The synchronous face of code contexts; `torpor.sdk.contexts` says more of each call."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping

from typing_extensions import override

from torpor.errors import TorporError
from torpor.model_contexts import (
    OUTPUT_LIMIT_BYTES,
    CodeError,
    CodeEvent,
    CodeResult,
    ContextId,
    ContextInfo,
    Language,
    default_context,
)
from torpor.sdk.code_results import CodeCollector, CodeRun, TextCallback
from torpor.sdk.contexts import AsyncContext, AsyncContexts
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_handle import Handle


class Context:
    """One code context. It is there until it is deleted, also after a snapshot, a sleep, a rollback or a fork."""

    def __init__(self, context: AsyncContext) -> None:
        self._context = context

    @override
    def __repr__(self) -> str:
        return repr(self._context).replace("AsyncContext", type(self).__name__)

    @property
    def info(self) -> ContextInfo:
        """What was so when the daemon was last asked."""
        return self._context.info

    @property
    def id(self) -> ContextId:
        """The context's id, `ctx_…`; a fork has contexts with the same ids."""
        return self._context.id

    @property
    def language(self) -> Language:
        """`python` or `bash`."""
        return self._context.language

    def run(
        self,
        code: str,
        *,
        timeout_seconds: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        interrupt_on_disconnect: bool = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        on_result: Callable[[CodeResult], object] | None = None,
        on_error: Callable[[CodeError], object] | None = None,
    ) -> CodeRun:
        """Run code and return what came of it; what it raises is `error` of that, and not raised here.

        Callbacks are called in this thread.

        Raises:
            OperationTimeout: at its limit; facts have `stdout`, `stderr`, and `restarted` if what had been set is gone.
            Busy: 16 runs wait for this context already.
            NotFound: there is no such context or sandbox.
            WrongState: the context's program is gone, or the sandbox is not running.
            CommandLost: how the code ended is not known.
        """
        events = self.run_stream(
            code,
            timeout_seconds=timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            interrupt_on_disconnect=interrupt_on_disconnect,
        )
        collector = CodeCollector(on_stdout, on_stderr, on_result, on_error)
        return _collect(events, collector, self.id)

    def run_stream(
        self,
        code: str,
        *,
        timeout_seconds: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        interrupt_on_disconnect: bool = False,
    ) -> Iterator[CodeEvent]:
        """Run code and yield what comes of it, `CodeEnded` last. Raises as `run`."""
        return loop_thread.iterate(
            self._context.run_stream(
                code,
                timeout_seconds=timeout_seconds,
                output_limit_bytes=output_limit_bytes,
                interrupt_on_disconnect=interrupt_on_disconnect,
            )
        )

    def refresh(self) -> ContextInfo:
        """Ask what is so about the context, and return it. Raises `NotFound`."""
        return loop_thread.run(self._context.refresh())

    def interrupt(self) -> None:
        """Interrupt what runs, as Ctrl-C would; no effect when nothing runs. Raises `NotFound`, `WrongState`."""
        loop_thread.run(self._context.interrupt())

    def restart(self) -> None:
        """Start the interpreter anew: what runs is ended, what had been set is gone. Raises `NotFound`, `WrongState`."""
        loop_thread.run(self._context.restart())

    def delete(self) -> None:
        """End the context and all that runs in it. Raises `NotFound`."""
        loop_thread.run(self._context.delete())


class Contexts:
    """The code contexts of one sandbox."""

    def __init__(self, contexts: AsyncContexts) -> None:
        self._contexts = contexts

    def create(
        self,
        language: Language = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Context:
        """Make a context and return it when its interpreter is ready.

        Raises:
            KernelMissing: the sandbox has no such interpreter; the hint names a template that has.
            InvalidRequest: there is no such user, folder or language.
        """
        made = self._contexts.create(language, cwd=cwd, env=env, user=user)
        return Context(loop_thread.run(made))

    def list(self) -> builtins.list[Context]:
        """Return the contexts, oldest first."""
        return [Context(found) for found in loop_thread.run(self._contexts.list())]

    def get(self, context_id: str) -> Context:
        """Return the context with that id. Raises `NotFound`."""
        return Context(loop_thread.run(self._contexts.get(context_id)))


class Code(Handle):
    """The part of `Sandbox` about code contexts."""

    @property
    def contexts(self) -> Contexts:
        """The sandbox's code contexts."""
        return Contexts(self._sandbox.contexts)

    def run_code(
        self,
        code: str,
        *,
        language: Language = "python",
        context: Context | str | None = None,
        timeout_seconds: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        interrupt_on_disconnect: bool = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        on_result: Callable[[CodeResult], object] | None = None,
        on_error: Callable[[CodeError], object] | None = None,
    ) -> CodeRun:
        """Run code in `context`, or in the sandbox's default context of `language`, and return what came of it.

        The default context is made when it is first needed. The rest is as `Context.run` says.

        Raises:
            KernelMissing: the sandbox has no such interpreter; the hint names a template that has.
            OperationTimeout, Busy, NotFound, WrongState, CommandLost: as `Context.run`.
        """
        events = self.run_code_stream(
            code,
            language=language,
            context=context,
            timeout_seconds=timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            interrupt_on_disconnect=interrupt_on_disconnect,
        )
        collector = CodeCollector(on_stdout, on_stderr, on_result, on_error)
        named = _id_of(context)
        return _collect(
            events, collector, default_context(language) if named is None else ContextId(named)
        )

    def run_code_stream(
        self,
        code: str,
        *,
        language: Language = "python",
        context: Context | str | None = None,
        timeout_seconds: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        interrupt_on_disconnect: bool = False,
    ) -> Iterator[CodeEvent]:
        """Run code as `run_code` and yield what comes of it, `CodeEnded` last. Raises as `run_code`."""
        return loop_thread.iterate(
            self._sandbox.run_code_stream(
                code,
                language=language,
                context=_id_of(context),
                timeout_seconds=timeout_seconds,
                output_limit_bytes=output_limit_bytes,
                interrupt_on_disconnect=interrupt_on_disconnect,
            )
        )


def _id_of(context: Context | str | None) -> str | None:
    return context.id if isinstance(context, Context) else context


def _collect(
    events: Iterator[CodeEvent], collector: CodeCollector, context_id: ContextId
) -> CodeRun:
    """Follow `events` in this thread, where the callbacks may call the SDK again."""
    try:
        for event in events:
            collector.add(event)
    except TorporError as error:
        collector.explain(error)
        raise
    return collector.made_of(context_id)
