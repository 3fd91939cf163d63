"""/pandastack/v1/sandboxes/{sandbox}/logs: the console, line by line."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query, Response

from torpor.base.aio import closing
from torpor.errors import InvalidRequest
from torpor.model import SandboxId
from torpor.sandboxes.port import EnginePort
from torpor.server.compat.deps import TheSandbox
from torpor.server.compat.dispatch import PREFIX
from torpor.server.replies import Streamed, sse, streamed
from torpor.server.routes.deps import FAILURES, Engine, streams

LINE_LIMIT_BYTES = 64 << 10
"""A console line that goes on longer is told in pieces."""

router = APIRouter(
    prefix=f"{PREFIX}/v1/sandboxes/{{sandbox}}", tags=["pandastack"], responses=FAILURES
)


@router.get(
    "/logs",
    response_class=Response,
    responses=streams("text/plain", "The log; with `follow` events of text/event-stream."),
)
async def pandastack_get_logs(
    info: TheSandbox,
    engine: Engine,
    stream: Annotated[str, Query(description="`stdout`, `stderr` or `both`.")] = "both",
    follow: bool = False,
) -> Streamed:
    """Return the console log as text, or with `follow` one event `{"line"}` a line until the machine ends.

    The console is one stream and counts as `stdout`; `stderr` alone has nothing in it.
    """
    if stream not in ("stdout", "stderr", "both"):
        raise InvalidRequest(f"stream is {stream[:40]!r}; stdout, stderr or both is wanted")
    if follow:
        return await streamed(
            _lines(engine, info.id, silent=stream == "stderr"),
            media_type="text/event-stream; charset=utf-8",
            first_within_s=1.0,
            keepalive=b": keepalive\n\n",
        )
    return await streamed(
        _text(engine, info.id, silent=stream == "stderr"), media_type="text/plain; charset=utf-8"
    )


async def _text(
    engine: EnginePort, sandbox_id: SandboxId, *, silent: bool
) -> AsyncGenerator[bytes, None]:
    async with closing(engine.console(sandbox_id)) as chunks:
        async for data in chunks:
            if not silent:
                yield data


async def _lines(
    engine: EnginePort, sandbox_id: SandboxId, *, silent: bool
) -> AsyncGenerator[bytes, None]:
    held = b""
    async with closing(engine.console(sandbox_id, follow=True)) as chunks:
        async for data in chunks:
            *whole, held = (held + data).split(b"\n")
            if len(held) > LINE_LIMIT_BYTES:
                whole.append(held)
                held = b""
            for line in [] if silent else whole:
                yield _event(line)
    if held and not silent:
        yield _event(held)


def _event(line: bytes) -> bytes:
    return sse(None, {"line": line.decode("utf-8", "replace").rstrip("\r")})
