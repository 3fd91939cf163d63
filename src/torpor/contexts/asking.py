"""One request to a context's program: a command in the guest that hands it on and brings the answers back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from torpor.base.aio import closing, finish
from torpor.base.ids import new_id
from torpor.contexts.lines import Lines, refusal
from torpor.errors import CommandLost, Conflict, OperationTimeout, TorporError, WrongState
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecId, ExecOutput, ExecSpec
from torpor.model_contexts import ContextInfo, context_folder

_STDIN_CHUNK_BYTES = 256 << 10
_GONE = 3
"""Exit code of `ask.py` when nobody is behind the door."""
_SPOOL_BYTES = 128 << 20


async def ask(
    guest: Guest, context: ContextInfo, request: Mapping[str, Any], *, limit_s: float
) -> dict[str, Any]:
    """Return the answer to a request that has one.

    Raises:
        OperationTimeout: none came in time.
        WrongState: the context's program is gone.
        Busy, GuestFailed: it refused.
    """
    try:
        async with asyncio.timeout(limit_s), closing(asking(guest, context, request)) as lines:
            async for said in lines:
                if said.get("kind") == "refused":
                    raise refusal(said)
                if said.get("kind") == "done":
                    return said
    except TimeoutError as exc:
        raise OperationTimeout(
            f"timeout: code context {context.id} did not answer within {limit_s:g} s",
            hint="restart or delete it",
            context_id=context.id,
        ) from exc
    raise lost(context)


async def asking(
    guest: Guest, context: ContextInfo, request: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the answers to a request. Closing this lets go of it, and what was begun goes on.

    Raises:
        WrongState: the context's program is gone.
        GuestFailed: an answer makes no sense.
        CommandLost: the machine lost the request.
    """
    exec_id = ExecId(new_id("exec"))
    spec = ExecSpec(
        command=(
            *("python3", "-I", "-S", f"{context.program}/ask.py"),
            context_folder(context.id),
        ),
        cwd="/",
        user=context.user,
        stdin=True,
    )
    lines = Lines()
    is_over, seen = False, 0
    try:
        async with (
            guest.exec_run(exec_id, spec, output_limit_bytes=_SPOOL_BYTES) as events,
            closing(events) as followed,
        ):
            await _feed(guest, exec_id, json.dumps(request).encode("ascii"))
            async for event in followed:
                if isinstance(event, ExecOutput) and event.stream == "stdout":
                    seen += len(event.data)
                    async with closing(lines.feed(event.data)) as objects:
                        async for said in objects:
                            yield said
                elif isinstance(event, ExecEnded):
                    is_over = True
                    if event.info.exit_code == _GONE:
                        raise WrongState(
                            f"code context {context.id} does not answer; its program is gone",
                            hint="delete it and make another",
                            context_id=context.id,
                        )
                    return
    finally:
        await finish(_let_go(guest, exec_id, seen=seen, is_over=is_over), within_s=10)


async def _feed(guest: Guest, exec_id: ExecId, data: bytes) -> None:
    with contextlib.suppress(Conflict):  # it ended without reading, which its exit code explains
        for begin in range(0, len(data), _STDIN_CHUNK_BYTES):
            end = begin + _STDIN_CHUNK_BYTES
            await guest.exec_stdin(exec_id, data[begin:end], eof=end >= len(data))


async def _let_go(guest: Guest, exec_id: ExecId, *, seen: int, is_over: bool) -> None:
    """End the command that hands on, and have the agent keep nothing of it, nor of what it has said."""
    with contextlib.suppress(TorporError):  # the machine is gone, or the command is
        if not is_over:
            await guest.exec_signal(exec_id, 9)
            async with (
                guest.exec_attach(exec_id, stdout_offset=seen) as events,
                closing(events) as followed,
            ):
                async for _ in followed:
                    pass
        if "exec.drop" in guest.info.capabilities:
            await guest.exec_drop(exec_id)


def lost(context: ContextInfo) -> CommandLost:
    """Return the error for a request that got no last answer."""
    return CommandLost(
        f"code context {context.id} ended while it was asked; how that ended is not known",
        hint="delete it and make another",
        context_id=context.id,
    )
