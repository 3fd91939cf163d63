"""The plain values of a change: a transaction on one sandbox that ends kept or rolled back.

All are frozen and have a JSON form, the same in the database, over REST and in the SDK. Times are aware and in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NewType

from torpor.model import Consistency, MemoryChoice, SandboxId, SnapshotId

ChangeId = NewType("ChangeId", str)


class ChangeState(StrEnum):
    """Where a change is; the table of moves is `torpor.recovery.changes.table`."""

    IDLE = "idle"
    """Accepted; nothing was touched yet."""
    QUIESCING = "quiescing"
    """What is so now is written down (checks, inventory), and the machine is made quiet for the snapshot."""
    SNAPSHOTTED = "snapshotted"
    """The point to go back to exists."""
    CHANGING = "changing"
    VERIFYING = "verifying"
    PROBATION = "probation"
    """It looked right; it is looked at again until a deadline, or until somebody confirms it."""
    ROLLING_BACK = "rolling_back"
    KEPT = "kept"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"
    """It could not be begun, or could not be undone; `why` says which."""


ENDED = frozenset({ChangeState.KEPT, ChangeState.ROLLED_BACK, ChangeState.FAILED})
"""States in which a change is over."""

ChangeVerdict = Literal["kept", "rolled_back", "inconclusive"]
"""`inconclusive`: it is kept, since nothing spoke against it, but it could not be told whether it is right."""
ChangeKind = Literal["command", "block"]
"""Who makes the change: a command in the machine, or a client, between `begin` and `done`."""
Ending = Literal[
    "checks", "inventory", "command", "machine", "rejected", "silence", "client", "daemon", "none"
]
"""What decided it: `silence`: nobody confirmed; `client`: whoever made the change went away or failed."""
BAD_TARGET: frozenset[Ending] = frozenset({"checks", "inventory", "command", "machine", "rejected"})
"""Endings that speak against the target itself, so that it is not tried again by accident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSpec:
    """What is asked for."""

    reason: str
    """Why, in one line."""
    author: str = ""
    target: str | None = None
    """What it leads to, such as `hermes 0.19`: remembered when it was rolled back."""
    kind: ChangeKind = "command"
    command: str | None = None
    """For `command`: run by `/bin/sh -c` in the machine, once."""
    user: str | None = None
    cwd: str | None = None
    command_timeout_seconds: float = 3600.0
    checks: str | None = None
    """The text of a checks file; None: only that the machine answers, and what the inventories say."""
    checks_source: str = "checks"
    profile: str | None = None
    """An agent profile, by name or as text; None: the one that fits the machine."""
    change_kind: str | None = None
    """What sort of change the profile is to expect, such as `update`; None: any."""
    allow: tuple[str, ...] = ()
    """Kinds of inventory entries that may differ, beyond what is allowed anyway."""
    inventory: bool = True
    """Compare what the machine holds before and after."""
    probation_seconds: float = 0.0
    """How long it is looked at again after it was verified; 0: it is decided at once."""
    require_confirm: bool = True
    """With a probation: silence at its end rolls back. False: it is kept if nothing spoke against it."""
    interval_seconds: float | None = None
    """Between two looks in probation; None: a tenth of it, 10 s to 5 min."""
    consistency: Consistency | None = None
    """Of the snapshot to go back to; None: `application` where it can be had, else what can be had, which is told."""
    memory: MemoryChoice = "cold"
    """How a rollback comes back."""
    reboot: bool = False
    """Boot the machine from its disk before it is verified."""
    force: bool = False
    """Also a target that was rolled back before."""
    lease_seconds: float = 60.0
    """For `block`: how long the change outlives a client that died."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return found | {"allow": list(self.allow)}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> ChangeSpec:
        """Return the spec in `body`; fields that are not known are ignored."""
        known = {f.name for f in fields(ChangeSpec)}
        values = {key: value for key, value in body.items() if key in known}
        return ChangeSpec(**(values | {"allow": tuple(values.get("allow", ()))}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInfo:
    """What is so about one change."""

    id: ChangeId
    sandbox_id: SandboxId
    state: ChangeState
    reason: str
    author: str
    target: str | None
    kind: ChangeKind
    command: str | None
    memory: MemoryChoice
    created_at: datetime
    updated_at: datetime
    verdict: ChangeVerdict | None = None
    """None while it is open, and when it failed."""
    ending: Ending = "none"
    why: str = ""
    """One sentence: why it ended so, or what it waits for."""
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    """End of the probation; None when there is none, or not yet."""
    require_confirm: bool = False
    """Whether silence until the deadline rolls back."""
    snapshot_id: SnapshotId | None = None
    """The point before the change."""
    failed_snapshot_id: SnapshotId | None = None
    """The machine as the change left it, kept when it was rolled back."""

    @property
    def is_open(self) -> bool:
        """Whether it is not over yet."""
        return self.state not in ENDED

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            found[f.name] = value.isoformat() if isinstance(value, datetime) else value
        return found | {"state": str(self.state)}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> ChangeInfo:
        """Return the change in `body`; fields that are not known are ignored."""
        known = {f.name for f in fields(ChangeInfo)}
        values = {key: value for key, value in body.items() if key in known}
        for name in ("created_at", "updated_at", "ended_at", "deadline_at"):
            if values.get(name) is not None:
                values[name] = datetime.fromisoformat(values[name])
        values["state"] = ChangeState(values["state"])
        return ChangeInfo(**values)


EventName = Literal["state", "step", "output", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEvent:
    """Something that happened to a change while somebody looked.

    `state`: `data` is the change as it is now. `step`: `message`. `output`: `stream`, `offset`, `chunk`. `check`:
    `phase` (`before`, `after`, `probation`), `name`, `outcome`, `reason`.
    """

    seq: int
    """Rises by one; only within one daemon's life."""
    name: EventName
    data: Mapping[str, Any] = field(default_factory=dict)
