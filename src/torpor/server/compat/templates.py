"""/pandastack/v1/templates: templates, building them from what is sent, and the builds' logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from shutil import move
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from torpor.access.principal import Principal
from torpor.base.aio import closing
from torpor.base.ids import check_name
from torpor.errors import InvalidRequest
from torpor.server.compat.builds import CONTEXT, DOCKERFILE, ROOTFS, Build, BuildDesk
from torpor.server.compat.deps import Builds
from torpor.server.compat.dispatch import PREFIX
from torpor.server.compat.upload import Form, read_form
from torpor.server.compat.wire import TemplatesTold, TemplateTold
from torpor.server.replies import Last, Reply, Streamed, streamed
from torpor.server.routes.deps import EVENTS, FAILURES, Engine, streams
from torpor.server.routes.tokens import Me
from torpor.server.wire import Wire
from torpor.templates.oci.registry import check_reference
from torpor.templates.recipe import shipped_names

router = APIRouter(prefix=f"{PREFIX}/v1/templates", tags=["pandastack"], responses=FAILURES)

SIZE_MIB, SIZE_MOST_MIB = 1024, 4 << 20
FORM = {
    "requestBody": {
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "size_mb": {"type": "string"},
                        "rootfs": {"type": "string", "format": "binary"},
                        "image_ref": {"type": "string"},
                        "dockerfile": {"type": "string"},
                    },
                }
            }
        }
    }
}


class BuildTold(Wire):
    """One build."""

    id: str
    name: str
    status: Annotated[str, Field(description="`queued building baking done failed`")]
    error: str | None
    started_at: str
    ended_at: str | None
    size_mb: int
    bytes: int
    image_ref: None = None

    @staticmethod
    def of(build: Build) -> BuildTold:
        """Return `build` as JSON has it."""
        return BuildTold(
            id=build.id,
            name=build.name,
            status=build.status,
            error=build.error,
            started_at=build.started_at,
            ended_at=build.ended_at,
            size_mb=build.size_mb,
            bytes=build.bytes,
        )


class BuildsTold(Wire):
    """Builds, the newest first."""

    items: list[BuildTold]


@router.get("", response_model=TemplatesTold)
async def pandastack_list_templates(engine: Engine) -> Reply:
    """List the built templates."""
    shipped = await asyncio.to_thread(shipped_names)
    items = [TemplateTold.of(t, is_shipped=t.name in shipped) for t in await engine.templates()]
    return Reply(TemplatesTold(items=items))


@router.post("/build", status_code=202, response_model=BuildTold, openapi_extra=FORM)
async def pandastack_build_template(request: Request, builds: Builds, me: Me) -> Reply:
    """Begin the build of a template from a root file system (a tar), a registry's image or a Dockerfile."""
    build_id, folder = await builds.open_folder()
    try:
        content_type = request.headers.get("content-type", "")
        form = await read_form(content_type, request.stream(), folder / ROOTFS, folder / CONTEXT)
        name, size_mb, image = await asyncio.to_thread(_asked, form, folder)
        build = await builds.begin(
            build_id,
            name,
            workspace=me.workspace,
            size_mb=size_mb,
            size_bytes=(form.rootfs_bytes or 0) + form.context_bytes,
            image=image,
        )
    except BaseException:
        await builds.drop_folder(build_id)
        raise
    return Reply(BuildTold.of(build), 202)


def _asked(form: Form, folder: Path) -> tuple[str, int, str | None]:
    """Return the template's name, its disk's size and a registry's image; a Dockerfile is put into `folder`."""
    image, text = form.fields.get("image_ref"), form.fields.get("dockerfile")
    if image is not None:
        check_reference(image)
    elif text is not None:
        _put_dockerfile(form, folder, text)
    elif form.rootfs_bytes is None:
        raise InvalidRequest(
            "the form has no file rootfs, no image_ref and no dockerfile",
            hint="rootfs is a tar of a root file system",
        )
    name = check_name(form.fields.get("name", ""), "template")
    if name in shipped_names():
        raise InvalidRequest(
            f"{name!r} is the name of a template that comes with the daemon", hint="choose another"
        )
    size = form.fields.get("size_mb") or str(SIZE_MIB)
    if not (size.isascii() and size.isdecimal() and 1 <= int(size[:12]) <= SIZE_MOST_MIB):
        raise InvalidRequest(f"size_mb is {size[:40]!r}; 1 to {SIZE_MOST_MIB} is wanted")
    return name, int(size), image


def _put_dockerfile(form: Form, folder: Path, text: str) -> None:
    (folder / CONTEXT).mkdir(exist_ok=True)
    (folder / DOCKERFILE).write_text(text, "utf-8")
    if form.rootfs_bytes is not None:  # a file of the context that happens to be called so
        move(folder / ROOTFS, folder / CONTEXT / "rootfs")


def _seen_by(me: Principal) -> str | None:
    return None if me.sees_all else me.workspace


@router.get("/builds", response_model=BuildsTold)
async def pandastack_list_builds(builds: Builds, me: Me) -> Reply:
    """List the builds that were asked for here."""
    return Reply(BuildsTold(items=[BuildTold.of(build) for build in builds.all(_seen_by(me))]))


@router.get("/builds/{build_id}", response_model=BuildTold)
async def pandastack_get_build(build_id: str, builds: Builds, me: Me) -> Reply:
    """Return one build."""
    return Reply(BuildTold.of(builds.get(build_id, _seen_by(me))))


@router.get(
    "/builds/{build_id}/logs",
    response_class=Response,
    responses=streams(EVENTS, "A line each; `done` with `end` last."),
)
async def pandastack_get_build_logs(
    build_id: str,
    builds: Builds,
    me: Me,
    follow: Annotated[bool, Query(description="Go on until the build has ended.")] = False,
) -> Streamed:
    """Return the lines of a build's log so far, or until it has ended."""
    build = builds.get(build_id, _seen_by(me))
    return await streamed(
        _events(builds, build, follow=follow),
        media_type="text/event-stream; charset=utf-8",
        first_within_s=1.0,
        keepalive=b": keepalive\n\n",
    )


async def _events(builds: BuildDesk, build: Build, *, follow: bool) -> AsyncGenerator[bytes, None]:
    async with closing(builds.lines(build.id, follow=follow)) as lines:
        async for line in lines:
            yield b"data: %s\n\n" % _printable(line).encode()
    yield Last(b"event: done\ndata: end\n\n")


def _printable(line: str) -> str:
    """Return a line that stays one line, whatever ends lines for who reads it, and is not the end of the log."""
    text = "".join(c if c.isprintable() else " " for c in line)
    return f"{text}." if text.strip() == "end" else text


@router.get("/{name}", response_model=TemplateTold)
async def pandastack_get_template(name: str, engine: Engine) -> Reply:
    """Return one template."""
    info = await engine.template(name)
    shipped = await asyncio.to_thread(shipped_names)
    return Reply(TemplateTold.of(info, is_shipped=info.name in shipped))


@router.delete("/{name}", status_code=204)
async def pandastack_delete_template(name: str, engine: Engine) -> Response:
    """Forget a template; refused while a sandbox needs it."""
    await engine.delete_template(name)
    return Response(status_code=204)
