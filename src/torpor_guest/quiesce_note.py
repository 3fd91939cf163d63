"""The note on the disk of what may be held, so that its releases are called whatever becomes of the agent.

It is there before a hook begins and goes when all are released. So it is also on the disk of a snapshot that was
taken meanwhile: a machine that is started cold from that disk finds it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

from torpor_guest import errors, proctree
from torpor_guest.launcher import Launcher
from torpor_guest.quiesce_hooks import RELEASE_S, make_hook
from torpor_guest.quiesce_plan import HookPlan
from torpor_guest.threads import in_own_thread, in_thread

_TRIES = 3
_AGAIN_S = 5.0
"""A machine that boots may not have what a release talks to yet."""

_log = logging.getLogger("torpor")


class Note:
    """The file, and the releases that it names."""

    def __init__(self, path: Path, launcher: Launcher) -> None:
        self._path = path
        self._launcher = launcher

    def exists(self) -> bool:
        """Whether an agent left one."""
        return self._path.exists()

    async def write(self, token: str, plans: list[HookPlan]) -> None:
        """Write it, durably.

        Raises:
            AgentError: it cannot be written; then nothing may be held.
        """
        hooks = [
            {
                "name": plan.name,
                "kind": plan.kind,
                "user": plan.user,
                "release": plan.commands.get("release"),
            }
            for plan in plans
        ]
        try:
            await in_thread(self._store, json.dumps({"token": token, "hooks": hooks}).encode())
        except OSError as exc:
            raise errors.from_os(exc, f"write down what is held, in {self._path}") from exc

    async def remove(self) -> None:
        """Remove it: nothing is held."""
        try:
            await in_thread(self._path.unlink, True)
        except OSError as exc:
            _log.error("%s: %s", self._path, exc)

    async def release(self, outcome: str) -> None:
        """Call the releases that it names, the last first, then remove it."""
        try:
            data = json.loads(await in_thread(self._path.read_bytes))
            token, hooks = str(data["token"]), list(data["hooks"])
            plans = [_plan(item) for item in hooks]
        except (OSError, ValueError, KeyError, TypeError) as exc:
            _log.error("%s cannot be read: %s", self._path, exc)
            await self.remove()
            return
        for index in reversed(range(len(plans))):
            marker = f"quiesce-{token}-{index}"
            await in_own_thread(proctree.kill_tree, -1, marker)
            if "release" in plans[index].commands:
                await self._call(plans[index], token, marker, outcome)
        _log.warning("quiesce: released what an agent before held: %s", [p.name for p in plans])
        await self.remove()

    async def _call(self, plan: HookPlan, token: str, marker: str, outcome: str) -> None:
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_AGAIN_S)
            hook = make_hook(plan, self._launcher, token, marker)
            await hook.release(outcome, RELEASE_S)
            if not hook.release_problem:
                return
            _log.warning("quiesce: hook %s: %s", plan.name, hook.release_problem)

    def _store(self, data: bytes) -> None:
        temp = self._path.with_suffix(".tmp")
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            start = 0
            while start < len(data):
                start += os.write(fd, data[start:])
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temp, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _plan(item: Any) -> HookPlan:
    plan = HookPlan(str(item["name"]), str(item["kind"]), user=item.get("user"))
    release = item.get("release")
    if isinstance(release, list) and release:
        plan.commands = {"release": [str(word) for word in release]}
    return plan
