"""All routes of the part."""

from __future__ import annotations

from torpor.server.compat import (
    contexts,
    databases,
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
    databases.router,
    contexts.router,
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
