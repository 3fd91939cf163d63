"""Events: what changed its state, as the engine tells and clients read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEvent:
    """One change of state that is durable."""

    id: str
    """Where it stands in the daemon's log; give it to go on behind it."""
    kind: str
    """`sandbox`, `snapshot`, `template` or `watch`; `gap`: events were missed here, look at things anew."""
    object_id: str
    """Id of the sandbox or snapshot, name of the template; empty for a gap."""
    state: str
    """A sandbox's state; `created`, `deleted`; `built`; what a watch finds: `failing`, `passing`, or `ended`."""
    at: datetime
    workspace: str | None
    """None: of all."""
    details: Mapping[str, str | int | None] = field(default_factory=dict)
    """What else is good to know: template, generation, sandbox_id, label, reason."""
