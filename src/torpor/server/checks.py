"""Runs checks for requests: reads the file first, then enters the machine; a client that is gone ends the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime

from torpor.base.aio import Supervisor, finish
from torpor.base.ids import check_id
from torpor.errors import GuestFailed, HostNotReady, InvalidRequest, NotFound
from torpor.guest.port import Guest
from torpor.model import SandboxId, SnapshotId
from torpor.model_checks import CheckReport, CheckResult
from torpor.model_inventory import Inventory
from torpor.recovery.checks import (
    Baseline,
    CheckPlan,
    FirstFile,
    GuestProbe,
    first_checks,
    parse_checks,
    run_checks,
    turn_of,
)
from torpor.recovery.checks.probe import probing
from torpor.recovery.checks.run import Progress
from torpor.recovery.inventory import detect, take
from torpor.recovery.profiles import AgentProfile, load_profile
from torpor.sandboxes.port import EnginePort
from torpor.server.replies import Last, sse
from torpor.server.wire_checks import (
    CheckInitRequest,
    CheckReportWire,
    CheckRequest,
    CheckResultWire,
)

log = logging.getLogger(__name__)


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
        NotFound: there is no such machine, profile or baseline, or that has no inventory.
        WrongState, GuestUnreachable: the machine cannot be entered.
    """
    plan = await asyncio.to_thread(parse_checks, asked.checks, source=asked.source)
    profile = await _profile(asked.profile)
    before = await _before(engine, sandbox_id, asked.baseline, plan)
    async with engine.guest(sandbox_id) as guest:
        if profile is None and _asks_the_profile(plan):
            profile = await _detected(guest)
        if started is not None:
            started(plan)
        return await run_checks(
            plan,
            GuestProbe(guest),
            inventory=None if before is None else _baseline(before, guest, profile),
            turn=None if profile is None else turn_of(profile),
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
    profile = await _profile(asked.profile)
    async with probing(engine, sandbox_id) as probe:
        return await first_checks(probe, turn=None if profile is None else turn_of(profile))


async def _profile(name: str | None) -> AgentProfile | None:
    if name is None:
        return None
    if "/" in name or "\n" in name:
        raise InvalidRequest(f"{name[:80]!r} is no name of an agent profile")
    return await asyncio.to_thread(load_profile, name)


async def _detected(guest: Guest) -> AgentProfile | None:
    """Return the profile that fits a machine; None if that cannot be told: its checks are then inconclusive."""
    try:
        return (await detect(guest)).profile
    except (HostNotReady, GuestFailed) as error:
        log.info("no profile was found: %s", error.message)
        return None


def _asks_the_profile(plan: CheckPlan) -> bool:
    return any(
        check.kind == "inventory" or (check.kind == "turn" and "target" not in check.options)
        for check in plan.checks
    )


async def _before(
    engine: EnginePort, sandbox_id: SandboxId, baseline: str | None, plan: CheckPlan
) -> Inventory | None:
    """Return what to compare with: the inventory of a snapshot that was named, else of the one it last was at."""
    if baseline is not None:
        return await engine.snapshot_inventory(SnapshotId(check_id(baseline, "snap", "snapshot")))
    last = (await engine.get(sandbox_id)).parent_snapshot
    if last is None or not any(check.kind == "inventory" for check in plan.checks):
        return None
    with contextlib.suppress(
        NotFound
    ):  # then there is nothing to compare with, and the checks say so
        return await engine.snapshot_inventory(last)
    return None


def _baseline(before: Inventory, guest: Guest, profile: AgentProfile | None) -> Baseline:
    return Baseline(before=before, take=lambda: take(guest, profile, now=datetime.now(UTC)))


async def _ended(task: asyncio.Task[CheckReport]) -> None:
    await asyncio.wait({task})
