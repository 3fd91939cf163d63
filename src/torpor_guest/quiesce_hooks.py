"""One hook at work: its phases, what came of them, and how long they took."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from torpor_guest.errors import AgentError
from torpor_guest.keeping import plain
from torpor_guest.launcher import Launcher
from torpor_guest.quiesce_command import CommandWork
from torpor_guest.quiesce_keeper import KeeperWork
from torpor_guest.quiesce_plan import HookPlan
from torpor_guest.quiesce_work import HookFailed, NothingThere, Work

HOLD_S = 15.0
"""What a hook has to take hold; those before it are held meanwhile."""
CONFIRM_S = 10.0
RELEASE_S = 10.0
_MESSAGE_MOST = 500


class Hook:
    """A hook, and what became of it."""

    def __init__(self, plan: HookPlan, work: Work) -> None:
        self.plan = plan
        self.state = "idle"
        """`idle`, `prepared`, `held`, `lost`, `failed` or `nothing`; its release does not change it."""
        self.message = ""
        self.failed_phase = ""
        self.is_begun = False
        self.release_problem = ""
        self._work = work
        self._times_ms: dict[str, float] = {}
        self._held_at: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether a process that holds by living has ended."""
        return self._work.has_ended

    async def prepare(self, limit_s: float) -> None:
        """Do what takes time. Raises `HookFailed`."""
        self.is_begun = True
        try:
            await self._phase("prepare", self._work.prepare(min(limit_s, self.plan.prepare_s)))
            self.state = "prepared"
        except NothingThere:
            self.state = "nothing"

    async def hold(self, limit_s: float) -> None:
        """Take hold. Raises `HookFailed`."""
        self._held_at = asyncio.get_running_loop().time()
        limit_s = min(limit_s, HOLD_S, self.plan.hold_max_s)
        await self._phase("hold", self._work.hold(limit_s))
        self.state = "held"

    async def confirm(self) -> str:
        """Return why it is not held any more; empty: it is."""
        try:
            await self._work.confirm(CONFIRM_S)
        except (HookFailed, AgentError) as exc:
            self.state, self.message = "lost", plain(str(exc), _MESSAGE_MOST)
            return self.message
        return ""

    async def release(self, outcome: str, limit_s: float) -> None:
        """Let go, and tell the hook what became of it. Never fails; see `release_problem`."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if self._held_at is not None:
            self._times_ms["held"] = (begun - self._held_at) * 1000
        try:
            await self._work.release(min(limit_s, RELEASE_S), outcome, self.failed_phase)
        except (HookFailed, AgentError) as exc:
            self.release_problem = plain(str(exc), _MESSAGE_MOST)
        self._times_ms["release"] = (loop.time() - begun) * 1000

    def to_wire(self) -> dict[str, Any]:
        """Return what the host is told."""
        return {
            "name": self.plan.name,
            "kind": self.plan.kind,
            "required": self.plan.is_required,
            "state": self.state,
            "failed_phase": self.failed_phase,
            "message": self.message,
            "release_problem": self.release_problem,
            **{f"{name}_ms": round(value, 1) for name, value in self._times_ms.items()},
        }

    async def _phase(self, name: str, work: Awaitable[str]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            message = await work
        except (HookFailed, AgentError) as exc:
            self.state, self.failed_phase = "failed", name
            self.message = plain(str(exc), _MESSAGE_MOST)
            raise HookFailed(self.message) from exc
        finally:
            self._times_ms[name] = (loop.time() - begun) * 1000
        if message:
            self.message = plain(message, _MESSAGE_MOST)


def make_hook(plan: HookPlan, launcher: Launcher, token: str, marker: str) -> Hook:
    """Return the hook that `plan` means; its processes carry `marker`."""
    if plan.kind in ("command", "program"):
        return Hook(plan, CommandWork(plan, launcher, token, marker))
    return Hook(plan, KeeperWork(plan, launcher, marker))
