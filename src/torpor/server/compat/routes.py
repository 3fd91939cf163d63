"""All routes of the part."""

from __future__ import annotations

from torpor.server.compat import (
    execs,
    files,
    logs,
    ports,
    sandboxes,
    snapshots,
    templates,
    tokens,
    volumes,
)

ROUTERS = (
    sandboxes.router,
    snapshots.router,
    execs.router,
    files.router,
    logs.router,
    ports.router,
    templates.router,
    tokens.router,
    volumes.router,
)
