"""What the end of a change says of its snapshots: which of them are known to be good from now on."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

from torpor.db.changes import ChangeRow
from torpor.errors import TorporError
from torpor.model import SnapshotId
from torpor.model_checks import CheckReport
from torpor.sandboxes.port import EnginePort


async def mark_kept(engine: EnginePort, row: ChangeRow) -> None:
    """Mark what a change that was kept has shown: the state before it, and each taken while it was looked at.

    Only checks count that passed: a change that was kept without any proves nothing.
    """
    info, report = row.info, row.report
    if info.snapshot_id is not None and _passes(report.get("before")):
        why = f"the checks of change {info.id} passed when it was taken"
        await _mark(engine, info.snapshot_id, row, why)
    passed = [look for look in report.get("looks", []) if _passes(look)]
    if len(passed) < 2 or any(look.get("verdict") != "pass" for look in report["looks"]):
        return
    first, last = (datetime.fromisoformat(look["at"]) for look in (passed[0], passed[-1]))
    for snapshot in await engine.snapshots(info.sandbox_id):
        if first <= snapshot.created_at <= last and snapshot.id != info.snapshot_id:
            why = f"change {info.id} was kept: its checks passed before and after it was taken"
            await _mark(engine, snapshot.id, row, why)


async def mark_put_back(engine: EnginePort, row: ChangeRow) -> None:
    """Mark the snapshot that a machine was put back to, when the checks pass on it again."""
    if row.info.snapshot_id is not None and _passes(row.report.get("undone")):
        why = f"change {row.info.id} was rolled back to it, and its checks passed then"
        await _mark(engine, row.info.snapshot_id, row, why)


def _passes(look: Any) -> bool:
    found = look and look.get("checks")
    return bool(found) and CheckReport.from_json(found).verdict == "pass"


async def _mark(engine: EnginePort, snapshot_id: SnapshotId, row: ChangeRow, why: str) -> None:
    with contextlib.suppress(TorporError):  # such as one that was removed meanwhile
        await engine.mark_good(snapshot_id, row.info.id, why)
