"""…/inventory and /v1/profiles: what machines hold, what differs, and where to look."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from torpor.base.ids import is_id
from torpor.errors import InvalidRequest
from torpor.model import SandboxId, SnapshotId
from torpor.model_inventory import Inventory
from torpor.recovery.inventory import compare, detect, take
from torpor.recovery.profiles import AgentProfile, parse_profile, shipped, shipped_names
from torpor.recovery.profiles.loading import shipped_text
from torpor.sandboxes.port import EnginePort
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine, until_hang_up
from torpor.server.wire_inventory import (
    DetectedWire,
    InventoryDiffWire,
    InventoryRequest,
    InventoryWire,
    ProfileListWire,
    ProfileWire,
)

router = APIRouter(prefix="/v1", tags=["inventory"], responses=FAILURES)

_NAME = "A shipped profile's name; none: the one that fits."
_REF = "Id of a snapshot or of a running sandbox."


@router.get("/sandboxes/{sandbox_id}/inventory", response_model=InventoryWire)
async def get_inventory(
    sandbox_id: str,
    engine: Engine,
    request: Request,
    profile: Annotated[str | None, Query(description=_NAME)] = None,
    commands: bool = False,
) -> Reply:
    """Return what a running sandbox holds now; one that sleeps is woken. See also …/diff for files alone."""
    work = _live(engine, sandbox_id, await _profile(profile), commands=commands)
    return Reply((await until_hang_up(request, work)).to_json())


@router.post("/sandboxes/{sandbox_id}/inventory", response_model=InventoryWire)
async def take_inventory(
    sandbox_id: str, engine: Engine, request: Request, body: InventoryRequest | None = None
) -> Reply:
    """Return what a running sandbox holds now, with a profile of your own by choice."""
    wish = body or InventoryRequest()
    profile = await _profile(wish.profile)
    work = _live(engine, sandbox_id, profile, commands=wish.commands)
    return Reply((await until_hang_up(request, work)).to_json())


@router.get("/snapshots/{snapshot_id}/inventory", response_model=InventoryWire)
async def get_snapshot_inventory(snapshot_id: str, engine: Engine) -> Reply:
    """Return what a snapshot's machine held when it was taken; 404 says why there is none."""
    return Reply((await engine.snapshot_inventory(SnapshotId(snapshot_id))).to_json())


@router.get("/inventory/diff", response_model=InventoryDiffWire)
async def diff_inventories(
    engine: Engine,
    before: Annotated[str, Query(description=_REF)],
    after: Annotated[str, Query(description=_REF)],
    profile: Annotated[str | None, Query(description=_NAME)] = None,
) -> Reply:
    """Return what differs between two inventories, of snapshots or of what sandboxes hold now."""
    wanted = await _profile(profile)
    left, right = [await _either(engine, ref, wanted) for ref in (before, after)]
    diff = await asyncio.to_thread(lambda: compare(left, right).to_json())
    return Reply(diff)


@router.get("/sandboxes/{sandbox_id}/profile", response_model=DetectedWire)
async def detect_profile(sandbox_id: str, engine: Engine) -> Reply:
    """Return which agent profile fits a running sandbox: its own file, a shipped one, or `machine`."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        found = await detect(guest)
    return Reply(
        DetectedWire(
            name=found.profile.name,
            title=found.profile.title,
            is_own=found.is_own,
            fits=list(found.fits),
            problem=found.problem,
        )
    )


@router.get("/profiles", response_model=ProfileListWire)
async def list_profiles() -> Reply:
    """List the agent profiles that come with the package."""
    return Reply(ProfileListWire(profiles=await asyncio.to_thread(_all_profiles)))


@router.get("/profiles/{name}", response_model=ProfileWire)
async def get_profile(name: str) -> Reply:
    """Return one of the agent profiles that come with the package."""
    return Reply(await asyncio.to_thread(_wire_profile, name))


def _all_profiles() -> list[ProfileWire]:
    return [_wire_profile(name) for name in shipped_names()]


def _wire_profile(name: str) -> ProfileWire:
    text = shipped_text(name)
    profile = shipped(name)
    return ProfileWire(name=name, title=profile.title, description=profile.description, text=text)


async def _profile(words: str | None) -> AgentProfile | None:
    """Return the profile that a request names or holds; never one in a file of the host."""
    if words is None:
        return None
    if "\n" in words or ":" in words:
        return await asyncio.to_thread(lambda: parse_profile(words, source="profile"))
    return await asyncio.to_thread(shipped, words)


async def _live(
    engine: EnginePort, sandbox_id: str, profile: AgentProfile | None, *, commands: bool = False
) -> Inventory:
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        return await take(guest, profile, now=datetime.now(UTC), commands=commands)


async def _either(engine: EnginePort, ref: str, profile: AgentProfile | None) -> Inventory:
    if is_id(ref, "snap"):
        return await engine.snapshot_inventory(SnapshotId(ref))
    if is_id(ref, "sbx"):
        return await _live(engine, ref, profile)
    raise InvalidRequest(f"{ref!r} is no id of a snapshot or sandbox")
