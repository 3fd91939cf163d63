"""Quiescing: hooks that bring the machine's programs to rest for a snapshot, and let them go on.

All prepare, in order; then all hold, in order; then the host captures; then all are released, in reverse order.
No hook runs while file systems are frozen: it would hang. Whatever happens to the host, a dead man releases all
when the first hook's time is over; whatever happens to us, helpers notice that we are gone, and the next agent
calls the releases that a note on the disk names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.freezer import Freezer
from torpor_guest.kernel import Kernel
from torpor_guest.launcher import Launcher
from torpor_guest.quiesce_facts import Facts
from torpor_guest.quiesce_hooks import RELEASE_S, Hook, make_hook
from torpor_guest.quiesce_note import Note
from torpor_guest.quiesce_plan import make_plan
from torpor_guest.quiesce_work import HookFailed

RELEASES_S = 60.0
"""For all releases together; the host and a renewal wait no longer."""
OUTCOMES = ("taken", "failed", "test", "expired", "restored", "lost")
_TIMEOUT_S, _TIMEOUT_MOST_S = 120.0, 3600.0

_log = logging.getLogger("torpor")


class _Run:
    """One time of being quiet."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.hooks: list[Hook] = []
        self.reason = ""
        """Why it is not held; empty: it is, or nobody has looked since."""
        self.is_held = False
        self.outcome = ""
        self.facts: dict[str, Any] = {}
        self.taking: asyncio.Task[None] | None = None
        self.release: asyncio.Task[None] | None = None
        self.dead_man: asyncio.TimerHandle | None = None
        self.lapses_at = 0.0


