"""The shapes of quiescing in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from torpor.model_quiesce import HookState, OnQuiesceFailure, QuiesceReport, report_to_json
from torpor.server.wire import Wire

Quiesce = Annotated[
    dict[str, Any] | None,
    Field(
        description="How programs are brought to rest, for `application`: `hooks`, `discover`, `user_hooks`,"
        " `on_failure`, `timeout_seconds`, `versions`, `cursor`."
    ),
]


class HookWire(Wire):
    """What came of one hook. Its texts are the guest's: cut, cleaned, not believed."""

    name: str
    kind: Annotated[
        str,
        Field(description="`command`, `sqlite`, `postgres`, `redis`, `program` (in quiesce.d)."),
    ]
    required: bool
    state: Annotated[
        HookState,
        Field(description="`held`: before the capture and after it; `lost`: before it only."),
    ]
    message: str
    failed_phase: str
    release_problem: str
    prepare_ms: float | None
    hold_ms: float | None
    held_ms: float | None
    release_ms: float | None


class QuiesceWire(Wire):
    """What came of bringing a machine's programs to rest."""

    held: Annotated[bool, Field(description="Whether every required hook held.")]
    reason: Annotated[str, Field(description="Why not, if not.")]
    confirmed: Annotated[
        Literal["after", "lease", "no"],
        Field(description="`lease`: the machine slept within the time that it had promised."),
    ]
    hooks: Sequence[HookWire]
    versions: Mapping[str, str | None]
    cursor: str | None
    notes: Sequence[str]

    @staticmethod
    def of(report: QuiesceReport) -> QuiesceWire:
        """Return `report` as JSON has it."""
        return QuiesceWire.model_validate(report_to_json(report))


class QuiesceTestRequest(Wire):
    """What POST …/quiesce/test takes; nothing is needed."""

    quiesce: Quiesce = None
    on_quiesce_failure: OnQuiesceFailure | None = None
