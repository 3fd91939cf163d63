"""/v1/memory: what agents know. One route a verb; see `torpor.memory.verbs` for what each does."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from torpor.base.plain import to_plain
from torpor.memory.jsonl import written
from torpor.memory.verbs import VERBS, Items, Verb
from torpor.model_memory import ChainReport, Exported, SpaceInfo
from torpor.sandboxes.memories import AgentMemories
from torpor.server.replies import Reply, Streamed, streamed
from torpor.server.routes.deps import FAILURES, Engine, streams
from torpor.server.routes.files import RAW
from torpor.server.wire_memory import EmbeddedWire, SpaceSelector, request_model, where_of

router = APIRouter(prefix="/v1/memory", tags=["memory"], responses=FAILURES)

_CHUNK_BYTES = 256 << 10


def _add(verb: type[Verb]) -> None:
    """Add the route of a verb: GET with a query where that is natural, else POST with a body."""
    request: Any = request_model(verb)

    async def answer(body: Any, engine: Engine) -> Reply:
        return Reply(await engine.memories.call(where_of(body), body))

    endpoint: Callable[..., Coroutine[Any, Any, Reply]] = answer
    endpoint.__annotations__["body"] = Annotated[request, Query()] if verb.reads_by_get else request
    router.add_api_route(
        f"/{verb.name.replace('.', '/')}",
        endpoint,
        methods=["GET" if verb.reads_by_get else "POST"],
        response_model=verb.answer,
        name=f"memory_{verb.name.replace('.', '_')}",
        description=verb.__doc__,
    )


for _verb in VERBS.values():
    _add(_verb)


@router.get("/spaces", response_model=Items[SpaceInfo])
async def memory_spaces(engine: Engine) -> Reply:
    """List the agents that have a memory here, by name."""
    return Reply({"items": to_plain(await engine.memories.spaces())})


@router.get("/space", response_model=SpaceInfo)
async def memory_space(engine: Engine, selector: Annotated[SpaceSelector, Query()]) -> Reply:
    """Return what is so about one space: agent, branch, epoch and last transaction."""
    return Reply(to_plain(await engine.memories.space(where_of(selector))))


@router.get("/verify_chain", response_model=ChainReport)
async def memory_verify_chain(engine: Engine, expect: str | None = None) -> Reply:
    """Compare every row of the memory with its hash chain; `expect` is a head hash that was kept elsewhere."""
    return Reply(to_plain(await engine.memories.whole.verify_chain(expect=expect)))


@router.post("/embed_missing", response_model=EmbeddedWire)
async def memory_embed_missing(engine: Engine) -> Reply:
    """Embed what the daemon's embedder has not embedded yet."""
    return Reply(EmbeddedWire(embedded=await engine.memories.whole.embed_missing()))


@router.get(
    "/export",
    response_class=Response,
    responses=streams("application/x-ndjson", "docs/formats/memory-export.md"),
)
async def memory_export(engine: Engine) -> Streamed:
    """Stream the memory of all agents as JSON lines, as of one moment."""
    return await streamed(
        _export(engine.memories), media_type="application/x-ndjson", first_within_s=600.0
    )


async def _export(memories: AgentMemories) -> AsyncGenerator[bytes, None]:
    folder = await asyncio.to_thread(_scratch, memories)
    try:
        path = Path(folder.name) / "memory.jsonl"
        await memories.whole.export(path)
        file = await asyncio.to_thread(path.open, "rb")
        try:
            while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield chunk
        finally:
            await asyncio.to_thread(file.close)
    finally:
        await asyncio.to_thread(folder.cleanup)


@router.put("/import", response_model=Exported, openapi_extra=RAW)
async def memory_import(request: Request, engine: Engine, verify: bool = True) -> Reply:
    """Read an export into the memory, which must be empty: all of it or nothing.

    Without `verify`, for an export that a salvage saved, what cannot be is left out and counted as `lost`.
    """
    folder = await asyncio.to_thread(_scratch, engine.memories)
    try:
        path = Path(folder.name) / "memory.jsonl"
        with written(path):
            file = await asyncio.to_thread(path.open, "wb")
            try:
                await _received(request, file)
            finally:
                await asyncio.to_thread(file.close)
        done = to_plain(await engine.memories.whole.import_(path, verify=verify))
    finally:
        await asyncio.to_thread(folder.cleanup)
    return Reply(done | {"path": ""})


async def _received(request: Request, file: BinaryIO) -> None:
    async for chunk in request.stream():
        await asyncio.to_thread(file.write, chunk)


def _scratch(memories: AgentMemories) -> tempfile.TemporaryDirectory[str]:
    """Make a folder for one export or import; it goes with the request, and with the next start of the daemon."""
    return tempfile.TemporaryDirectory(prefix="memory.", dir=memories.scratch)
