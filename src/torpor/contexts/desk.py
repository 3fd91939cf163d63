"""Makes contexts, lists them, ends them, and asks their programs.

All that is known of a context is in its machine: its program is a command of the guest's agent, under the context's
id, and each request is another command that hands it on. So contexts are there for any daemon, and go along
with a snapshot, a sleep or a fork.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from torpor.base.aio import closing, finish
from torpor.base.ids import new_id
from torpor.contexts.asking import ask
from torpor.contexts.lines import Lines
from torpor.contexts.program import put_program
from torpor.errors import (
    CommandLost,
    GuestFailed,
    GuestUnreachable,
    InvalidRequest,
    KernelMissing,
    NotFound,
    OperationTimeout,
    TorporError,
    WrongState,
)
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecEvent, ExecId, ExecOutput, ExecSpec
from torpor.model_contexts import (
    CODE_TEMPLATE,
    ContextId,
    ContextInfo,
    ContextSpec,
    Language,
    context_folder,
    context_of,
    default_context,
)

START_LIMIT_S = 420.0
"""Seconds for an interpreter to start; without hardware virtualisation on a busy host it can take a minute."""
_ASK_LIMIT_S = 60.0
_END_LIMIT_S = 20.0
_SAID_BYTES = 64 << 10

Followed = contextlib.AbstractAsyncContextManager[AsyncIterator[ExecEvent]]
"""Enters with what a command does."""


async def create(guest: Guest, spec: ContextSpec) -> ContextInfo:
    """Make a context and return it when its interpreter answers.

    If this is cancelled or fails nothing of it is left.

    Raises:
        KernelMissing: the machine has no interpreter for that language.
        InvalidRequest: there is no such user or folder.
        OperationTimeout: it did not answer in time.
        GuestFailed: it could not be started.
    """
    context_id = ContextId(new_id("ctx"))
    try:
        return await _start(guest, context_id, spec)
    except BaseException:
        await finish(_end(guest, context_id), within_s=_END_LIMIT_S)
        raise


async def default(guest: Guest, language: Language) -> ContextInfo:
    """Return the context that is used when none is named, after making it if it is not there. Raises as `create`."""
    context_id = default_context(language)
    try:
        info = await get(guest, context_id)
        if info.state == "running":
            return await _until_ready(guest, info)
        await _forget(guest, context_id)
    except NotFound:
        pass
    return await _start(guest, context_id, ContextSpec(language=language))


async def list_contexts(guest: Guest) -> list[ContextInfo]:
    """Return the contexts that the guest knows, oldest first."""
    found = (context_of(info) for info in await guest.exec_list())
    return [info for info in found if info is not None]


async def get(guest: Guest, context_id: ContextId) -> ContextInfo:
    """Return one context. Raises `NotFound`."""
    try:
        info = context_of(await guest.exec_get(ExecId(context_id)))
    except (NotFound, InvalidRequest):
        info = None
    if info is None:
        raise NotFound(
            f"the sandbox has no code context {context_id}",
            hint="list them: GET /v1/sandboxes/{id}/contexts",
            context_id=context_id,
        )
    return info


async def running(guest: Guest, context_id: ContextId) -> ContextInfo:
    """Return a context whose program runs, when it is ready. Raises `NotFound`, `WrongState`; as `create` when it fails."""
    info = await get(guest, context_id)
    if info.state != "running":
        raise WrongState(
            f"code context {context_id} is {info.state}; what it knew is gone",
            hint="delete it and make another",
            context_id=context_id,
        )
    return await _until_ready(guest, info)


async def delete(guest: Guest, context_id: ContextId) -> None:
    """End a context and all that runs in it, and forget it. Raises `NotFound`."""
    info = await get(guest, context_id)
    if info.state == "running":
        with contextlib.suppress(
            TorporError, TimeoutError
        ):  # else it is killed, which needs no answer
            async with asyncio.timeout(5):
                await ask(guest, info, {"op": "stop"}, limit_s=5)
    await _end(guest, context_id)


async def interrupt(guest: Guest, context_id: ContextId) -> bool:
    """Interrupt what a context runs; return whether anything ran. Raises as `running`, and `GuestFailed`."""
    info = await running(guest, context_id)
    said = await ask(guest, info, {"op": "interrupt"}, limit_s=_ASK_LIMIT_S)
    return said.get("was_busy") is True


async def restart(guest: Guest, context_id: ContextId) -> ContextInfo:
    """Start a context's interpreter anew: what runs is ended, what had been set is gone, what waits runs after.

    Raises as `running`, and `GuestFailed`.
    """
    info = await running(guest, context_id)
    await ask(guest, info, {"op": "restart"}, limit_s=START_LIMIT_S)
    return await get(guest, context_id)


async def _start(guest: Guest, context_id: ContextId, spec: ContextSpec) -> ContextInfo:
    program = await put_program(guest)
    command = (
        *("python3", "-I", f"{program}/serve.py"),
        *(context_folder(context_id), spec.language),
    )
    started = ExecSpec(command=command, cwd=spec.cwd, env=spec.env, user=spec.user, background=True)
    exec_id = ExecId(context_id)
    followed = guest.exec_run(exec_id, started, output_limit_bytes=_SAID_BYTES)
    return await _when_ready(guest, context_id, spec.language, followed)


async def _until_ready(guest: Guest, info: ContextInfo) -> ContextInfo:
    """Return a context when its program, which somebody else has started, is ready. Raises as `create`."""
    if info.is_ready:
        return info
    return await _when_ready(guest, info.id, info.language, guest.exec_attach(ExecId(info.id)))


async def _when_ready(
    guest: Guest, context_id: ContextId, language: Language, followed: Followed
) -> ContextInfo:
    try:
        async with asyncio.timeout(START_LIMIT_S):
            said = await _first_words(ExecId(context_id), followed)
    except TimeoutError as exc:
        raise OperationTimeout(
            f"timeout: the {language} interpreter did not answer within {START_LIMIT_S:g} s"
        ) from exc
    except InvalidRequest as exc:
        if exc.facts.get("step") != "program":
            raise
        raise _missing(language, "it has no python3") from exc
    if said.get("ready") is not True:
        await _forget(guest, context_id)
        if "missing" in said:
            raise _missing(language, " ".join(str(said["missing"]).split())[:300])
        raise GuestFailed(
            f"the {language} interpreter did not start: {str(said.get('failed'))[:2000]}",
            hint="is there room on the sandbox's disk and in its memory?",
        )
    return await get(guest, context_id)


async def _first_words(exec_id: ExecId, followed: Followed) -> dict[str, Any]:
    """Return the first line that a context's program says."""
    lines = Lines(line_bytes=_SAID_BYTES, total_bytes=_SAID_BYTES)
    stderr = b""
    async with followed as events, closing(events):
        async for event in events:
            if isinstance(event, ExecOutput) and event.stream == "stdout":
                async with closing(lines.feed(event.data)) as objects:
                    async for said in objects:
                        return said
            elif isinstance(event, ExecOutput):
                stderr = (stderr + event.data)[-2000:]
            elif isinstance(event, ExecEnded):
                return {"failed": stderr.decode("utf-8", "replace").strip() or "it said nothing"}
    raise CommandLost(f"{exec_id} sent no end", exec_id=exec_id)


