"""/v1/templates: bootable images, and building them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

from fastapi import APIRouter, Response

from torpor.base.aio import closing
from torpor.base.ids import check_name
from torpor.errors import InvalidRequest
from torpor.sandboxes.port import EnginePort
from torpor.server.pages import Cursor, Limit, page_of
from torpor.server.replies import Reply, Streamed, event_stream, sse
from torpor.server.routes.deps import EVENTS, FAILURES, Engine, streams
from torpor.server.wire import BuildEventWire, BuildRequest, TemplateListWire, TemplateWire
from torpor.templates.oci.registry import check_reference
from torpor.templates.recipe import shipped_names

_TREES = ("rootfs_path", "image", "dockerfile_path")

router = APIRouter(prefix="/v1/templates", tags=["templates"], responses=FAILURES)


@router.get("", response_model=TemplateListWire)
async def list_templates(engine: Engine, limit: Limit, cursor: Cursor) -> Reply:
    """List the built templates, by name."""
    found, after = page_of(await engine.templates(), lambda info: info.name, limit, cursor)
    items = [TemplateWire.of(info) for info in found]
    return Reply(TemplateListWire(items=items, next_cursor=after))


@router.post(
    "/build",
    response_class=Response,
    responses=streams(EVENTS, "`progress`; `done` or `error` last."),
)
async def build_template(body: BuildRequest, engine: Engine) -> Streamed:
    """Build a template and stream events: `progress`, and `done` (with the template) or `error` last."""
    given = [text for text in (body.name, body.recipe_path, body.recipe) if text is not None]
    if len(given) != 1:
        raise InvalidRequest("give exactly one of `name`, `recipe_path` and `recipe`")
    if body.recipe_path is not None and not Path(body.recipe_path).is_absolute():
        raise InvalidRequest(f"recipe_path {body.recipe_path!r} is not absolute")
    await asyncio.to_thread(_check_tree, body)
    return await event_stream(_build(engine, body), first_within_s=2.0)


def _check_tree(body: BuildRequest) -> None:
    if body.context_path is not None and body.dockerfile_path is None:
        raise InvalidRequest("context_path needs dockerfile_path beside it")
    given = [key for key in _TREES if getattr(body, key) is not None]
    if not given:
        if body.disk_gib is not None:
            raise InvalidRequest(
                "disk_gib needs rootfs_path, image or dockerfile_path beside it",
                hint="a recipe has its own",
            )
        return
    if len(given) > 1:
        raise InvalidRequest(f"give one of {' and '.join(given)}, not both")
    if body.name is None:
        raise InvalidRequest(f"{given[0]} needs name beside it: what the template is called")
    check_name(body.name, "template")
    if body.name in shipped_names():
        raise InvalidRequest(f"{body.name!r} is a shipped recipe's name", hint="choose another")
    if body.image is not None and not Path(body.image).is_absolute():
        check_reference(body.image)
    for key in ("rootfs_path", "dockerfile_path", "context_path"):
        path = getattr(body, key)
        if path is not None and not Path(path).is_absolute():
            raise InvalidRequest(f"{key} {path!r} is not absolute")


async def _build(engine: EnginePort, body: BuildRequest) -> AsyncGenerator[bytes, None]:
    async with (
        _source(body) as source,
        closing(engine.build_template(source, force=body.force)) as events,
    ):
        async for event in events:
            yield sse(
                "done" if event.template is not None else "progress", BuildEventWire.of(event)
            )


def tree_recipe(body: BuildRequest) -> str | None:
    """Return the recipe for a root file system, an image or a Dockerfile; None: none is asked for.

    TOML writes strings as JSON does.
    """
    lines = [f"name = {json.dumps(body.name)}"]
    if body.rootfs_path is not None:
        lines.append(f"rootfs = {json.dumps(body.rootfs_path)}")
    elif body.image is not None:
        lines.append(f"image = {json.dumps(body.image)}")
    elif body.dockerfile_path is not None:
        lines.append(f"dockerfile = {json.dumps(body.dockerfile_path)}")
        if body.context_path is not None:
            lines.append(f"context = {json.dumps(body.context_path)}")
    else:
        return None
    if body.disk_gib is not None:
        lines.append(f"disk_gib = {body.disk_gib}")
    return "\n".join(lines) + "\n"


@contextlib.asynccontextmanager
async def _source(body: BuildRequest) -> AsyncIterator[str | Path]:
    """Enter with what to build; a recipe that came as text is in a file while the context lasts."""
    text = tree_recipe(body) or body.recipe
    if text is None:
        yield Path(body.recipe_path) if body.recipe_path is not None else body.name or ""
        return
    scratch = await asyncio.to_thread(tempfile.mkdtemp, prefix="torpor-recipe-")
    try:
        recipe = Path(scratch) / "recipe.toml"
        await asyncio.to_thread(recipe.write_text, text, encoding="utf-8")
        yield recipe
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


@router.get("/{name}", response_model=TemplateWire)
async def get_template(name: str, engine: Engine) -> Reply:
    """Return one built template."""
    return Reply(TemplateWire.of(await engine.template(name)))


@router.delete("/{name}", status_code=204)
async def delete_template(name: str, engine: Engine) -> Response:
    """Forget a template; refused while a sandbox needs it."""
    await engine.delete_template(name)
    return Response(status_code=204)
