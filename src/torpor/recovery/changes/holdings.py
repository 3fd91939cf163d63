"""What a machine holds, for a change: taken before and after, compared under the rules that the change is given.

Without a word about what sort of change it is, packages, versions, models and settings may differ, as they do in any
update; but nothing of the agent's own may get lost: skills, tools, jobs, channels, environment, memory, databases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torpor.base.fsio import fsync_dir, make_private_dir, read_json, remove_tree, write_json
from torpor.base.home import Home
from torpor.base.ids import is_id
from torpor.errors import InvalidRequest, NotFound
from torpor.guest.port import Guest
from torpor.model_changes import ChangeId, ChangeSpec
from torpor.model_inventory import KINDS, Inventory, inventory_from_json
from torpor.model_inventory_rules import Rule, Violation

if TYPE_CHECKING:
    from torpor.recovery.checks import TurnSpec
    from torpor.recovery.checks.baseline import Baseline
    from torpor.recovery.profiles import AgentProfile

_LIMIT_BYTES = 64 << 20
_NAMED_MOST = 20

UNDECLARED: Mapping[str, Rule] = {
    "versions": "may-change",
    "models": "may-change",
    "settings": "may-change",
    "debian": "may-change",
    "python": "may-change",
    "npm": "may-change",
    "files": "may-change",
    "users": "superset",
    "jobs": "superset",
    "cron": "superset",
    "timers": "superset",
    "units.restarts": "may-change",
}
"""Laid over a profile's rules for a change that does not say of which sort it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differs:
    """What differs between two looks."""

    sentences: tuple[str, ...]
    forbidden: tuple[str, ...]
    """Sentences on what the rules do not allow, the hint how to allow it in them."""
    unknown: tuple[str, ...]
    diff: Mapping[str, Any]
    looked_at: int
    """How many things were compared."""
    profile: str
    """Whose profile said where to look."""

    @property
    def shown(self) -> str:
        """What it shows when all that differs may."""
        from torpor.recovery.profiles.loading import MACHINE

        differing = sum(sum(of.values()) for of in self.diff["counts"].values())
        said = f"what differs ({differing}) may" if differing else "nothing differs"
        by = "no agent profile fits" if self.profile == MACHINE else f"profile {self.profile}"
        return f"of what was listed in the machine ({self.looked_at} entries; {by}) {said}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "sentences": list(self.sentences),
            "forbidden": list(self.forbidden),
            "unknown": list(self.unknown),
            "changes": list(self.diff["changes"])[:500],
            "counts": self.diff["counts"],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What a machine held, and the profile that said where to look."""

    inventory: Inventory
    profile: AgentProfile
    profile_text: str | None = None
    """The machine's own profile, if that was used."""

    @staticmethod
    async def take(
        guest: Guest, spec: ChangeSpec, now: datetime, *, before: Holdings | None = None
    ) -> Holdings:
        """Look into a machine, where `before` was looked; raises as `torpor.recovery.inventory.take`.

        After a change the machine is not asked what agent it has: one that lost its agent, or its profile, would
        else be looked at where nothing is, and nothing would be missed.
        """
        from torpor.recovery.inventory import detect, take

        profile, text = profile_of(spec), None
        if before is not None:
            profile, text = before.profile, before.profile_text
        elif profile is None:
            found = await detect(guest)
            profile, text = found.profile, found.own_text
        taken = await take(guest, profile, now=now, commands=True)
        return Holdings(inventory=taken, profile=profile, profile_text=text)

    def compare(self, after: Holdings, spec: ChangeSpec) -> Differs:
        """Return what differs from here to `after`, and what of it the change may not do."""
        from torpor.recovery.inventory import compare, violations

        diff = compare(self.inventory, after.inventory)
        bad = violations(diff, rules_of(self.profile, spec))
        return Differs(
            sentences=diff.sentences(),
            forbidden=tuple(_sentence(found) for found in bad[:_NAMED_MOST])
            + ((f"and {len(bad) - _NAMED_MOST} more",) if len(bad) > _NAMED_MOST else ()),
            unknown=diff.not_compared,
            diff=diff.to_json(),
            profile=self.profile.name,
            looked_at=sum(len(section.entries) for section in after.inventory.sections.values()),
        )

    def baseline(self, guest: Guest, now: datetime) -> Baseline:
        """Return what `inventory` checks of a machine compare with."""
        from torpor.recovery.checks.baseline import Baseline
        from torpor.recovery.inventory import take

        async def taken() -> Inventory:
            return await take(guest, self.profile, now=now, commands=True)

        return Baseline(before=self.inventory, take=taken)

    def as_baseline(self) -> Baseline:
        """Return what `inventory` checks compare with in the look that this was taken in: nothing differs yet.

        What could not be listed, and so will not be compared after the change either, is told by them already.
        """
        from torpor.recovery.checks.baseline import Baseline

        async def taken() -> Inventory:
            return self.inventory

        return Baseline(before=self.inventory, take=taken)

    def turn(self) -> TurnSpec | None:
        """Return the agent's turn as the profile names it, for `turn` checks."""
        from torpor.recovery.checks import turn_of

        return turn_of(self.profile)