def _missing(language: Language, why: str) -> KernelMissing:
    return KernelMissing(
        f"the sandbox has no {language} interpreter for code contexts: {why}",
        hint=f"make the sandbox from the template `{CODE_TEMPLATE}` (torpor template build {CODE_TEMPLATE}), "
        "or install Debian's python3-ipykernel in it",
        language=language,
        template=CODE_TEMPLATE,
    )


async def _end(guest: Guest, context_id: ContextId) -> None:
    """Kill a context's program with all that runs in it, wait for its end, and leave nothing of it."""
    exec_id = ExecId(context_id)
    try:
        await guest.exec_signal(exec_id, 9)
        async with (
            asyncio.timeout(_END_LIMIT_S),
            guest.exec_attach(exec_id) as events,
            closing(events) as followed,
        ):
            async for event in followed:
                if isinstance(event, ExecEnded):
                    break
    except (NotFound, CommandLost):
        pass
    except TimeoutError as exc:
        raise OperationTimeout(f"timeout: code context {context_id} does not end") from exc
    await _forget(guest, context_id)


async def _forget(guest: Guest, context_id: ContextId) -> None:
    """Leave nothing of a context that has ended."""
    with contextlib.suppress(NotFound):
        await guest.remove(context_folder(context_id), recursive=True)
    if "exec.drop" in guest.info.capabilities:
        with contextlib.suppress(NotFound, GuestUnreachable):
            await guest.exec_drop(ExecId(context_id))
