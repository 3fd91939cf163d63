"""An engine in memory and a desk over it, with the real workflow and looks that a test writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from tests.fakes.engine import FakeEngine
from torpor.base.home import Home
from torpor.db.database import Database
from torpor.model import SandboxId, SandboxInfo, SandboxSpec, SandboxState
from torpor.model_changes import ChangeInfo, ChangeSpec, ChangeState
from torpor.model_checks import CheckReport, CheckResult, Outcome
from torpor.recovery import dbos_setup
from torpor.recovery.changes import acts
from torpor.recovery.changes.looks import Look, Phase
from torpor.recovery.desk import Recovery

S = ChangeState


NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
Said = Outcome | Exception | Literal["dead", "paused"]


def check_report(outcome: Outcome) -> CheckReport:
    """Return a report of one required check."""
    result = CheckResult(
        group="required",
        kind="command",
        name="ready",
        outcome=outcome,
        reason=f"it is {outcome}",
        started_at=NOW,
        duration_ms=5,
        attempts=1,
        output="the last line",
    )
    return CheckReport(source="checks", started_at=NOW, duration_ms=5, results=(result,))


class ScriptedLooker:
    """Finds what the test wrote for each phase; the last word of a phase holds for all that follow."""

    script: ClassVar[dict[Phase, list[Said]]] = {}
    asked: ClassVar[list[Phase]] = []

    def __init__(self, _engine: object, _clock: object) -> None:
        pass

    async def look(
        self,
        sandbox_id: SandboxId,
        spec: ChangeSpec,
        phase: Phase,
        *,
        before: object,
        progress: Any,
    ) -> Look:
        self.asked.append(phase)
        words = self.script.get(phase, ["pass"])
        said = words.pop(0) if len(words) > 1 else words[0]
        if isinstance(said, Exception):
            raise said
        if said == "dead":
            return Look(phase=phase, answers=False, problem="the machine ended: it is gone")
        if said == "paused":
            return Look(phase=phase, answers=False, problem="it is paused", is_away=True)
        report = check_report(said)
        progress(report.results[0])
        return Look(phase=phase, answers=True, checks=report)


class Stage:
    """An engine, a home and a desk."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.engine = FakeEngine()
        self.recovery = Recovery(home, self.engine)

    @property
    def desk(self) -> Any:
        return self.recovery.changes

    async def sandbox(self, **spec: Any) -> SandboxInfo:
        return await self.engine.create(SandboxSpec(template="base", **spec))

    async def change(self, sandbox_id: SandboxId, **spec: Any) -> ChangeInfo:
        wanted = {"reason": "a test", "inventory": False, **spec}
        return await self.desk.begin(sandbox_id, ChangeSpec(**wanted))

    async def until(
        self, info: ChangeInfo, *states: ChangeState, within_s: float = 20
    ) -> ChangeInfo:
        """Return the change when it is in one of these states, or over."""
        async with asyncio.timeout(within_s):
            async for event in self.desk.events(info.id):
                if event.name == "state":
                    found = ChangeInfo.from_json(event.data)
                    if found.state in states or not found.is_open:
                        return found
        raise AssertionError("the events ended too early")

    async def running(self, sandbox_id: SandboxId) -> None:
        """Return when a command runs in a sandbox."""
        async with asyncio.timeout(10):
            while not any(
                e.state == "running" for e in self.engine.sandboxes[sandbox_id].guest.execs.values()
            ):
                await asyncio.sleep(0.01)

    def fail(self, sandbox_id: SandboxId) -> None:
        """Let a machine end by itself."""
        found = self.engine.sandboxes[sandbox_id]
        for running in found.guest.execs.values():
            running.kill(9)
        found.guest = found.guest.cut()
        found.info = replace(found.info, state=SandboxState.FAILED, error="it is gone")

    async def restart(self) -> None:
        """Stop, and begin anew as the next daemon does; the machines go on."""
        await self.recovery.aclose()
        for sandbox in self.engine.sandboxes:
            for claim in list(self.engine.claims._by_sandbox.values()):
                self.engine.claims.drop(sandbox, claim.holder)
        self.recovery = Recovery(self.home, self.engine)
        await self.recovery.start()


Act = Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Act:
    monkeypatch.setattr(acts, "Looker", ScriptedLooker)
    monkeypatch.setattr(dbos_setup, "_POLL_S", 0.02)
    ScriptedLooker.script.clear()
    ScriptedLooker.asked.clear()

    def run(scene: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            home = Home(tmp_path / "home")
            home.prepare()
            Database.open(home.database).close()
            stage = Stage(home)
            await stage.recovery.start()
            try:
                await scene(stage)
            finally:
                await stage.recovery.aclose()
                await stage.engine.aclose()

        asyncio.run(main())

    return run
