"""How a change is undone: the machine as it is now is kept, and the whole machine is put back."""

from __future__ import annotations

import asyncio
import contextlib

from torpor.db.changes import ChangeRow
from torpor.errors import (
    GuestFailed,
    InsufficientResources,
    LimitExceeded,
    NotFound,
    SnapshotUnusable,
    TorporError,
    WrongState,
)
from torpor.model import MemoryChoice, SandboxState, SnapshotInfo
from torpor.recovery.changes.quiet import find
from torpor.sandboxes.port import EnginePort

S = SandboxState
TRIES = 3
_PAUSE_S = 2.0
_CAN_BE_KEPT = frozenset({S.RUNNING, S.PAUSED, S.HIBERNATED})


def failed_label(row: ChangeRow) -> str:
    """Return the label of the machine as a change left it."""
    return f"failed-{row.info.id}"


def _reboot_label(row: ChangeRow) -> str:
    return f"boot-{row.info.id}"


async def keep_failed(engine: EnginePort, row: ChangeRow) -> tuple[SnapshotInfo | None, str]:
    """Return a snapshot of the machine as the change left it, and a sentence; None when it could not be had.

    A guest that does not answer is stopped first: its memory is kept as it is.
    """
    found = await find(engine, row, failed_label(row))
    if found is not None:
        return found, f"kept as {found.id}"
    state = (await engine.get(row.info.sandbox_id)).state
    if state not in _CAN_BE_KEPT:
        return None, f"the failed state could not be kept: the machine is {state}"
    try:
        taken = await _snapshot(engine, row)
    except GuestFailed:
        try:
            await engine.pause(row.info.sandbox_id, holder=row.info.id)
            taken = await _snapshot(engine, row)
        except TorporError as exc:
            return None, f"the failed state could not be kept: {exc.message}"
    except (LimitExceeded, InsufficientResources) as exc:
        return None, f"the failed state was not kept: {exc.message}"
    except TorporError as exc:
        return None, f"the failed state could not be kept: {exc.message}"
    return taken, f"kept as {taken.id}, {taken.consistency}-consistent"


async def _snapshot(engine: EnginePort, row: ChangeRow) -> SnapshotInfo:
    return await engine.snapshot(
        row.info.sandbox_id,
        label=failed_label(row),
        consistency="crash",
        metadata={"change": row.info.id, "reason": row.info.reason[:200]},
    )


async def volumes_left(engine: EnginePort, row: ChangeRow) -> list[str]:
    """Return a sentence on each volume that was attached during the change: what is in it is not put back."""
    assert row.info.snapshot_id is not None
    try:
        had = set((await engine.get_snapshot(row.info.snapshot_id)).volumes.values())
        volumes = await engine.volumes.list()
    except TorporError as exc:
        return [f"Which volumes were attached meanwhile cannot be told: {exc.message}"]
    return [
        f"Volume {volume.name}, which was attached at {holder.path} meanwhile, is taken off again"
        + ("." if holder.read_only else "; what was written to it stays.")
        for volume in volumes
        for holder in volume.holders
        if holder.sandbox_id == row.info.sandbox_id and volume.name not in had
    ]


async def put_back(engine: EnginePort, row: ChangeRow) -> str:
    """Put the whole machine back to before the change, and return a sentence.

    What an earlier daemon began is finished, not done twice. A machine whose memory cannot go on is booted instead,
    which the sentence says.

    Raises:
        TorporError: it does not come back, however often it was tried.
    """
    memory: MemoryChoice = row.info.memory
    point = row.info.snapshot_id
    assert point is not None
    note = ""
    for left in reversed(range(TRIES)):
        try:
            info = await engine.rollback(
                row.info.sandbox_id,
                point,
                memory=memory,
                holder=row.info.id,
                since_generation=row.notes["undone_from"],
            )
        except (NotFound, WrongState) as exc:
            if left == 0 or isinstance(exc, NotFound) or await _is_over(engine, row):
                raise
        except TorporError as exc:
            if memory == "ram" and (isinstance(exc, SnapshotUnusable) or left == 1):
                memory, note = "cold", f" (its memory could not go on: {exc.message})"
            elif left == 0:
                raise
        else:
            how = "booted from its disk" if info.boot_mode == "cold" else "with its memory"
            return f"put back to {point}, {how}{note}"
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError("the last try returns or raises")


async def _is_over(engine: EnginePort, row: ChangeRow) -> bool:
    return (await engine.get(row.info.sandbox_id)).state in (S.DELETING, S.DELETED)


async def reboot(engine: EnginePort, row: ChangeRow) -> str:
    """Boot the machine from its disk as it is now; return the boot mode. Raises as `EnginePort.rollback`."""
    info = await engine.get(row.info.sandbox_id)
    point = await find(engine, row, _reboot_label(row))
    if point is None:
        point = await engine.snapshot(row.info.sandbox_id, label=_reboot_label(row))
    info = await engine.rollback(
        row.info.sandbox_id,
        point.id,
        memory="cold",
        holder=row.info.id,
        since_generation=row.notes["generation"],
    )
    return str(info.boot_mode)


async def drop_helpers(engine: EnginePort, row: ChangeRow) -> None:
    """Remove the snapshot that was only taken to boot from."""
    found = await find(engine, row, _reboot_label(row))
    if found is not None:
        with contextlib.suppress(TorporError):  # such as one that a fork was made from meanwhile
            await engine.delete_snapshot(found.id)
