"""Holds: a client keeps a sandbox from falling asleep by itself for as long as it renews its hold.

A hold is a lease with an id that the client chose. Renewing one that is not there makes it, so a client
need not know whether the daemon was started anew meanwhile; one that is not renewed expires.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from torpor.base.aio import Supervisor
from torpor.errors import LimitExceeded, TorporError, WrongState
from torpor.model import SandboxId, SandboxState
from torpor.sandboxes.port import EnginePort

SECONDS_MOST = 3600
HOLDS_MOST = 10_000


@dataclass(slots=True, eq=False)
class _Held:
    """One hold, whose task is inside `engine.guest` until it ends."""

    seconds: float
    lease: asyncio.Timeout | None = None
    """Runs out when the hold ends; renewing moves it."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it holds, or has failed to."""
    error: TorporError | None = None
    task: asyncio.Task[None] | None = None


class HoldDesk:
    """All holds that came in by one listener."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._holds: dict[tuple[SandboxId, str], _Held] = {}
        self._supervisor = Supervisor(lambda _name, _error: None)  # told to whoever waits

    async def aclose(self) -> None:
        """End all holds."""
        await self._supervisor.aclose(within_s=2)

    async def renew(self, sandbox_id: SandboxId, hold_id: str, seconds: int) -> datetime:
        """Hold a sandbox, which is woken for it, for `seconds` from now; return when that ends.

        Raises:
            NotFound: there is no such sandbox.
            WrongState: it is not running and cannot be woken.
            LimitExceeded: there are too many holds.
        """
        state = (await self._engine.get(sandbox_id)).state
        if state in (SandboxState.DELETING, SandboxState.DELETED):
            await self.release(sandbox_id, hold_id)
            raise WrongState(
                f"sandbox {sandbox_id} is {state}; it cannot be held", sandbox_id=sandbox_id
            )
        key = (sandbox_id, hold_id)
        held = self._holds.get(key)
        if held is None:
            if len(self._holds) >= HOLDS_MOST:
                raise LimitExceeded(
                    f"there are {HOLDS_MOST} holds", hint="release some, or let them expire"
                )
            held = self._holds[key] = _Held(seconds)
            held.task = self._supervisor.spawn(
                self._hold(key, held), name=f"hold {hold_id} of {sandbox_id}"
            )
        await held.entered.wait()
        if held.error is not None:
            raise held.error
        assert held.lease is not None
        if held.lease.expired():
            await self.release(sandbox_id, hold_id)  # it is gone before another is made
            return await self.renew(sandbox_id, hold_id, seconds)
        held.lease.reschedule(asyncio.get_running_loop().time() + seconds)
        return datetime.now(UTC) + timedelta(seconds=seconds)

    async def release(self, sandbox_id: SandboxId, hold_id: str) -> None:
        """End a hold; one that is not there is no error."""
        held = self._holds.pop((sandbox_id, hold_id), None)
        if held is not None and held.task is not None:
            held.task.cancel()
            await asyncio.wait({held.task})

    def of(self, sandbox_id: SandboxId) -> list[tuple[str, float]]:
        """Return a sandbox's holds, each with the seconds it has left."""
        now = asyncio.get_running_loop().time()
        return [
            (hold_id, max(0.0, (held.lease.when() or now) - now))
            for (owner, hold_id), held in self._holds.items()
            if owner == sandbox_id and held.lease is not None
        ]

    async def _hold(self, key: tuple[SandboxId, str], held: _Held) -> None:
        try:
            async with self._engine.guest(key[0]):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(held.seconds) as held.lease:
                        held.entered.set()
                        await asyncio.Event().wait()
        except TorporError as error:
            held.error = error
        finally:
            held.entered.set()
            if self._holds.get(key) is held:
                del self._holds[key]
