"""Looks at a machine for each kind of check, within the time of one attempt."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from torpor.recovery.checks.baseline import Baseline, Comparer
from torpor.recovery.checks.clean import clean_output
from torpor.recovery.checks.commands import command_facts
from torpor.recovery.checks.facts import Broken, Facts
from torpor.recovery.checks.folders import run_executable
from torpor.recovery.checks.inside import look_http, look_sqlite
from torpor.recovery.checks.nagios import plugin_facts
from torpor.recovery.checks.plan import Check, TurnSpec
from torpor.recovery.checks.probe import ProbeMachine
from torpor.recovery.checks.turn import look_turn


class Looker:
    """Knows a machine, and what its checks are compared with. Made by `make`."""

    def __init__(
        self,
        probe: ProbeMachine,
        engine: Any,
        *,
        inventory: Baseline | None,
        turn: TurnSpec | None,
        parallel: int,
    ) -> None:
        self._probe = probe
        self._engine = engine
        # threads of its own: they wait for the machine, and the loop's own pool is for work on this host
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="torpor-check")
        self._host = engine.make_host()
        self._comparer = Comparer(inventory)
        self._turn = turn

    @classmethod
    async def make(
        cls,
        probe: ProbeMachine,
        *,
        inventory: Baseline | None,
        turn: TurnSpec | None,
        parallel: int,
    ) -> Self:
        """Return one, to be closed; testinfra is imported in a thread, for that takes a while the first time."""
        engine = await asyncio.to_thread(importlib.import_module, "torpor.recovery.checks.look")
        return cls(probe, engine, inventory=inventory, turn=turn, parallel=parallel)

    def close(self) -> None:
        """Give the threads back. Only when nothing is being looked at any more."""
        self._threads.shutdown(wait=False)

    async def look(self, check: Check) -> Facts:
        """Return what was found.

        Raises:
            TimeoutError: it did not end within the check's time.
            Unclear: it cannot be told.
            Broken: it failed before there was anything to compare.
            TorporError: as `ProbeMachine.run`.
        """
        within_s = check.timing.timeout_seconds
        if check.kind in self._engine.LOOKS:
            return await self._look_with_testinfra(check, within_s)
        if check.kind == "executable":
            return await run_executable(check, self._probe, within_s)
        if check.kind == "http":
            return await look_http(check, self._probe, within_s)
        if check.kind == "sqlite":
            return await look_sqlite(check, self._probe, within_s)
        if check.kind == "inventory":
            return await self._comparer.look(check)
        if check.kind == "turn":
            return await look_turn(check, self._probe, self._turn)
        return await self._look_command(check, within_s)

    async def _look_with_testinfra(self, check: Check, within_s: float) -> Facts:
        look: Callable[..., Facts] = self._engine.LOOKS[check.kind]
        deadline_s = asyncio.get_running_loop().time() + within_s
        found: Facts = await self._engine.in_thread(
            self._threads, self._probe, deadline_s, lambda attempt: look(self._host, check, attempt)
        )
        return found

    async def _look_command(self, check: Check, within_s: float) -> Facts:
        command = "true" if check.kind == "machine" else check.target
        ran = await self._probe.run(
            command, user=check.options.get("user"), timeout_seconds=within_s
        )
        if ran.timed_out:
            output = clean_output(ran.stdout, ran.stderr)
            raise Broken(f"it did not end within {within_s:g} s and was killed", output)
        if check.options.get("nagios"):
            return plugin_facts(ran, check.group)
        return command_facts(ran)
