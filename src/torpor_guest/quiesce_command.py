"""A hook that is commands, or a program that is told the phase.

A `hold` that ends with status 0 is held until its `release`. One that writes the line `held` and lives on is held
for as long as it lives; when it is to let go its stdin ends, and it gets SIGTERM.
"""

from __future__ import annotations

import asyncio
import os

from torpor_guest.launcher import Launcher, Program
from torpor_guest.quiesce_plan import HookPlan
from torpor_guest.quiesce_work import HookFailed, told
from torpor_guest.tether import Tether
from torpor_guest.users import environment, find_user

_LET_GO_S = 3.0
_HELD = b"held"


class CommandWork:
    """See `quiesce_work.Work`."""

    def __init__(self, plan: HookPlan, launcher: Launcher, token: str, marker: str) -> None:
        self._plan = plan
        self._launcher = launcher
        self._token = token
        self._marker = marker
        self._holder: Tether | None = None

    @property
    def has_ended(self) -> bool:
        """See `Work.has_ended`."""
        return self._holder is not None and not self._holder.is_running

    async def prepare(self, limit_s: float) -> str:
        """See `Work.prepare`."""
        return await self._run("prepare", limit_s)

    async def hold(self, limit_s: float) -> str:
        """See `Work.hold`."""
        if "hold" not in self._plan.commands:
            return ""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        tether = await self._start("hold", limit_s)
        try:
            while (line := await tether.line(deadline - loop.time())) is not None:
                if line.strip() == _HELD and tether.is_running:
                    self._holder = tether
                    return ""
            status = await tether.until_end(deadline - loop.time())
        except BaseException:
            await tether.kill()
            raise
        return await self._judge("hold", status, tether, limit_s)

    async def confirm(self, limit_s: float) -> None:
        """See `Work.confirm`."""
        if self._holder is not None and self.has_ended:
            raise HookFailed(told("its hold ended by itself", self._holder.tail))
        await self._run("confirm", limit_s)

    async def release(self, limit_s: float, outcome: str, failed_phase: str) -> None:
        """See `Work.release`."""
        if self._holder is not None:
            holder, self._holder = self._holder, None
            holder.let_go()
            holder.terminate()
            await holder.end(_LET_GO_S)
        await self._run("release", limit_s, outcome, failed_phase)

    async def _run(
        self, phase: str, limit_s: float, outcome: str = "", failed_phase: str = ""
    ) -> str:
        if phase not in self._plan.commands:
            return ""
        tether = await self._start(phase, limit_s, outcome, failed_phase)
        tether.let_go()
        try:
            status = await tether.until_end(limit_s)
        except BaseException:
            await tether.kill()
            raise
        return await self._judge(phase, status, tether, limit_s)

    async def _judge(self, phase: str, status: int | None, tether: Tether, limit_s: float) -> str:
        if status is None:
            await tether.kill()
            raise HookFailed(
                told(f"{phase} ran longer than {limit_s:.1f} s and was killed", tether.tail)
            )
        if status != 0:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise HookFailed(told(f"{phase} ended with {how}", tether.tail))
        return tether.tail

    async def _start(
        self, phase: str, limit_s: float, outcome: str = "", failed_phase: str = ""
    ) -> Tether:
        user = find_user(self._plan.user)
        env = {
            "TORPOR_QUIESCE_PHASE": phase,
            "TORPOR_QUIESCE_NAME": self._plan.name,
            "TORPOR_QUIESCE_TOKEN": self._token,
            "TORPOR_QUIESCE_LIMIT_SECONDS": f"{limit_s:.1f}",
            "TORPOR_QUIESCE_HOLD_MAX_SECONDS": f"{self._plan.hold_max_s:g}",
            "TORPOR_QUIESCE_OUTCOME": outcome,
            "TORPOR_QUIESCE_FAILED_PHASE": failed_phase,
        }
        argv = [os.fsencode(word) for word in self._plan.commands[phase]]
        program = Program(
            argv=argv, programs=[argv[0]], env=environment(user, env), user=user.credentials
        )
        return await Tether.start(self._launcher, program, marker=self._marker)
