"""/pandastack/v1/sandboxes/{sandbox}/fs…: files in a guest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import APIRouter, Request, Response

from torpor.base.aio import closing
from torpor.errors import InvalidRequest, NotFound
from torpor.model import FileInfo, SandboxId
from torpor.sandboxes.port import EnginePort
from torpor.server.compat.deps import TheSandbox
from torpor.server.compat.dispatch import PREFIX
from torpor.server.query import GuestPath
from torpor.server.replies import Reply, Streamed, streamed
from torpor.server.routes.deps import FAILURES, Engine, streams
from torpor.server.routes.files import RAW
from torpor.server.wire import Wire

router = APIRouter(
    prefix=f"{PREFIX}/v1/sandboxes/{{sandbox}}/fs", tags=["pandastack"], responses=FAILURES
)


class FileTold(Wire):
    """One name in the guest's file system."""

    name: str
    path: str
    is_dir: bool
    size: int
    mode: str
    mtime: int

    @staticmethod
    def of(info: FileInfo) -> FileTold:
        """Return `info` as JSON has it."""
        return FileTold(
            name=info.name,
            path=info.path,
            is_dir=info.kind == "dir",
            size=info.size_bytes,
            mode=f"{info.mode:04o}",
            mtime=int(info.modified_at.timestamp()),
        )


class FilesTold(Wire):
    """The names in a folder, sorted."""

    entries: list[FileTold]


class WrittenTold(Wire):
    """A file that was written."""

    path: str
    bytes: int


@router.get(
    "", response_class=Response, responses=streams("application/octet-stream", "The file's bytes.")
)
async def pandastack_read_file(info: TheSandbox, path: GuestPath, engine: Engine) -> Streamed:
    """Stream a file's bytes; if they cannot be had to the end, the connection is cut."""
    return await streamed(_read(engine, info.id, path), media_type="application/octet-stream")


async def _read(
    engine: EnginePort, sandbox_id: SandboxId, path: str
) -> AsyncGenerator[bytes, None]:
    async with engine.guest(sandbox_id) as guest, closing(guest.read(path)) as chunks:
        async for chunk in chunks:
            yield chunk


@router.put("", response_model=WrittenTold, openapi_extra=RAW)
async def pandastack_write_file(
    info: TheSandbox, path: GuestPath, request: Request, engine: Engine
) -> Reply:
    """Write the body to a file, at once when all of it has arrived; missing folders are made."""
    async with engine.guest(info.id) as guest:
        made = await guest.write(path, _body(request))
    return Reply(WrittenTold(path=made.path, bytes=made.size_bytes))


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


@router.delete("", status_code=204)
async def pandastack_remove_file(info: TheSandbox, path: GuestPath, engine: Engine) -> Response:
    """Remove a file, a symlink or a folder with all that is in it."""
    async with engine.guest(info.id) as guest:
        await guest.remove(path, recursive=True)
    return Response(status_code=204)


@router.get("/dir", response_model=FilesTold)
async def pandastack_list_dir(info: TheSandbox, path: GuestPath, engine: Engine) -> Reply:
    """List a folder."""
    async with engine.guest(info.id) as guest:
        found = await guest.list_dir(path)
    return Reply(FilesTold(entries=[FileTold.of(item) for item in found]))


@router.get("/stat", response_model=FileTold)
async def pandastack_stat_file(info: TheSandbox, path: GuestPath, engine: Engine) -> Reply:
    """Return what a path is; one that leads through a file is not there."""
    async with engine.guest(info.id) as guest:
        try:
            found = await guest.stat(path)
        except InvalidRequest as exc:
            raise NotFound(exc.message, path=path) from exc
    return Reply(FileTold.of(found))
