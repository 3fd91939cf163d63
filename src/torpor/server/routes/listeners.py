"""/v1/listeners: the daemon also listens on TCP for as long as somebody holds this stream open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from torpor.errors import HostNotReady
from torpor.server.listen import TCP_PORT
from torpor.server.replies import Streamed, event_stream, sse
from torpor.server.routes.deps import EVENTS, FAILURES, streams
from torpor.server.wire import Wire

router = APIRouter(prefix="/v1/listeners", tags=["system"], responses=FAILURES)

OpenTcp = Callable[[str, int, list[str]], AbstractAsyncContextManager[int]]
"""Enters with the port that it listens on."""


class ListenerRequest(Wire):
    """What POST /v1/listeners takes."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="0: any that is free.")] = TCP_PORT
    allowed_hosts: Annotated[
        list[str], Field(max_length=100, description="Names beside `localhost` and addresses.")
    ] = Field(default_factory=list)


@router.post(
    "", response_class=Response, responses=streams(EVENTS, "`listening`, then until it ends.")
)
async def open_listener(body: ListenerRequest, request: Request) -> Streamed:
    """Listen on TCP too, until the client hangs up; the event `listening` has the `host` and `port`."""
    opener: OpenTcp | None = request.app.state.open_tcp
    if opener is None:
        raise HostNotReady("this daemon cannot listen on TCP", hint="start it anew")
    return await event_stream(_listening(opener, body))


async def _listening(opener: OpenTcp, body: ListenerRequest) -> AsyncGenerator[bytes, None]:
    async with opener(body.host, body.port, body.allowed_hosts) as port:
        yield sse("listening", {"host": body.host, "port": port})
        await asyncio.Event().wait()
