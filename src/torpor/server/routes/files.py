"""/v1/sandboxes/{id}/fs…: files in a guest, streamed both ways."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from torpor.base.aio import closing
from torpor.model import SandboxId
from torpor.sandboxes.port import EnginePort
from torpor.server.query import GuestPath, check_path
from torpor.server.replies import (
    Last,
    Reply,
    Streamed,
    event_stream,
    json_line_error,
    sse,
    streamed,
    to_json,
)
from torpor.server.routes.deps import EVENTS, FAILURES, Engine, streams
from torpor.server.wire_files import (
    FileEventWire,
    FileListWire,
    FileWire,
    MkdirRequest,
    RenameRequest,
    UnpackedWire,
    parse_mode,
)

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/fs", tags=["files"], responses=FAILURES)

RAW = {
    "requestBody": {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    }
}


@router.get(
    "", response_class=Response, responses=streams("application/octet-stream", "The file's bytes.")
)
async def read_file(
    sandbox_id: str,
    path: GuestPath,
    engine: Engine,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int | None, Query(ge=0, description="Bytes at most.")] = None,
) -> Streamed:
    """Stream a file's bytes; if they cannot be had to the end, the connection is cut."""
    return await streamed(
        _read(engine, SandboxId(sandbox_id), path, offset, limit),
        media_type="application/octet-stream",
    )


async def _read(
    engine: EnginePort, sandbox_id: SandboxId, path: str, offset: int, limit: int | None
) -> AsyncGenerator[bytes, None]:
    async with (
        engine.guest(sandbox_id) as guest,
        closing(guest.read(path, offset=offset, limit_bytes=limit)) as chunks,
    ):
        async for chunk in chunks:
            yield chunk


@router.put("", response_model=FileWire, openapi_extra=RAW)
async def write_file(
    sandbox_id: str,
    path: GuestPath,
    request: Request,
    engine: Engine,
    append: bool = False,
    mode: Annotated[str | None, Query(description="Octal, for example 0644.")] = None,
    user: str | None = None,
) -> Reply:
    """Write the body to a file, at once when all of it has arrived; missing folders are made."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        info = await guest.write(
            path,
            _body(request),
            append=append,
            mode=None if mode is None else parse_mode(mode),
            user=user,
        )
    return Reply(FileWire.of(info))


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


@router.delete("", status_code=204)
async def remove_file(
    sandbox_id: str, path: GuestPath, engine: Engine, recursive: bool = False
) -> Response:
    """Remove a file, a symlink or a folder; one that is not empty needs `recursive`."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        await guest.remove(path, recursive=recursive)
    return Response(status_code=204)


@router.get("/dir", response_model=FileListWire)
async def list_dir(sandbox_id: str, path: GuestPath, engine: Engine) -> Reply:
    """List a folder."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        found = await guest.list_dir(path)
    return Reply(FileListWire(entries=[FileWire.of(info) for info in found]))


@router.get("/stat", response_model=FileWire)
async def stat_file(sandbox_id: str, path: GuestPath, engine: Engine) -> Reply:
    """Return what a path is; a symlink is not followed."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        return Reply(FileWire.of(await guest.stat(path)))


@router.post("/mkdir", status_code=201, response_model=FileWire)
async def make_dir(sandbox_id: str, body: MkdirRequest, engine: Engine) -> Reply:
    """Make a folder; with `parents` those above it too, and an existing one is no error."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        info = await guest.mkdir(
            check_path(body.path), parents=body.parents, mode=parse_mode(body.mode)
        )
    return Reply(FileWire.of(info), 201)


@router.post("/rename", response_model=FileWire)
async def rename_file(sandbox_id: str, body: RenameRequest, engine: Engine) -> Reply:
    """Rename within one file system of the guest, replacing a file at `target`."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        return Reply(
            FileWire.of(await guest.rename(check_path(body.source), check_path(body.target)))
        )


@router.get(
    "/walk",
    response_class=Response,
    responses=streams("application/x-ndjson", "One `FileWire` a line."),
)
async def walk_dir(
    sandbox_id: str,
    path: GuestPath,
    engine: Engine,
    max_depth: Annotated[int | None, Query(ge=1)] = None,
) -> Streamed:
    """Stream everything below a folder as JSON lines; a failure on the way is the last line, with `error`."""
    return await streamed(
        _walk(engine, SandboxId(sandbox_id), path, max_depth),
        media_type="application/x-ndjson",
        keepalive=b"\n",
        on_error=json_line_error,
    )


async def _walk(
    engine: EnginePort, sandbox_id: SandboxId, path: str, max_depth: int | None
) -> AsyncGenerator[bytes, None]:
    async with (
        engine.guest(sandbox_id) as guest,
        closing(guest.walk(path, max_depth=max_depth)) as infos,
    ):
        async for info in infos:
            yield to_json(FileWire.of(info)) + b"\n"


@router.get(
    "/events",
    response_class=Response,
    responses=streams(EVENTS, "`following`, then `change` with a `FileEventWire`, `gone` last."),
)
async def follow_dir(
    sandbox_id: str,
    path: GuestPath,
    engine: Engine,
    recursive: Annotated[bool, Query(description="With all folders below it.")] = False,
) -> Streamed:
    """Stream what happens in a folder from now on, until it is removed or moved away."""
    return await event_stream(_events(engine, SandboxId(sandbox_id), path, recursive))


async def _events(
    engine: EnginePort, sandbox_id: SandboxId, path: str, recursive: bool
) -> AsyncGenerator[bytes, None]:
    async with (
        engine.guest(sandbox_id) as guest,
        guest.follow_dir(path, recursive=recursive) as events,
    ):
        yield sse("following", {"path": path})
        async for event in events:
            yield sse("change", FileEventWire.of(event))
    yield Last(sse("gone", {"path": path}))


@router.get(
    "/archive",
    response_class=Response,
    responses=streams("application/x-tar", "An uncompressed tar."),
)
async def pack_dir(sandbox_id: str, path: GuestPath, engine: Engine) -> Streamed:
    """Stream a folder as an uncompressed tar whose names are relative to it."""
    return await streamed(
        _pack(engine, SandboxId(sandbox_id), path), media_type="application/x-tar"
    )


async def _pack(
    engine: EnginePort, sandbox_id: SandboxId, path: str
) -> AsyncGenerator[bytes, None]:
    async with engine.guest(sandbox_id) as guest, closing(guest.pack(path)) as chunks:
        async for chunk in chunks:
            yield chunk


@router.put("/archive", response_model=UnpackedWire, openapi_extra=RAW)
async def unpack_dir(
    sandbox_id: str, path: GuestPath, request: Request, engine: Engine, user: str | None = None
) -> Reply:
    """Unpack an uncompressed tar below a folder, which is made if it is missing."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        entries = await guest.unpack(path, _body(request), user=user)
    return Reply(UnpackedWire(entries=entries))
