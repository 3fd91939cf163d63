"""The committed description of the API is the one that the code has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from starlette.routing import BaseRoute, WebSocketRoute

from torpor.errors import catalogue
from torpor.sandboxes.port import EnginePort
from torpor.server.app import create_app
from torpor.server.openapi import document

DOCS = Path(__file__).parents[3] / "docs/reference"


def test_the_committed_document_is_current() -> None:
    assert (DOCS / "openapi.json").read_text() == document(), (
        "run: python -m torpor.server.openapi > docs/reference/openapi.json"
    )


def test_every_operation_has_a_summary_and_the_error_shape() -> None:
    for path, methods in json.loads(document())["paths"].items():
        for method, operation in methods.items():
            what = f"{method} {path}"
            assert operation["description"], what
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorWire"}, what


def test_every_route_is_in_the_reference() -> None:
    text = (DOCS / "rest.md").read_text()
    said = set(re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/(?:v1/|metrics)[^`?]*)`", text))
    real = {
        (method.upper(), path.replace("{sandbox_id}", "{id}"))
        for path, methods in json.loads(document())["paths"].items()
        for method in methods
        if not path.startswith("/pandastack/")  # theirs is another's reference
    } | {("GET", "/v1/openapi.json")}
    assert said == real


def websockets_of(routes: Iterable[BaseRoute]) -> Iterator[str]:
    """Yield the paths of all WebSockets, for which OpenAPI has no words."""
    for route in routes:
        if isinstance(route, WebSocketRoute):
            yield route.path
        router = getattr(route, "original_router", None)  # a later FastAPI keeps it as it was
        if router is not None:
            yield from websockets_of(router.routes)


def test_every_websocket_route_is_in_the_reference() -> None:
    text = (DOCS / "rest.md").read_text()
    said = re.findall(r"^\| `WS (/v1/[^`?]*)` \|", text, re.MULTILINE)
    real = list(websockets_of(create_app(cast(EnginePort, None)).routes))
    assert len(real) > 1
    assert sorted(said) == sorted(path.replace("{sandbox_id}", "{id}") for path in real)


def test_every_exit_code_is_in_the_reference() -> None:
    said = dict(re.findall(r"^\| (\d+) \| `(\w+)`", (DOCS / "cli.md").read_text(), re.MULTILINE))
    assert said == {str(found.exit_code): found.__name__ for found in catalogue()}
