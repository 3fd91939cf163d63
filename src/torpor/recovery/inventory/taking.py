"""Taking the inventory of a running machine."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from torpor.base.clock import Clock
from torpor.errors import InvalidRequest
from torpor.guest.port import Guest
from torpor.model_inventory import Inventory
from torpor.recovery.inventory.plan import plan_of, signs_of
from torpor.recovery.profiles import AgentProfile, parse_profile, shipped, shipped_names
from torpor.recovery.profiles.loading import MACHINE

LIVE_SECONDS = 60.0
"""Seconds that a machine may take when somebody waits for it."""
SNAPSHOT_SECONDS = 5.0
"""Seconds that a machine may take before a snapshot; what is not done then is left out, and said to be."""
DETECT_SECONDS = 30.0
"""Seconds that a machine may look for its profile; one on a busy host first has to start the program that does."""
OWN_SOURCE = "/etc/torpor/profile.yaml"
_COMMANDS_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """Which profile a machine has."""

    profile: AgentProfile
    is_own: bool
    """It is the machine's own file, and not a shipped one."""
    fits: tuple[str, ...]
    """All shipped ones that fit."""
    own_text: str | None = None
    """The machine's own file, if that is it."""
    problem: str | None = None
    """Why the machine's own file is not used."""


async def detect(guest: Guest, *, deadline_seconds: float = DETECT_SECONDS) -> Detected:
    """Return the machine's own profile if it has one, else the shipped one that fits, else `machine`.

    Raises:
        HostNotReady: the agent in the machine is too old for inventories.
        GuestFailed, GuestUnreachable: it cannot be asked.
    """
    signs = await asyncio.to_thread(lambda: signs_of(shipped_names()))  # reads them the first time
    found = await guest.detect_profiles(signs, deadline_seconds=deadline_seconds)
    problem = found.own_error
    if found.own is not None:
        try:
            own = await asyncio.to_thread(_own, found.own)
        except InvalidRequest as exc:
            problem = exc.message
        else:
            return Detected(profile=own, is_own=True, fits=found.fits, own_text=found.own)
    name = found.fits[0] if found.fits else MACHINE
    return Detected(profile=shipped(name), is_own=False, fits=found.fits, problem=problem)


@functools.lru_cache(maxsize=64)
def _own(text: str) -> AgentProfile:
    return parse_profile(text, source=OWN_SOURCE)


async def take(
    guest: Guest,
    profile: AgentProfile | None = None,
    *,
    now: datetime,
    commands: bool = False,
    deadline_seconds: float | None = None,
) -> Inventory:
    """Return what a running machine holds. Changes nothing in it.

    Args:
        guest: the connected machine, thawed.
        profile: where to look; None: as `detect` finds.
        now: what is noted as its time.
        commands: also run the commands that the profile names to learn versions by.
        deadline_seconds: how long the machine may take; what is not done then is left out, and said to be.

    Raises:
        HostNotReady: the agent in the machine is too old for inventories.
        OperationTimeout: the machine did not keep its deadline.
        GuestFailed, GuestUnreachable: it cannot be asked, or what it says makes no sense.
    """
    notes: tuple[str, ...] = ()
    if profile is None:
        found = await detect(
            guest, deadline_seconds=min(DETECT_SECONDS, deadline_seconds or DETECT_SECONDS)
        )
        profile = found.profile
        if found.problem is not None:
            notes += (f"the machine's own profile is not used: {found.problem}"[:500],)
        if not found.is_own and len(found.fits) > 1:
            notes += (f"several profiles fit: {', '.join(found.fits)}; the first is used",)
    limit_s = deadline_seconds or (_COMMANDS_SECONDS if commands else LIVE_SECONDS)
    taken = await guest.inventory(plan_of(profile, commands=commands), deadline_seconds=limit_s)
    return Inventory(
        taken_at=now,
        profile=profile.name,
        profile_digest=profile.digest,
        key_id=taken.key_id,
        duration_ms=taken.duration_ms,
        sections=taken.sections,
        notes=(*notes, *taken.notes),
    )


def before_snapshots(clock: Clock) -> Callable[[Guest], Awaitable[Inventory]]:
    """Return what the engine calls before it takes a snapshot: no commands, and a short deadline."""

    async def taken(guest: Guest) -> Inventory:
        return await take(guest, now=clock.now(), deadline_seconds=SNAPSHOT_SECONDS)

    return taken
