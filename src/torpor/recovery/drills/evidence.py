"""The evidence of a drill: what was tried, when, how long it took, and what each of the six points showed.

It is written once, at the end, as one JSON file that is durable before the drill's row says that it is over.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from torpor.base.fsio import make_private_dir, read_json, write_json
from torpor.base.home import Home
from torpor.db.drills import DrillRow
from torpor.errors import NotFound
from torpor.model_checks import Verdict
from torpor.model_drills import EVIDENCE_VERSION, POINTS, DrillId, PointOutcome

_LIMIT_BYTES = 16 << 20
_WORST: tuple[PointOutcome, ...] = ("fail", "inconclusive", "pass")
_HOW = {"ram": "with its memory", "cold": "from its disk"}


@dataclass(frozen=True, slots=True)
class Judged:
    """What all that was found comes to."""

    verdict: Verdict
    sentence: str
    points: tuple[Mapping[str, Any], ...]


def judge(row: DrillRow) -> Judged:
    """Return the verdict: the worst of all points of all ways, and of the files themselves."""
    boots: Sequence[Mapping[str, Any]] = row.notes.get("boots", [])
    damaged: Sequence[str] = row.notes.get("damaged", [])
    unread: str = row.notes.get("unread", "")
    points = tuple(_point(name, title, boots) for name, title in POINTS.items())
    outcomes = [point["outcome"] for point in points]
    verdict: Verdict = "pass"
    if damaged or "fail" in outcomes:
        verdict = "fail"
    elif unread or not boots or "inconclusive" in outcomes or outcomes[0] != "pass":
        verdict = "inconclusive"
    return Judged(verdict, f"{verdict}: {_words(row, verdict, boots, points)}", points)


def _point(name: str, title: str, boots: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one point over all ways of coming back: the worst counts, and says which way it was."""
    seen = [
        (boot["memory"], point)
        for boot in boots
        for point in boot["points"]
        if point["name"] == name
    ]
    for outcome in _WORST:
        for memory, point in seen:
            if point["outcome"] == outcome:
                why = point["why"] if outcome == "pass" else f"{_HOW[memory]}: {point['why']}"
                return {"name": name, "title": title, "outcome": outcome, "why": why}
    why = seen[0][1]["why"] if seen else "it did not come to that"
    return {"name": name, "title": title, "outcome": "nothing", "why": why}


def _words(
    row: DrillRow,
    verdict: Verdict,
    boots: Sequence[Mapping[str, Any]],
    points: Sequence[Mapping[str, Any]],
) -> str:
    snapshot = row.info.snapshot_id
    if row.notes.get("damaged"):
        return f"snapshot {snapshot} is damaged: {row.notes['damaged'][0]}"
    if verdict != "pass":
        for point in points:
            if point["outcome"] == verdict:
                return f"{point['title']}? {point['why']}"[:1000]
        return str(row.notes.get("unread") or row.notes.get("given_up") or "it was not carried out")
    times = " and ".join(
        f"{_HOW[boot['memory']]} in {boot['recovery_ms']['machine'] / 1000:.1f} s" for boot in boots
    )
    passed = sum(point["outcome"] == "pass" for point in points)
    empty = [point["title"] for point in points if point["outcome"] == "nothing"]
    more = f"; nothing to look at: {', '.join(empty)}" if empty else ""
    return f"snapshot {snapshot} came back {times}; {passed} of {len(points)} points pass{more}"


def build(row: DrillRow, judged: Judged, now: datetime, left: Sequence[str]) -> dict[str, Any]:
    """Return the evidence as it is kept."""
    info, spec, notes = row.info, row.spec, row.notes
    checks = spec.checks
    return {
        "version": EVIDENCE_VERSION,
        "id": info.id,
        "verdict": judged.verdict,
        "sentence": judged.sentence,
        "started_at": info.created_at.isoformat(),
        "ended_at": now.isoformat(),
        "author": info.author,
        "schedule_id": info.schedule_id,
        "sandbox_id": info.sandbox_id,
        "snapshot": {**notes.get("snapshot", {}), "choice": info.choice},
        "data_age_seconds": notes.get("data_age_seconds"),
        "checks": None
        if checks is None
        else {
            "source": spec.checks_source,
            "sha256": hashlib.sha256(checks.encode("utf-8", "surrogatepass")).hexdigest(),
        },
        "isolation": {
            "network": "none",
            "identity": "new",
            "memory_of_the_agent": "not reachable",
            "held": notes.get("held", []),
        },
        "files": {"damaged": notes.get("damaged", []), "unread": notes.get("unread", "")},
        "points": list(judged.points),
        "boots": notes.get("boots", []),
        "interrupted": notes.get("interrupted", []),
        "left_behind": list(left),
    }


class EvidenceFiles:
    """Keeps evidence, a file each."""

    def __init__(self, home: Home) -> None:
        self._root = home.drills

    def path(self, drill_id: DrillId) -> Path:
        """Return where a drill's evidence is, or will be."""
        return self._root / f"{drill_id}.json"

    async def write(self, drill_id: DrillId, evidence: Mapping[str, Any]) -> None:
        """Keep it, durably."""
        await asyncio.to_thread(self._write, drill_id, evidence)

    def _write(self, drill_id: DrillId, evidence: Mapping[str, Any]) -> None:
        make_private_dir(self._root)
        write_json(self.path(drill_id), evidence, mode=0o600)

    async def read(self, drill_id: DrillId) -> Mapping[str, Any] | None:
        """Return it; None while there is none. Raises `DataDamaged`."""
        try:
            found = await asyncio.to_thread(
                read_json, self.path(drill_id), limit_bytes=_LIMIT_BYTES
            )
        except NotFound:
            return None
        return cast("Mapping[str, Any]", found)

    async def remove(self, drill_ids: Iterable[DrillId]) -> None:
        """Forget some; what is not there is no error."""

        def work() -> None:
            for drill_id in drill_ids:
                self.path(drill_id).unlink(missing_ok=True)

        await asyncio.to_thread(work)
