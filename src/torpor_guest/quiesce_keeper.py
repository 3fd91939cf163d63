"""A built-in hook: a helper of ours in a process of its own, see `torpor_guest.holder`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from torpor_guest.launcher import Launcher, Program
from torpor_guest.quiesce_plan import HookPlan
from torpor_guest.quiesce_work import HookFailed, NothingThere, told
from torpor_guest.tether import Tether

_LET_GO_S = 3.0
_SLACK_S = 1.0
"""The helper knows its limit, and says what was in the way; one that does not even do that is killed."""


class KeeperWork:
    """See `quiesce_work.Work`."""

    def __init__(self, plan: HookPlan, launcher: Launcher, marker: str) -> None:
        self._plan = plan
        self._launcher = launcher
        self._marker = marker
        self._helper: Tether | None = None

    @property
    def has_ended(self) -> bool:
        """See `Work.has_ended`."""
        return self._helper is None or not self._helper.is_running

    async def prepare(self, limit_s: float) -> str:
        """See `Work.prepare`."""
        self._helper = await Tether.start(self._launcher, _program(), marker=self._marker)
        self._helper.say(json.dumps({"kind": self._plan.kind, **self._plan.config}).encode())
        answer = await self._ask("prepare", limit_s, limit_s)
        if answer.get("nothing"):
            await self._helper.end(_LET_GO_S)
            if self._plan.is_found:
                raise NothingThere
            raise HookFailed(f"there is nothing of kind {self._plan.kind} to hold")
        return str(answer.get("message"))

    async def hold(self, limit_s: float) -> str:
        """See `Work.hold`."""
        answer = await self._ask("hold", limit_s, limit_s, self._plan.hold_max_s)
        return str(answer.get("message"))

    async def confirm(self, limit_s: float) -> None:
        """See `Work.confirm`."""
        await self._ask("confirm", limit_s)

    async def release(self, limit_s: float, outcome: str, failed_phase: str) -> None:
        """See `Work.release`. A helper that cannot let go in time is killed, and so lets go."""
        helper = self._helper
        if helper is None or not helper.is_running:
            return
        try:
            await self._ask("release", limit_s)
        finally:
            self._helper = None
            await helper.end(_LET_GO_S)

    async def _ask(self, phase: str, limit_s: float, *limits: float) -> dict[str, Any]:
        helper = self._helper
        if helper is None or not helper.is_running:
            raise HookFailed(told("its helper has ended", helper.tail if helper else ""))
        words = " ".join([phase, *(f"{value:.3f}" for value in limits)])
        line = None
        try:
            if helper.say(words.encode()):
                line = await helper.line(limit_s + _SLACK_S)
        except BaseException:
            await helper.kill()
            raise
        if line is None:
            had_ended = not helper.is_running
            await helper.kill()
            if had_ended:
                raise HookFailed(told("its helper has ended", helper.tail))
            raise HookFailed(f"{phase} took longer than {limit_s:.1f} s")
        try:
            answer = dict(json.loads(line))
        except (ValueError, TypeError):
            answer = {"message": "its helper makes no sense"}
        if answer.get("ok") is not True:
            raise HookFailed(str(answer.get("message")))
        return answer


def _program() -> Program:
    package = os.path.dirname(os.path.abspath(__file__))
    words = (sys.executable, "-B", "-S", "-s", "-m", "torpor_guest.holder")
    return Program(
        argv=[os.fsencode(word) for word in words],
        programs=[os.fsencode(sys.executable)],
        env={
            b"PYTHONPATH": os.fsencode(os.path.dirname(package)),
            b"PATH": b"/usr/sbin:/usr/bin:/sbin:/bin",
            b"LANG": b"C.UTF-8",
        },
    )
