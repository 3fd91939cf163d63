"""Takes the snapshot that a change goes back to, as consistent as can be had; which it was is told."""

from __future__ import annotations

from torpor.db.changes import ChangeRow
from torpor.model import SnapshotInfo
from torpor.model_quiesce import OnQuiesceFailure, QuiesceSpec
from torpor.sandboxes.port import EnginePort


def before_label(row: ChangeRow) -> str:
    """Return the label of the snapshot before a change."""
    return f"before-{row.info.id}"


async def find(engine: EnginePort, row: ChangeRow, label: str) -> SnapshotInfo | None:
    """Return the snapshot of a change's sandbox that has a label."""
    for info in await engine.snapshots(row.info.sandbox_id):
        if info.label == label:
            return info
    return None


async def take_point(engine: EnginePort, row: ChangeRow) -> SnapshotInfo:
    """Return the snapshot before the change, taken now unless an earlier try took it."""
    found = await find(engine, row, before_label(row))
    if found is not None:
        return found
    wanted = row.spec.consistency or "application"
    on_failure: OnQuiesceFailure = "refuse" if row.spec.consistency else "downgrade"
    return await engine.snapshot(
        row.info.sandbox_id,
        label=before_label(row),
        consistency=wanted,
        quiesce=QuiesceSpec(on_failure=on_failure) if wanted == "application" else None,
        metadata={"change": row.info.id, "reason": row.info.reason[:200]},
    )
