"""One look at a machine that is watched. A machine that is not there to be looked at says nothing."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from torpor.base.clock import Clock
from torpor.errors import (
    DataDamaged,
    GenerationChanged,
    GuestFailed,
    GuestUnreachable,
    HostNotReady,
    NotFound,
    OperationTimeout,
    TorporError,
    VmmFailed,
    WrongState,
)
from torpor.guest.port import Guest
from torpor.model import SandboxId, SandboxState
from torpor.model_inventory import Inventory
from torpor.model_watches import WatchOutcome, WatchSpec
from torpor.recovery.changes.looks import NO_ROOM
from torpor.sandboxes.port import EnginePort

_TRIES = 3
_RETRY_S = 5.0
_REASONS_MOST = 20
_ENDED = frozenset({SandboxState.FAILED, SandboxState.STOPPED})


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look found."""

    outcome: WatchOutcome
    sentence: str
    reasons: tuple[str, ...] = ()


class WatchLooker:
    """Looks at machines that are watched."""

    def __init__(self, engine: EnginePort, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def look(self, sandbox_id: SandboxId, spec: WatchSpec) -> Seen:
        """Look once.

        Raises:
            NotFound: the sandbox is gone.
        """
        info = await self._engine.get(sandbox_id)
        if info.state is SandboxState.DELETED:
            raise NotFound(f"sandbox {sandbox_id} is deleted", sandbox_id=sandbox_id)
        if info.state in _ENDED:
            why = (info.error or "it powered itself off").splitlines()[0]
            return Seen("fail", f"the machine ended: {why}")
        sleeps = info.state is SandboxState.HIBERNATED
        if sleeps and not spec.wake:
            return Seen("skipped", "it sleeps, and is not woken to be looked at")
        if info.state is not SandboxState.RUNNING and not sleeps:
            return Seen("skipped", f"it is {info.state}")
        try:
            return await self._tried(sandbox_id, spec)
        finally:
            if sleeps:
                await self._back_to_sleep(sandbox_id)

    async def _back_to_sleep(self, sandbox_id: SandboxId) -> None:
        with contextlib.suppress(TorporError):  # somebody uses it: then it stays awake
            await self._engine.hibernate(sandbox_id)

    async def _tried(self, sandbox_id: SandboxId, spec: WatchSpec) -> Seen:
        for left in reversed(range(_TRIES)):
            try:
                async with self._engine.guest(sandbox_id) as guest:
                    return await self._checked(guest, sandbox_id, spec)
            except GenerationChanged:
                return Seen("skipped", "it was put down or put back meanwhile")
            except WrongState as exc:
                return Seen("skipped", exc.message)
            except (GuestUnreachable, VmmFailed) as exc:
                if left == 0:
                    return Seen("fail", f"the machine does not answer: {exc.message}")
            except DataDamaged as exc:
                return Seen("fail", f"the machine cannot come back: {exc.message}")
            except (GuestFailed, OperationTimeout, HostNotReady, *NO_ROOM) as exc:
                return Seen("inconclusive", f"it could not be looked at: {exc.message}")
            await asyncio.sleep(_RETRY_S)
        raise AssertionError("the last try returns")

    async def _checked(self, guest: Guest, sandbox_id: SandboxId, spec: WatchSpec) -> Seen:
        from torpor.recovery.checks import Baseline, GuestProbe, parse_checks, run_checks, turn_of
        from torpor.recovery.inventory import detect, take
        from torpor.recovery.profiles import parse_profile, shipped, shipped_names
        from torpor.recovery.profiles.loading import MACHINE

        text = spec.profile
        before = await self._good_inventory(sandbox_id)
        if text is None:
            found = await detect(guest)
            profile = found.profile
            # a machine that lost its agent has to be looked at where that was, or nothing would be missed
            was = before.profile if before is not None else profile.name
            if not found.is_own and was != MACHINE and was in shipped_names():
                profile = shipped(was)
        else:
            is_text = "\n" in text or ":" in text
            profile = parse_profile(text, source="profile") if is_text else shipped(text)

        async def taken() -> Inventory:
            return await take(guest, profile, now=self._clock.now())

        report = await run_checks(
            parse_checks(spec.checks, source=spec.checks_source),
            GuestProbe(guest),
            inventory=None if before is None else Baseline(before=before, take=taken),
            turn=turn_of(profile),
            sandbox_id=sandbox_id,
        )
        told = [
            f"{r.key}: {r.reason}"
            for r in report.results
            if r.group == "required" and r.outcome in ("fail", "inconclusive")
        ]
        return Seen(report.verdict, report.sentence, tuple(told[:_REASONS_MOST]))

    async def _good_inventory(self, sandbox_id: SandboxId) -> Inventory | None:
        """Return what the machine held when it was last known to be good."""
        good = await self._engine.last_good(sandbox_id)
        if good is None:
            return None
        try:
            return await self._engine.snapshot_inventory(good.id)
        except (NotFound, DataDamaged):
            return None