class Quiesce:
    """Owns what is held; at most one run at a time."""

    def __init__(
        self, kernel: Kernel, freezer: Freezer, launcher: Launcher, state_dir: Path
    ) -> None:
        self._kernel = kernel
        self._freezer = freezer
        self._launcher = launcher
        self._note = Note(state_dir / "quiesce.json", launcher)
        self._facts = Facts(launcher)
        self._run: _Run | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovery: asyncio.Task[None] | None = None

    @property
    def is_active(self) -> bool:
        """Whether something is held, or on its way there or back."""
        return self._is_releasing or (self._run is not None and not self._run.outcome)

    @property
    def _is_releasing(self) -> bool:
        release = self._run.release if self._run else None
        return release is not None and not release.done()

    def recover(self) -> None:
        """Release what an agent before us held; goes on in the background."""
        if self._note.exists():
            self._recovery = self._spawn(self._note.release("lost"))

    async def begin(self, params: dict[str, Any]) -> dict[str, Any]:
        """Prepare and hold all; when a required hook fails, release all again and say so in the answer.

        When the host leaves meanwhile, all that was begun is released.

        Raises:
            AgentError: something is held already, or the request cannot be right. Nothing was begun.
        """
        if self._recovery:
            await asyncio.shield(self._recovery)
        if self._is_releasing:
            assert self._run
            assert self._run.release
            await asyncio.shield(self._run.release)
        if self.is_active:
            raise AgentError(
                errors.CONFLICT,
                "the machine is quiesced already",
                hint="wait: it is released at the latest when its time is over",
            )
        limit_s = params.get("timeout_s", _TIMEOUT_S)
        if not isinstance(limit_s, (int, float)) or not 0 < limit_s <= _TIMEOUT_MOST_S:
            raise AgentError(
                errors.INVALID, f"timeout_s is up to {_TIMEOUT_MOST_S:g}, got {limit_s!r}"
            )
        plans = make_plan(params, self._kernel)
        run = _Run()
        run.hooks = [
            make_hook(plan, self._launcher, run.token, f"quiesce-{run.token}-{index}")
            for index, plan in enumerate(plans)
        ]
        self._run = run
        try:
            await self._note.write(run.token, plans)
            run.facts = await self._facts.versions(params.get("versions"))
            loop = asyncio.get_running_loop()
            run.taking = loop.create_task(self._take(run, loop.time() + limit_s))
            await asyncio.wait([run.taking])
            if not run.taking.cancelled():  # else: by the dead man, who said why
                run.taking.result()
            if not run.reason:
                run.facts.update(await self._facts.cursor(params.get("cursor")))
                run.is_held = not run.outcome
        except BaseException:
            self._start_release(run, "failed")
            raise
        if run.reason:
            await self._released(run, "failed")
        return self._answer(run)

    async def confirm(self, token: object) -> dict[str, Any]:
        """Say whether all required hooks hold now and did all the time."""
        run = self._found(token)
        if run.is_held and not run.outcome:
            for hook in run.hooks:
                why = await self._lost(hook) if hook.state == "held" else ""
                if why and hook.plan.is_required:
                    run.reason = f"hook {hook.plan.name}: {why}"
        if run.outcome and not run.reason:
            run.reason = f"it was released: {run.outcome}"
        run.is_held = run.is_held and not run.reason
        return self._answer(run)

    async def release(self, token: object, outcome: object) -> dict[str, Any]:
        """Release all that is held, the last first; with token None whatever is held. Can be asked again."""
        if outcome not in OUTCOMES:
            raise AgentError(errors.INVALID, f"{str(outcome)[:40]!r} is no outcome")
        if token is None:
            if self._run is None:
                return {}
            token = self._run.token
        run = self._found(token)
        await self._released(run, str(outcome))
        return self._answer(run)

    async def let_go(self, outcome: str) -> list[str]:
        """Release whatever is held, and say what went wrong. Never raises."""
        run = self._run
        if run is None or (run.outcome and not self._is_releasing):
            return []
        await self._released(run, outcome)
        return [
            f"hook {hook.plan.name}: {hook.release_problem}"
            for hook in run.hooks
            if hook.release_problem
        ]

    async def _lost(self, hook: Hook) -> str:
        """Return why a hook does not hold any more. While all is frozen none is asked: it could hang."""
        if self._freezer.is_frozen:
            return "its process has ended" if hook.has_ended else ""
        return await hook.confirm()

    async def _take(self, run: _Run, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        for hook in run.hooks:
            await self._step(run, hook, hook.prepare, deadline)
            if run.reason:
                return
        for hook in run.hooks:
            if hook.state != "prepared":
                continue
            self._set_dead_man(run, loop.time() + hook.plan.hold_max_s)
            await self._step(run, hook, hook.hold, deadline)
            if run.reason:
                return
        if not any(hook.state == "held" for hook in run.hooks):
            run.reason = "there is no hook that holds anything: no database was found, and nothing is in quiesce.d"

    async def _step(self, run: _Run, hook: Hook, phase: Any, deadline: float) -> None:
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            run.reason = f"the time for all hooks was over before hook {hook.plan.name}"
            return
        try:
            await phase(left_s)
        except HookFailed as exc:
            _log.warning("quiesce: hook %s: %s", hook.plan.name, exc)
            if hook.plan.is_required:
                run.reason = f"hook {hook.plan.name}: {exc}"

    def _set_dead_man(self, run: _Run, at: float) -> None:
        """Have all released at `at` at the latest."""
        if run.dead_man and run.lapses_at <= at:
            return
        if run.dead_man:
            run.dead_man.cancel()
        run.lapses_at = at
        run.dead_man = asyncio.get_running_loop().call_at(at, self._lapse, run)

    def _lapse(self, run: _Run) -> None:
        if not run.outcome:
            is_taking = run.taking is not None and not run.taking.done()
            run.reason = run.reason or (
                "its time was over before all was held"
                if is_taking
                else "nobody came to release it in time"
            )
            run.is_held = False
            self._start_release(run, "expired")

    async def _released(self, run: _Run, outcome: str) -> None:
        self._start_release(run, outcome)
        assert run.release
        await asyncio.shield(run.release)

    def _start_release(self, run: _Run, outcome: str) -> None:
        if run.release is None:
            run.outcome = outcome
            run.release = self._spawn(self._release_all(run))

    async def _release_all(self, run: _Run) -> None:
        if run.dead_man:
            run.dead_man.cancel()
        if run.taking and not run.taking.done():
            run.taking.cancel()
            await asyncio.wait([run.taking])
        await self._freezer.thaw()  # a hook that writes to a frozen disk hangs
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RELEASES_S
        for hook in reversed(run.hooks):
            if hook.is_begun:
                await hook.release(run.outcome, min(RELEASE_S, max(0.5, deadline - loop.time())))
                if hook.release_problem:
                    _log.warning("quiesce: hook %s: %s", hook.plan.name, hook.release_problem)
        await self._note.remove()
        if run.outcome in ("expired", "restored"):
            _log.warning("quiesce: released all: %s", run.outcome)

    def _found(self, token: object) -> _Run:
        if self._run is None or self._run.token != token:
            raise AgentError(errors.NOT_FOUND, "nothing is held under that token")
        return self._run

    def _answer(self, run: _Run) -> dict[str, Any]:
        left_s = run.lapses_at - asyncio.get_running_loop().time() if run.is_held else 0.0
        return {
            "token": run.token,
            "held": run.is_held,
            "reason": run.reason,
            "left_s": max(0.0, left_s),
            "hooks": [hook.to_wire() for hook in run.hooks],
            "versions": {},
            "cursor": None,
            "notes": [],
            **run.facts,
        }

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            if task.exception():
                _log.error("quiesce: %r", task.exception())
