"""Code contexts: interpreters in a sandbox that keep what code has set."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from typing import Any

from typing_extensions import override

from torpor.base.aio import closing
from torpor.errors import CommandLost, InvalidRequest, TorporError, error_from_wire
from torpor.model_contexts import (
    OUTPUT_LIMIT_BYTES,
    CodeEnded,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeResult,
    CodeStarted,
    ContextId,
    ContextInfo,
    Language,
    default_context,
)
from torpor.sdk.client import Client, Connection, connection, quote_part, raw_bytes
from torpor.sdk.code_results import CodeCollector, CodeRun, TextCallback
from torpor.sdk.handle import AsyncHandle
from torpor.sdk.sse import SseEvent, sse_events

START_LIMIT_S = 450.0
"""Seconds for an interpreter to start; without hardware virtualisation on a busy host it can take a minute."""


class AsyncContext:
    """One code context. It is there until it is deleted, also after a snapshot, a sleep, a rollback or a fork."""

    def __init__(self, client: Client, sandbox_id: str, info: ContextInfo) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self._info = info

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} ({self.language}) in {self._sandbox_id}>"

    @property
    def info(self) -> ContextInfo:
        """What was so when the daemon was last asked."""
        return self._info

    @property
    def id(self) -> ContextId:
        """The context's id, `ctx_…`; a fork has contexts with the same ids."""
        return self._info.id

    @property
    def language(self) -> Language:
        """`python` or `bash`."""
        return self._info.language

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{quote_part(self._sandbox_id)}/contexts/{quote_part(self.id)}"

    async def run(
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

        Runs of one context come one after the other. Code that nobody waits for any more runs on.

        Args:
            code: Python, with IPython's magics; or bash.
            timeout_seconds: from when it begins. Then it is interrupted, and if it does not stop within 20 s
                the interpreter is started anew. None: no limit.
            output_limit_bytes: of stdout and of stderr; what is more is counted.
            interrupt_on_disconnect: interrupt the code when this call is given up.
            on_stdout: called with text as it comes.
            on_stderr: the same for stderr.
            on_result: called with each result as it comes.
            on_error: called with what the code raised.

        Raises:
            OperationTimeout: at its limit; facts have `stdout`, `stderr`, and `restarted` if what had been set is gone.
            Busy: 16 runs wait for this context already.
            NotFound: there is no such context or sandbox.
            WrongState: the context's program is gone, or the sandbox is not running.
            CommandLost: how the code ended is not known.
        """
        collector = CodeCollector(on_stdout, on_stderr, on_result, on_error)
        events = self.run_stream(
            code,
            timeout_seconds=timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            interrupt_on_disconnect=interrupt_on_disconnect,
        )
        return await collect(events, collector, self.id)

    async def run_stream(
        self,
        code: str,
        *,
        timeout_seconds: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        interrupt_on_disconnect: bool = False,
    ) -> AsyncGenerator[CodeEvent, None]:
        """Run code and yield what comes of it, `CodeEnded` last. Raises as `run`."""
        body = code_body(code, timeout_seconds, output_limit_bytes, interrupt_on_disconnect)
        async with closing(
            code_events(self._connection, f"{self._path}/run/stream", body)
        ) as events:
            async for event in events:
                yield event

    async def refresh(self) -> ContextInfo:
        """Ask what is so about the context, and return it. Raises `NotFound`."""
        self._info = context_info(await self._connection.call("GET", self._path))
        return self._info

    async def interrupt(self) -> None:
        """Interrupt what runs, as Ctrl-C would; no effect when nothing runs. Raises `NotFound`, `WrongState`."""
        await self._connection.call("POST", f"{self._path}/interrupt")

    async def restart(self) -> None:
        """Start the interpreter anew: what runs is ended, what had been set is gone. Raises `NotFound`, `WrongState`."""
        found = await self._connection.call("POST", f"{self._path}/restart", limit_s=START_LIMIT_S)
        self._info = context_info(found)

    async def delete(self) -> None:
        """End the context and all that runs in it. Raises `NotFound`."""
        await self._connection.call("DELETE", self._path)


class AsyncContexts:
    """The code contexts of one sandbox."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{quote_part(self._sandbox_id)}/contexts"

    async def create(
        self,
        language: Language = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncContext:
        """Make a context and return it when its interpreter is ready.

        Args:
            language: `python` (needs the template `code-interpreter`, or ipykernel in the sandbox) or `bash`.
            cwd: where its code starts; None: the template's default.
            env: laid over the sandbox's environment.
            user: name or uid; None: the template's default user.

        Raises:
            KernelMissing: the sandbox has no such interpreter; the hint names a template that has.
            InvalidRequest: there is no such user, folder or language.
        """
        body = {"language": language, "cwd": cwd, "env": dict(env or {}), "user": user}
        made = await self._connection.call("POST", self._path, body=body, limit_s=START_LIMIT_S)
        return AsyncContext(self._client, self._sandbox_id, context_info(made))

    async def list(self) -> builtins.list[AsyncContext]:
        """Return the contexts, oldest first."""
        found: builtins.list[AsyncContext] = []
        cursor: str | None = None
        while True:
            page = await self._connection.call("GET", self._path, query={"cursor": cursor})
            found += [
                AsyncContext(self._client, self._sandbox_id, context_info(item))
                for item in page["items"]
            ]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    async def get(self, context_id: str) -> AsyncContext:
        """Return the context with that id. Raises `NotFound`."""
        found = await self._connection.call("GET", f"{self._path}/{quote_part(context_id)}")
        return AsyncContext(self._client, self._sandbox_id, context_info(found))


class AsyncCode(AsyncHandle):
    """The part of `AsyncSandbox` about code contexts."""

    @property
    def contexts(self) -> AsyncContexts:
        """The sandbox's code contexts."""
        return AsyncContexts(self._client, self._id)

    async def run_code(
        self,
        code: str,
        *,
        language: Language = "python",
        context: AsyncContext | str | None = None,
        timeout_seconds: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        interrupt_on_disconnect: bool = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        on_result: Callable[[CodeResult], object] | None = None,
        on_error: Callable[[CodeError], object] | None = None,
    ) -> CodeRun:
        """Run code in `context`, or in the sandbox's default context of `language`, and return what came of it.

        The default context is made when it is first needed. The rest is as `AsyncContext.run` says.

        Raises:
            KernelMissing: the sandbox has no such interpreter; the hint names a template that has.
            OperationTimeout, Busy, NotFound, WrongState, CommandLost: as `AsyncContext.run`.
        """
        collector = CodeCollector(on_stdout, on_stderr, on_result, on_error)
        events = self.run_code_stream(
            code,
            language=language,
            context=context,
            timeout_seconds=timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            interrupt_on_disconnect=interrupt_on_disconnect,
        )
        return await collect(events, collector, _chosen(context, language))

    async def run_code_stream(
        self,
        code: str,
        *,
        language: Language = "python",
        context: AsyncContext | str | None = None,
        timeout_seconds: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        interrupt_on_disconnect: bool = False,
    ) -> AsyncGenerator[CodeEvent, None]:
        """Run code as `run_code` and yield what comes of it, `CodeEnded` last. Raises as `run_code`."""
        body = code_body(code, timeout_seconds, output_limit_bytes, interrupt_on_disconnect)
        if context is None:
            body["language"] = language
            path = f"{self._path}/run/stream"
        else:
            path = f"{self._path}/contexts/{quote_part(_chosen(context, language))}/run/stream"
        async with closing(code_events(self._connection, path, body)) as events:
            async for event in events:
                yield event


def _chosen(context: AsyncContext | str | None, language: Language) -> ContextId:
    if context is None:
        return default_context(language)
    return context.id if isinstance(context, AsyncContext) else ContextId(context)


async def collect(
    events: AsyncGenerator[CodeEvent, None], collector: CodeCollector, context_id: ContextId
) -> CodeRun:
    """Follow `events` to their end and return the run; an error gets what was written until then."""
    try:
        async with closing(events) as followed:
            async for event in followed:
                collector.add(event)
    except TorporError as error:
        collector.explain(error)
        raise
    return collector.made_of(context_id)


def code_body(
    code: str,
    timeout_seconds: float | None,
    output_limit_bytes: int,
    interrupt_on_disconnect: bool,
) -> dict[str, Any]:
    """Return the request that runs `code`. Raises `InvalidRequest` if it is no text."""
    if not isinstance(code, str):
        raise InvalidRequest(f"code is a text, not {type(code).__name__}")
    return {
        "code": code,
        "timeout_seconds": timeout_seconds,
        "output_limit_bytes": output_limit_bytes,
        "interrupt_on_disconnect": interrupt_on_disconnect,
    }


async def code_events(
    daemon: Connection, path: str, body: Mapping[str, Any]
) -> AsyncGenerator[CodeEvent, None]:
    """Yield what comes of code that a request runs. Raises as `AsyncContext.run`."""
    async with (
        daemon.stream("POST", path, body=body) as reply,
        closing(sse_events(raw_bytes(reply))) as events,
    ):
        async for said in events:
            event = _event(said)
            if event is not None:
                yield event
            if isinstance(event, CodeEnded):
                return
    raise CommandLost("the code sent no end", hint="see the daemon's log")


def _event(said: SseEvent) -> CodeEvent | None:
    data = said.data
    if said.name == "started":
        return CodeStarted()
    if said.name in ("stdout", "stderr"):
        return CodeOutput("stdout" if said.name == "stdout" else "stderr", data["chunk"])
    if said.name == "result":
        return CodeResult(data=data["data"], is_main=data["is_main"], omitted=data["omitted"])
    if said.name == "raised":
        return CodeError(name=data["name"], value=data["value"], traceback=data["traceback"])
    if said.name == "done":
        return CodeEnded(
            status=data["status"],
            duration_ms=data["duration_ms"],
            restarted=data["restarted"],
            exit_code=data["exit_code"],
            execution_count=data["execution_count"],
            stdout_bytes=data["stdout_bytes"],
            stderr_bytes=data["stderr_bytes"],
        )
    if said.name == "error":
        raise error_from_wire(data)
    return None  # an event of a newer daemon


def context_info(body: Mapping[str, Any]) -> ContextInfo:
    """Return the context in `body`."""
    return ContextInfo(
        id=ContextId(body["id"]),
        language=body["language"],
        state=body["state"],
        user=body["user"],
        cwd=body["cwd"],
        created_at=datetime.fromisoformat(body["created_at"]),
    )
