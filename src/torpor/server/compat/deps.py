"""What the part's routes are handed."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from torpor.model import SandboxInfo, SnapshotInfo
from torpor.server.compat.builds import BuildDesk
from torpor.server.compat.lookup import find_sandbox, find_snapshot
from torpor.server.compat.provision import ProvisionDesk
from torpor.server.routes.deps import engine_of


async def _sandbox(sandbox: str, request: Request) -> SandboxInfo:
    return await find_sandbox(engine_of(request), sandbox)


async def _snapshot(snap: str, request: Request) -> SnapshotInfo:
    return await find_snapshot(engine_of(request), snap)


def _builds(request: Request) -> BuildDesk:
    return cast(BuildDesk, request.app.state.builds)


def _provisions(request: Request) -> ProvisionDesk:
    return cast(ProvisionDesk, request.app.state.provisions)


TheSandbox = Annotated[SandboxInfo, Depends(_sandbox)]
TheSnapshot = Annotated[SnapshotInfo, Depends(_snapshot)]
Builds = Annotated[BuildDesk, Depends(_builds)]
Provisions = Annotated[ProvisionDesk, Depends(_provisions)]