class HoldingsFiles:
    """Keeps what machines held before their changes, a folder for each change that holds on to anything."""

    def __init__(self, home: Home) -> None:
        self._root = home.changes

    async def hold(self, change_id: ChangeId) -> None:
        """Note, durably, that a change is about to hold on to something; until `remove`."""
        await asyncio.to_thread(lambda: fsync_dir(self._folder(change_id).parent))

    async def held(self) -> list[ChangeId]:
        """Return the changes that hold on to something, or did when a daemon died."""
        return await asyncio.to_thread(self._held)

    def _held(self) -> list[ChangeId]:
        try:
            names = sorted(path.name for path in self._root.iterdir())
        except FileNotFoundError:
            return []
        return [ChangeId(name) for name in names if is_id(name, "chg")]

    def _folder(self, change_id: ChangeId) -> Path:
        make_private_dir(self._root)
        make_private_dir(self._root / change_id)
        return self._root / change_id

    async def write(self, change_id: ChangeId, held: Holdings) -> None:
        """Keep it, durably."""
        body = {
            "inventory": held.inventory.to_json(),
            "profile": held.profile.name,
            "profile_text": held.profile_text,
        }
        await asyncio.to_thread(self._write, change_id, body)

    def _write(self, change_id: ChangeId, body: Mapping[str, Any]) -> None:
        write_json(self._folder(change_id) / "before.json", body, mode=0o600)

    async def read(self, change_id: ChangeId, spec: ChangeSpec) -> Holdings | None:
        """Return it; None when nothing was kept. Raises `DataDamaged`."""
        path = self._root / change_id / "before.json"
        try:
            found = await asyncio.to_thread(read_json, path, limit_bytes=_LIMIT_BYTES)
        except NotFound:
            return None
        from torpor.recovery.profiles import parse_profile, shipped

        raw = cast("Mapping[str, Any]", found)
        inventory = inventory_from_json(raw["inventory"], source=str(path))
        text = raw["profile_text"]
        profile = profile_of(spec) or (
            shipped(str(raw["profile"])) if text is None else parse_profile(text, source="profile")
        )
        return Holdings(inventory=inventory, profile=profile, profile_text=text)

    async def remove(self, change_id: ChangeId) -> None:
        """Forget it."""
        await asyncio.to_thread(remove_tree, self._root / change_id)


def profile_of(spec: ChangeSpec) -> AgentProfile | None:
    """Return the profile that is asked for; None: the one that fits the machine. Raises as `check_holdings`."""
    text = spec.profile
    if text is None:
        return None
    from torpor.recovery.profiles import parse_profile, shipped

    if "\n" in text or ":" in text:
        return parse_profile(text, source="profile")
    return shipped(text)


def check_holdings(spec: ChangeSpec) -> None:
    """Raise when the profile, or what may differ, cannot be right.

    Raises:
        NotFound: no shipped profile has that name.
        InvalidRequest: the profile is malformed (with line and column), or there is no such kind.
    """
    profile = profile_of(spec)
    for kind in spec.allow:
        if kind.partition(".")[0] not in KINDS:
            raise InvalidRequest(
                f"allow: there is no kind {kind[:80]!r} in an inventory",
                hint=f"one of {', '.join(KINDS)}",
            )
    if spec.change_kind is None:
        return
    if profile is None:
        raise InvalidRequest(
            "a sort of change (change_kind) is what a profile describes, and no profile is named",
            hint="name one, such as profile=hermes",
        )
    known = sorted({*profile.may_change, *profile.may_grow})
    if spec.change_kind not in known:
        raise InvalidRequest(
            f"profile {profile.name} knows no sort of change {spec.change_kind!r}",
            hint=f"it knows {', '.join(known) or 'none'}",
        )


def rules_of(profile: AgentProfile, spec: ChangeSpec) -> Mapping[str, Rule]:
    """Return which differences a change may make."""
    found = dict(profile.rules_for(spec.change_kind))
    if spec.change_kind is None:
        found |= UNDECLARED
    for kind in spec.allow:
        for narrower in [key for key in found if key.startswith(f"{kind}.")]:
            del found[narrower]
        found[kind] = "may-change"
    return found


def _sentence(found: Violation) -> str:
    change = found.change
    what = {"added": "is new", "removed": "is gone"}.get(change.what)
    if what is None:
        what = "changed: " + ", ".join(field.field for field in change.fields[:5])
    return f"{change.kind} {change.name!r} {what} (to allow it: --allow {change.kind})"
