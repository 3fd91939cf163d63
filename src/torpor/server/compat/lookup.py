"""What a path names, for clients that expect 404 for all that is not there: unknown, malformed, deleted, elsewhere."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from torpor.base.ids import is_id
from torpor.errors import NotFound
from torpor.model import SandboxId, SandboxInfo, SandboxState, SnapshotId, SnapshotInfo
from torpor.sandboxes.missing import no_sandbox, no_snapshot
from torpor.sandboxes.port import EnginePort


async def find_sandbox(engine: EnginePort, name: str) -> SandboxInfo:
    """Return a sandbox that was not deleted. Raises `NotFound`."""
    if not is_id(name, "sbx"):
        raise no_sandbox(SandboxId(name[:80]))
    info = await engine.get(SandboxId(name))
    if info.state is SandboxState.DELETED:
        raise no_sandbox(info.id)
    return info


async def find_snapshot(engine: EnginePort, name: str) -> SnapshotInfo:
    """Return a snapshot. Raises `NotFound`."""
    if not is_id(name, "snap"):
        raise no_snapshot(SnapshotId(name[:80]))
    return await engine.get_snapshot(SnapshotId(name))


async def check_sandbox(_: HTTPConnection, view: EnginePort, name: str) -> None:
    """Let a request go on whose path names a sandbox. Raises `NotFound`."""
    await find_sandbox(view, name)


async def check_snapshot(_: HTTPConnection, view: EnginePort, name: str) -> None:
    """Let a request go on whose path names a snapshot. Raises `NotFound`."""
    await find_snapshot(view, name)


def no_build(build_id: str) -> NotFound:
    """Return the error for a build that is not there."""
    return NotFound(f"there is no build {build_id[:80]}", hint="list them: GET /templates/builds")
