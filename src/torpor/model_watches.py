"""The plain values of a watch: checks that are run on a machine again and again, outside any change.

All are frozen and have a JSON form, the same in the database, over REST and in the SDK. Times are aware and in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from torpor.model import SandboxId, SnapshotId

WatchOutcome = Literal["pass", "fail", "inconclusive", "skipped"]
"""`skipped`: it was not looked at, since it slept or was being changed; that says nothing."""
DAILY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec:
    """What is asked for. Exactly one of `schedule` and `every_seconds` is given."""

    checks: str
    """The text of a checks file."""
    checks_source: str = "checks"
    profile: str | None = None
    """An agent profile, by name or as text, for `turn` checks; None: the one that fits."""
    schedule: str | None = None
    """A cron expression of five fields, in UTC."""
    every_seconds: float | None = None
    wake: bool = False
    """Also wake it to look at it; else a machine that sleeps is left asleep."""
    author: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> WatchSpec:
        """Return the spec in `body`; fields that are not known are ignored."""
        known = {f.name for f in fields(WatchSpec)}
        return WatchSpec(**{key: value for key, value in body.items() if key in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchInfo:
    """What is so about one watch; a sandbox has one at most."""

    sandbox_id: SandboxId
    workspace: str
    checks_source: str
    schedule: str | None
    every_seconds: float | None
    wake: bool
    author: str
    created_at: datetime
    next_at: datetime
    looked_at: datetime | None = None
    """When it was last looked at; a look that was skipped is none."""
    outcome: WatchOutcome | None = None
    """Of the last turn."""
    sentence: str = ""
    failing_since: datetime | None = None
    """When the first of the looks that fail was; None: the last look did not fail."""
    last_good: SnapshotId | None = None
    """The newest snapshot that is known to be good, when it failed."""
    offer: str = ""
    """What to type to put it back; empty while nothing fails, or there is nothing to go back to."""
    reasons: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        found = {k: v.isoformat() if isinstance(v, datetime) else v for k, v in values.items()}
        return found | {"reasons": list(self.reasons)}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> WatchInfo:
        """Return the watch in `body`; fields that are not known are ignored."""
        values = {f.name: body[f.name] for f in fields(WatchInfo) if f.name in body}
        for name in ("created_at", "next_at", "looked_at", "failing_since"):
            if values.get(name) is not None:
                values[name] = datetime.fromisoformat(values[name])
        return WatchInfo(**(values | {"reasons": tuple(values.get("reasons", ()))}))
