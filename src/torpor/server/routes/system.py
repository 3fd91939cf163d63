"""/v1/health, /v1/version and /v1/doctor: the daemon itself."""

from __future__ import annotations

import os
import platform
from typing import Any

from fastapi import APIRouter

from torpor import __version__
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.wire import HealthWire, VersionWire

router = APIRouter(prefix="/v1", tags=["system"], responses=FAILURES)


@router.get("/health", response_model=HealthWire)
async def health() -> Reply:
    """Answer, which is all it takes to be healthy."""
    return Reply(HealthWire(status="ok", version=__version__))


@router.get("/version", response_model=VersionWire)
async def version() -> Reply:
    """Return which daemon this is."""
    return Reply(
        VersionWire(
            version=__version__, api="v1", pid=os.getpid(), python=platform.python_version()
        )
    )


@router.get("/doctor", response_model=dict[str, Any])
async def doctor(engine: Engine) -> Reply:
    """Return what is so about the host, and what is missing on it."""
    return Reply(await engine.doctor())
