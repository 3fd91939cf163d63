"""Takes the snapshot that a change goes back to, as consistent as can be had; which it was, and why, is told."""

from __future__ import annotations

import asyncio
from typing import Any

from torpor.db.changes import ChangeRow
from torpor.model import SnapshotInfo
from torpor.model_changes import ChangeSpec
from torpor.model_quiesce import OnQuiesceFailure, QuiesceSpec, report_to_json
from torpor.recovery.changes.holdings import profile_of
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
    """Return the snapshot before the change, taken now unless an earlier try took it.

    The programs are brought to rest as the profile says that the change names. One that only was found to fit says
    nothing here: what nobody named is looked for in the whole machine.

    Raises:
        TorporError: there is none, and nothing is held any more; `QuiesceFailed` if the consistency that the change
            insists on cannot be had.
    """
    found = await find(engine, row, before_label(row))
    if found is not None:
        return found
    wanted = row.spec.consistency or "application"
    return await engine.snapshot(
        row.info.sandbox_id,
        label=before_label(row),
        consistency=wanted,
        quiesce=await asyncio.to_thread(rest_of, row.spec) if wanted == "application" else None,
        metadata={"change": row.info.id, "reason": row.info.reason[:200]},
    )


def rest_of(spec: ChangeSpec) -> QuiesceSpec:
    """Return how the machine's programs are brought to rest. Reads files.

    Raises:
        NotFound: no profile is called so.
        InvalidRequest: the profile, or its hooks, cannot be right.
    """
    on_failure: OnQuiesceFailure = "refuse" if spec.consistency else "downgrade"
    given = QuiesceSpec(on_failure=on_failure)
    profile = profile_of(spec)
    if profile is None:
        return given
    from torpor.recovery.quiesce import spec_of

    return spec_of(profile, given)


def point_json(info: SnapshotInfo) -> dict[str, Any]:
    """Return what the report keeps of the snapshot before the change."""
    return {
        "id": info.id,
        "label": info.label,
        "consistency": info.consistency,
        "size_bytes": info.size_bytes,
        "pause_ms": info.pause_ms,
        "quiesce": None if info.quiesce is None else report_to_json(info.quiesce),
    }


def described(info: SnapshotInfo) -> str:
    """Return what snapshot it is, and why it is not more consistent."""
    words = f"{info.id}, {info.consistency}-consistent"
    if info.quiesce is None or info.quiesce.held:
        return words
    failed = [h for h in info.quiesce.hooks if h.state in ("failed", "lost")]
    whys = [info.quiesce.reason, *(f"hook {hook.name}: {hook.message}" for hook in failed)]
    return ": ".join([words, "; ".join(dict.fromkeys(why for why in whys if why))])
