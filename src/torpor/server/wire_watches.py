"""The shapes of watches in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from torpor.model_watches import WatchInfo, WatchOutcome, WatchSpec
from torpor.server.wire import Wire


class WatchRequest(Wire):
    """What PUT …/watch takes; `checks` is needed. Without a time it is once a day."""

    checks: Annotated[str, Field(description="The text of a checks file.")]
    checks_source: Annotated[str, Field(description="What it is called in errors.")] = "checks"
    profile: Annotated[
        str | None, Field(description="An agent profile, by name or as text; null: what fits.")
    ] = None
    schedule: Annotated[
        str | None, Field(description="A cron expression of five fields, in UTC.")
    ] = None
    every_seconds: Annotated[float | None, Field(description="Instead of a schedule.")] = None
    wake: Annotated[bool, Field(description="Also wake it to look at it.")] = False
    author: str = ""

    def spec(self) -> WatchSpec:
        """Return the request in the desk's words."""
        return WatchSpec.from_json(self.model_dump())


class WatchWire(Wire):
    """The watch of one sandbox."""

    sandbox_id: str
    workspace: str
    checks_source: str
    schedule: str | None
    every_seconds: float | None
    wake: bool
    author: str
    created_at: datetime
    next_at: datetime
    looked_at: datetime | None
    outcome: Annotated[WatchOutcome | None, Field(description="Of the last turn.")]
    sentence: str
    failing_since: datetime | None
    last_good: Annotated[
        str | None, Field(description="The newest snapshot that is known to be good.")
    ]
    offer: Annotated[str, Field(description="What to type to put it back.")]
    reasons: list[str]

    @staticmethod
    def of(info: WatchInfo) -> WatchWire:
        """Return `info` as JSON has it."""
        return WatchWire.model_validate(info.to_json())


class WatchListWire(Wire):
    """Watches, those that fail first."""

    watches: list[WatchWire]

    @staticmethod
    def of(found: Sequence[WatchInfo]) -> WatchListWire:
        """Return `found` as JSON has it."""
        return WatchListWire(watches=[WatchWire.of(info) for info in found])
