"""What must not act in a drill's clone: the machine's schedulers, and what the agent's profile names."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torpor.model import Stillness
from torpor.model_inventory import Inventory

if TYPE_CHECKING:
    from torpor.recovery.profiles.model import AgentProfile

SCHEDULERS = (
    "cron.service",
    "crond.service",
    "cronie.service",
    "anacron.service",
    "fcron.service",
    "atd.service",
)
"""Beside all timers of systemd."""
_NOT_STARTED = ("timers.target", "anacron.timer", *SCHEDULERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is held, and what of it is the agent itself, which is let go when all else was looked at."""

    still: Stillness
    agent_units: tuple[str, ...] = ()
    """Patterns of those held services that the profile calls the agent's."""

    def holds(self, unit: str) -> bool:
        """Return whether a service is held, and stays so."""
        return any(
            fnmatch.fnmatchcase(unit, pattern)
            for pattern in self.still.units
            if pattern not in self.agent_units
        )

    @property
    def is_agent(self) -> bool:
        """Whether the agent itself is held."""
        return bool(self.agent_units)


def held_of(profile: AgentProfile | None, inventory: Inventory | None) -> Held:
    """Return what is held in a machine.

    Args:
        profile: the agent's; None: not known yet.
        inventory: what the machine held; it says what the patterns mean before it has booted.
    """
    units: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    if profile is not None:
        units, processes = profile.freeze_units, profile.freeze_processes
        agent = tuple(unit for unit in units if unit in profile.services)
    known = sorted(inventory.entries("units")) if inventory is not None else []
    named = [
        name
        for pattern in units
        for name in ([pattern] if not _is_pattern(pattern) else fnmatch.filter(known, pattern))
    ]
    timers = [
        name
        for name in (sorted(inventory.entries("timers")) if inventory is not None else [])
        if ":" not in name  # a user's own
    ]
    still = Stillness(
        units=(*SCHEDULERS, *units),
        processes=processes,
        masks=tuple(dict.fromkeys((*_NOT_STARTED, *named, *timers))),
    )
    return Held(still=still, agent_units=agent)


def _is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[")
