"""The plain values of a drill: a snapshot restored into a clone that nobody else sees, to prove that it can be.

All are frozen and have a JSON form, the same in the database, over REST and in the SDK. Times are aware and in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, NewType

from torpor.model import MemoryChoice, SandboxId, SnapshotId
from torpor.model_checks import Verdict

DrillId = NewType("DrillId", str)

PointName = Literal["boots", "agent", "files", "services", "task", "schedule"]
POINTS: Mapping[PointName, str] = {
    "boots": "the machine boots",
    "agent": "the agent's process starts",
    "files": "the expected files are there",
    "services": "the required services respond",
    "task": "a small task completes",
    "schedule": "scheduled work has its configuration",
}
"""What every drill looks at, in this order; each says what it found, also that there was nothing to look at."""
PointOutcome = Literal["pass", "fail", "inconclusive", "nothing"]
"""`nothing`: there was nothing to look at, which is not a pass."""
Choice = Literal["named", "newest", "oldest", "random"]
"""Which of a sandbox's snapshots it is, and why: `named` by the caller, else in turn."""

EVIDENCE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSpec:
    """What is asked for."""

    checks: str | None = None
    """The text of a checks file; None: what the snapshot's inventory and the agent's profile say, alone."""
    checks_source: str = "checks"
    profile: str | None = None
    """An agent profile, by name or as text; None: the one that fits."""
    boots: tuple[MemoryChoice, ...] = ("ram", "cold")
    """How it is brought back, one after the other: with its memory, and from its disk alone."""
    limit_seconds: float = 3600.0
    """For each of them."""
    author: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"boots": list(self.boots)}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> DrillSpec:
        """Return the spec in `body`; fields that are not known are ignored."""
        known = {f.name for f in fields(DrillSpec)}
        values = {key: value for key, value in body.items() if key in known}
        return DrillSpec(**(values | {"boots": tuple(values.get("boots", ("ram", "cold")))}))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillInfo:
    """What is so about one drill."""

    id: DrillId
    snapshot_id: SnapshotId
    sandbox_id: SandboxId | None
    """The sandbox that the snapshot was taken of; it is not touched."""
    choice: Choice
    author: str
    workspace: str
    created_at: datetime
    updated_at: datetime
    boots: tuple[MemoryChoice, ...]
    step: str = ""
    """What it does now, in a few words."""
    schedule_id: str | None = None
    """The schedule that began it; None: somebody asked."""
    verdict: Verdict | None = None
    """None while it goes on."""
    sentence: str = ""
    """The verdict in one sentence."""
    ended_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is not over yet."""
        return self.ended_at is None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            found[f.name] = value.isoformat() if isinstance(value, datetime) else value
        return found | {"boots": list(self.boots)}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> DrillInfo:
        """Return the drill in `body`; fields that are not known are ignored."""
        values = _known(DrillInfo, body)
        return DrillInfo(**(values | {"boots": tuple(values["boots"])}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one way of coming back showed of one point."""

    name: PointName
    outcome: PointOutcome
    why: str
    """One sentence."""
    details: tuple[str, ...] = field(default=())
    """What it rests on: the checks, units and entries that were looked at."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "name": self.name,
            "title": POINTS[self.name],
            "outcome": self.outcome,
            "why": self.why,
            "details": list(self.details),
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Point:
        """Return the point in `body`."""
        return Point(
            name=body["name"],
            outcome=body["outcome"],
            why=str(body["why"]),
            details=tuple(body["details"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """Drills that are begun again and again, by the clock."""

    id: str
    schedule: str
    """A cron expression of five fields, in UTC."""
    sandbox_id: SandboxId | None
    """Its newest, oldest and a random snapshot in turn; None: always the one snapshot."""
    snapshot_id: SnapshotId | None
    workspace: str
    author: str
    created_at: datetime
    next_at: datetime
    last_at: datetime | None = None
    last_drill: DrillId | None = None
    note: str = ""
    """Why the last one could not be begun; empty when it was."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in values.items()}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> ScheduleInfo:
        """Return the schedule in `body`; fields that are not known are ignored."""
        return ScheduleInfo(**_known(ScheduleInfo, body))


def _known(kind: type[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `kind` that are in `body`, times parsed."""
    values = {f.name: body[f.name] for f in fields(kind) if f.name in body}
    for name, value in values.items():
        if name.endswith("_at") and value is not None:
            values[name] = datetime.fromisoformat(value)
    return values
