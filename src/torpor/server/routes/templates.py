"""/v1/templates: bootable images, and building them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

from fastapi import APIRouter, Response

from torpor.errors import InvalidRequest
from torpor.sandboxes.port import EnginePort
from torpor.server.replies import Reply, Streamed, event_stream, sse
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.wire import BuildEventWire, BuildRequest, TemplateListWire, TemplateWire

router = APIRouter(prefix="/v1/templates", tags=["templates"], responses=FAILURES)


@router.get("", response_model=TemplateListWire)
async def list_templates(engine: Engine) -> Reply:
    """List the built templates, by name."""
    found = await engine.templates()
    return Reply(TemplateListWire(items=[TemplateWire.of(info) for info in found]))


@router.post("/build", response_class=Response)
async def build_template(body: BuildRequest, engine: Engine) -> Streamed:
    """Build a template and stream events: `progress`, and `done` (with the template) or `error` last."""
    given = [text for text in (body.name, body.recipe_path, body.recipe) if text is not None]
    if len(given) != 1:
        raise InvalidRequest("give exactly one of `name`, `recipe_path` and `recipe`")
    if body.recipe_path is not None and not Path(body.recipe_path).is_absolute():
        raise InvalidRequest(f"recipe_path {body.recipe_path!r} is not absolute")
    return await event_stream(_build(engine, body), first_within_s=2.0)


async def _build(engine: EnginePort, body: BuildRequest) -> AsyncGenerator[bytes, None]:
    with tempfile.TemporaryDirectory(prefix="torpor-recipe-") as scratch:
        source: str | Path = body.name or ""
        if body.recipe_path is not None:
            source = Path(body.recipe_path)
        elif body.recipe is not None:
            source = Path(scratch) / "recipe.toml"
            source.write_text(body.recipe, encoding="utf-8")
        async for event in engine.build_template(source, force=body.force):
            yield sse(
                "done" if event.template is not None else "progress", BuildEventWire.of(event)
            )


@router.get("/{name}", response_model=TemplateWire)
async def get_template(name: str, engine: Engine) -> Reply:
    """Return one built template."""
    return Reply(TemplateWire.of(await engine.template(name)))


@router.delete("/{name}", status_code=204)
async def delete_template(name: str, engine: Engine) -> Response:
    """Forget a template; refused while a sandbox needs it."""
    await engine.delete_template(name)
    return Response(status_code=204)
