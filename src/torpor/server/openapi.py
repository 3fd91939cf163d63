"""The OpenAPI document as text; `python -m torpor.server.openapi` prints it for docs/reference/openapi.json."""

from __future__ import annotations

import json
import sys
from typing import cast

from torpor.sandboxes.port import EnginePort
from torpor.server.app import create_app


def document() -> str:
    """Return the document that describes every route; the same for the same code."""
    app = create_app(cast(EnginePort, None))  # no route is called
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
