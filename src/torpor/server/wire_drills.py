"""The shapes of drills and their schedules in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from torpor.model import MemoryChoice
from torpor.model_checks import Verdict
from torpor.model_drills import Choice, DrillInfo, DrillSpec, ScheduleInfo
from torpor.server.wire import Wire

_DEFAULT = DrillSpec()


class DrillRequest(Wire):
    """What POST …/drills takes; nothing is needed."""

    checks: Annotated[str | None, Field(description="The text of a checks file.")] = None
    checks_source: Annotated[str, Field(description="What it is called in errors.")] = "checks"
    profile: Annotated[
        str | None, Field(description="An agent profile, by name or as text; null: what fits.")
    ] = None
    boots: Annotated[
        tuple[MemoryChoice, ...],
        Field(description="How it is brought back, one after the other: `ram`, `cold` or both."),
    ] = _DEFAULT.boots
    limit_seconds: Annotated[float, Field(description="For each of them.")] = _DEFAULT.limit_seconds
    author: str = ""

    def spec(self) -> DrillSpec:
        """Return the request in the desk's words."""
        return DrillSpec(
            checks=self.checks,
            checks_source=self.checks_source,
            profile=self.profile,
            boots=self.boots,
            limit_seconds=self.limit_seconds,
            author=self.author,
        )


class ScheduleRequest(DrillRequest):
    """What POST …/drill-schedules takes."""

    schedule: Annotated[
        str, Field(description="Minute, hour, day, month and day of the week, in UTC: 0 4 * * 1.")
    ]


class DrillWire(Wire):
    """One drill."""

    id: str
    snapshot_id: str
    sandbox_id: Annotated[str | None, Field(description="Whose snapshot it is; it is not touched.")]
    choice: Annotated[Choice, Field(description="Which of the sandbox's snapshots, in turn.")]
    author: str
    workspace: str
    created_at: datetime
    updated_at: datetime
    boots: tuple[MemoryChoice, ...]
    step: Annotated[str, Field(description="What it does now.")]
    schedule_id: str | None
    verdict: Annotated[Verdict | None, Field(description="null while it goes on.")]
    sentence: Annotated[str, Field(description="The verdict in one sentence.")]
    ended_at: datetime | None

    @staticmethod
    def of(info: DrillInfo) -> DrillWire:
        """Return `info` as JSON has it."""
        return DrillWire.model_validate(info.to_json())


class DrillListWire(Wire):
    """Drills, newest first."""

    drills: list[DrillWire]

    @staticmethod
    def of(found: Sequence[DrillInfo]) -> DrillListWire:
        """Return `found` as JSON has it."""
        return DrillListWire(drills=[DrillWire.of(info) for info in found])


class ScheduleWire(Wire):
    """Drills that are begun again and again."""

    id: str
    schedule: str
    sandbox_id: Annotated[str | None, Field(description="Its snapshots in turn.")]
    snapshot_id: Annotated[str | None, Field(description="Always this one.")]
    workspace: str
    author: str
    created_at: datetime
    next_at: datetime
    last_at: datetime | None
    last_drill: str | None
    note: Annotated[str, Field(description="Why the last one could not be begun.")]

    @staticmethod
    def of(info: ScheduleInfo) -> ScheduleWire:
        """Return `info` as JSON has it."""
        return ScheduleWire.model_validate(info.to_json())


class ScheduleListWire(Wire):
    """Schedules, the one that comes first first."""

    schedules: list[ScheduleWire]

    @staticmethod
    def of(found: Sequence[ScheduleInfo]) -> ScheduleListWire:
        """Return `found` as JSON has it."""
        return ScheduleListWire(schedules=[ScheduleWire.of(info) for info in found])
