"""The shapes of changes in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from torpor.model import Consistency, MemoryChoice
from torpor.model_changes import (
    ChangeEvent,
    ChangeInfo,
    ChangeKind,
    ChangeSpec,
    ChangeState,
    ChangeVerdict,
    Ending,
)
from torpor.server.wire import Wire

_DEFAULT = ChangeSpec(reason="-")


class ChangeRequest(Wire):
    """What POST …/changes takes; `reason` is needed, and `command` unless `kind` is `block`."""

    reason: Annotated[str, Field(description="Why, in one line.")]
    author: str = ""
    target: Annotated[
        str | None, Field(description="What it leads to; remembered when it is rolled back.")
    ] = None
    kind: Annotated[
        ChangeKind,
        Field(description="`block`: the client makes the change, renews …/lease and says …/done."),
    ] = "command"
    command: Annotated[str | None, Field(description="Run by /bin/sh in the machine, once.")] = None
    user: str | None = None
    cwd: str | None = None
    command_timeout_seconds: float = _DEFAULT.command_timeout_seconds
    checks: Annotated[str | None, Field(description="The text of a checks file.")] = None
    checks_source: Annotated[str, Field(description="What it is called in errors.")] = "checks"
    profile: Annotated[
        str | None, Field(description="An agent profile, by name or as text; null: what fits.")
    ] = None
    change_kind: Annotated[
        str | None, Field(description="What sort of change the profile is to expect.")
    ] = None
    allow: Annotated[
        tuple[str, ...], Field(description="Kinds of inventory entries that may differ.")
    ] = ()
    inventory: Annotated[bool, Field(description="Compare what the machine holds.")] = True
    probation_seconds: float = 0.0
    require_confirm: Annotated[
        bool, Field(description="Silence at the end of the probation rolls back.")
    ] = True
    interval_seconds: float | None = None
    consistency: Annotated[
        Consistency | None, Field(description="Of the snapshot; null: the best that can be had.")
    ] = None
    memory: MemoryChoice = "cold"
    reboot: Annotated[bool, Field(description="Boot it from its disk before it is verified.")] = (
        False
    )
    force: Annotated[bool, Field(description="Also a target that was rolled back before.")] = False
    lease_seconds: float = _DEFAULT.lease_seconds

    def spec(self) -> ChangeSpec:
        """Return the request in the desk's words."""
        return ChangeSpec.from_json(self.model_dump())


class ChangeWire(Wire):
    """One change."""

    id: str
    sandbox_id: str
    state: ChangeState
    verdict: ChangeVerdict | None
    ending: Annotated[Ending, Field(description="What decided it.")]
    why: Annotated[str, Field(description="One sentence.")]
    reason: str
    author: str
    target: str | None
    kind: ChangeKind
    command: str | None
    memory: MemoryChoice
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    deadline_at: Annotated[datetime | None, Field(description="End of the probation.")]
    require_confirm: bool
    snapshot_id: Annotated[str | None, Field(description="The point before the change.")]
    failed_snapshot_id: Annotated[
        str | None, Field(description="The machine as the change left it, if it was rolled back.")
    ]

    @staticmethod
    def of(info: ChangeInfo) -> ChangeWire:
        """Return `info` as JSON has it."""
        return ChangeWire.model_validate({**info.to_json(), "state": info.state})


class ChangeListWire(Wire):
    """Changes, newest first."""

    changes: list[ChangeWire]

    @staticmethod
    def of(found: Sequence[ChangeInfo]) -> ChangeListWire:
        """Return `found` as JSON has it."""
        return ChangeListWire(changes=[ChangeWire.of(info) for info in found])


class WordRequest(Wire):
    """What confirming and rejecting take; nothing is needed."""

    by: Annotated[str, Field(max_length=200, description="Who says so.")] = ""
    why: Annotated[str, Field(max_length=1000, description="In one line; for rejecting.")] = ""


class BlockFailure(Wire):
    """What …/abort takes."""

    why: Annotated[str, Field(max_length=1000)] = ""


def event_data(event: ChangeEvent) -> dict[str, Any]:
    """Return an event as its line of a stream has it."""
    return {"seq": event.seq, **event.data}
