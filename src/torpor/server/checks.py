"""Runs checks for requests: reads the file first, then enters the machine; a client that is gone ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from torpor.base.aio import Supervisor, finish
from torpor.errors import InvalidRequest
from torpor.model import SandboxId
from torpor.model_checks import CheckReport, CheckResult
from torpor.recovery.checks import CheckPlan, FirstFile, TurnSpec, first_checks, run_checks, turn_of
from torpor.recovery.checks.parse import parse_checks
from torpor.recovery.checks.probe import probing
from torpor.recovery.checks.run import Progress
from torpor.recovery.profiles import shipped
from torpor.sandboxes.port import EnginePort
from torpor.server.replies import Last, sse
from torpor.server.wire_checks import (
    CheckInitRequest,
    CheckReportWire,
    CheckRequest,
    CheckResultWire,
)


async def checked(
    engine: EnginePort,
    sandbox_id: SandboxId,
    asked: CheckRequest,
    *,
    started: Callable[[CheckPlan], object] | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Return what the checks found; `started` is called when the file is read and the machine entered.

    Raises:
        InvalidRequest: the file is malformed; the machine was not touched.
        NotFound, WrongState, GuestUnreachable: there is no such machine, or it cannot be entered.
    """
    plan, turn = await _read(asked)
    async with probing(engine, sandbox_id) as probe:
        if started is not None:
            started(plan)
        return await run_checks(
            plan,
            probe,
            turn=turn,
            progress=progress,
            sandbox_id=sandbox_id,
            within_seconds=asked.within_seconds,
        )


async def check_frames(
    engine: EnginePort, sandbox_id: SandboxId, asked: CheckRequest
) -> AsyncGenerator[bytes, None]:
    """Yield the events `started`, `result` for each check as it ends, and `report` last. Raises as `checked`."""
    frames: asyncio.Queue[bytes | None] = asyncio.Queue()

    def started(plan: CheckPlan) -> None:
        frames.put_nowait(sse("started", {"checks": len(plan.checks)}))

    def progress(result: CheckResult) -> None:
        frames.put_nowait(sse("result", CheckResultWire.of(result)))

    supervisor = Supervisor(lambda _name, _error: None)  # its failure is raised below
    running = supervisor.spawn(
        checked(engine, sandbox_id, asked, started=started, progress=progress),
        name=f"checks of {sandbox_id}",
    )
    running.add_done_callback(lambda _task: frames.put_nowait(None))
    try:
        while (frame := await frames.get()) is not None:
            yield frame
        yield Last(sse("report", CheckReportWire.of(await running)))
    finally:
        if not running.done():
            running.cancel()
            await finish(_ended(running), within_s=40)


async def first_file(
    engine: EnginePort, sandbox_id: SandboxId, asked: CheckInitRequest
) -> FirstFile:
    """Return a checks file that the machine passes now. Raises as `first_checks` and `checked`."""
    turn = await _turn(asked.profile)
    async with probing(engine, sandbox_id) as probe:
        return await first_checks(probe, turn=turn)


async def _read(asked: CheckRequest) -> tuple[CheckPlan, TurnSpec | None]:
    plan = await asyncio.to_thread(parse_checks, asked.checks, source=asked.source)
    return plan, await _turn(asked.profile)


async def _turn(profile: str | None) -> TurnSpec | None:
    if profile is None:
        return None
    if "/" in profile or "\n" in profile:
        raise InvalidRequest(f"{profile[:80]!r} is no name of an agent profile")
    return turn_of(await asyncio.to_thread(shipped, profile))


async def _ended(task: asyncio.Task[CheckReport]) -> None:
    await asyncio.wait({task})
