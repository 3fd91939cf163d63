"""What was found in a clone, as five of the six points; the first, that it boots, is told by who boots it.

A point rests on the checks of its kinds, and on what the snapshot's inventory and the agent's profile say. Where
none of them says anything the point has `nothing`, which is no pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torpor.model_checks import CheckReport, CheckResult
from torpor.model_drills import Point, PointName, PointOutcome
from torpor.model_inventory import Inventory
from torpor.model_inventory_diff import compare
from torpor.recovery.drills.still import Held

_POINT_OF: Mapping[str, PointName] = {
    "machine": "boots",
    "process": "agent",
    "file": "files",
    "package": "files",
    "sqlite": "files",
    "service": "services",
    "port": "services",
    "http": "services",
    "command": "task",
    "turn": "task",
    "executable": "task",
}
_SCHEDULED = ("jobs", "cron", "timers")
_FILES = (
    "skills",
    "tools",
    "models",
    "settings",
    "memory",
    "channels",
    "env",
    "sqlite",
    "tables",
    "files",
)
_NAMED_MOST = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a point rests on."""

    outcome: PointOutcome
    said: str


@dataclass(slots=True)
class Found:
    """All that was found, by point."""

    by_point: dict[PointName, list[Finding]] = field(default_factory=dict)

    def add(self, name: PointName, outcome: PointOutcome, said: str) -> None:
        """Note a finding."""
        self.by_point.setdefault(name, []).append(Finding(outcome, said))

    def point(self, name: PointName) -> Point:
        """Return a point from all that was found of it: the worst decides."""
        found = self.by_point.get(name, [])
        for outcome in ("fail", "inconclusive", "pass"):
            said = [one.said for one in found if one.outcome == outcome]
            if said:
                more = f"; and {len(said) - 1} more" if len(said) > 1 else ""
                return Point(
                    name=name,
                    outcome=outcome,
                    why=f"{said[0]}{more}",
                    details=tuple(one.said for one in found),
                )
        why = found[0].said if found else _NOTHING[name]
        details = tuple(one.said for one in found)
        return Point(name=name, outcome="nothing", why=why, details=details)


_NOTHING: Mapping[PointName, str] = {
    "boots": "nobody looked",
    "agent": "no profile names the agent's processes, and no `process` check does",
    "files": "the snapshot has no inventory, and no `file`, `package` or `sqlite` check was given",
    "services": "no service ran when it was taken, and no `service`, `port` or `http` check was given",
    "task": "nothing was run",
    "schedule": "nothing is scheduled in this machine",
}


def add_checks(found: Found, report: CheckReport, held: Held, *, is_cold: bool) -> None:
    """Sort the results of required checks under their points."""
    for result in report.results:
        if result.group != "required" or result.outcome == "skipped":
            continue
        name = _point_of(result)
        said = f"{result.kind} {result.name}: {result.reason}"
        if result.outcome == "pass":
            found.add(name, "pass", said)
        elif result.kind == "turn":
            why = "a turn needs its provider, which nothing in a drill reaches"
            found.add(name, "nothing", f"{said} ({why})")
        elif is_cold and result.kind == "service" and held.holds(_unit(result.name)):
            found.add(name, "nothing", f"{said} (it is held back in drills)")
        else:
            found.add(name, result.outcome, said)


def _point_of(result: CheckResult) -> PointName:
    if result.kind == "inventory":
        kind = result.name.partition(".")[0]
        return "schedule" if kind in _SCHEDULED else "files"
    return _POINT_OF.get(result.kind, "task")


def _unit(name: str) -> str:
    return name if "." in name else f"{name}.service"


def add_holdings(found: Found, before: Inventory, now: Inventory) -> None:
    """Compare what the clone holds with what the machine held when it was taken."""
    diff = compare(before, now)
    for kinds, name in ((_FILES, "files"), (_SCHEDULED, "schedule")):
        for kind in kinds:
            count = len(before.entries(kind))
            if not count:
                continue
            offends = [
                change
                for change in diff.of(kind)
                if change.what == "removed" or (name == "schedule" and change.what == "changed")
            ]
            if offends:
                words = {"removed": "is gone", "changed": "is not what it was"}
                said = "; ".join(
                    f"{c.kind} {c.name} {words[c.what]}" for c in offends[:_NAMED_MOST]
                )
                more = len(offends) - _NAMED_MOST
                found.add(name, "fail", said + (f"; and {more} more" if more > 0 else ""))  # type: ignore[arg-type]
            elif not set(before.entries(kind)) <= set(now.entries(kind)):
                found.add(name, "inconclusive", f"{kind}: not all of it could be listed")  # type: ignore[arg-type]
            else:
                found.add(name, "pass", f"all {count} {kind} are there")  # type: ignore[arg-type]


def add_units(found: Found, before: Inventory, now: Inventory, held: Held) -> None:
    """Say whether the services that ran when it was taken run now."""
    wanted = {name for name in _lasting(before) if not held.holds(name)}
    if not wanted:
        return
    if "units" not in now.sections:
        found.add("services", "inconclusive", "the clone's services could not be listed")
        return
    missing = sorted(wanted - running(now))
    if missing:
        states = now.entries("units")
        said = [f"{name} is {_state(states.get(name))}" for name in missing[:_NAMED_MOST]]
        more = f"; and {len(missing) - _NAMED_MOST} more" if len(missing) > _NAMED_MOST else ""
        found.add("services", "fail", "; ".join(said) + more + ", and ran when it was taken")
    else:
        found.add("services", "pass", f"the {len(wanted)} services that ran when it was taken run")


def missing_units(before: Inventory, now: Inventory, held: Held) -> bool:
    """Return whether a service that ran does not run yet."""
    return any(not held.holds(name) for name in _lasting(before) - running(now))


def running(inventory: Inventory) -> set[str]:
    """Return the services of the machine itself that ran."""
    return {
        name
        for name, entry in inventory.entries("units").items()
        if entry.shown.get("state") == "active" and ":" not in name
    }


def _lasting(inventory: Inventory) -> set[str]:
    """Return those that ran and start by themselves: others come when they are asked for, and go again."""
    units = inventory.entries("units")
    return {name for name in running(inventory) if units[name].shown.get("enabled") is True}


def _state(entry: object) -> str:
    shown: Mapping[str, object] = getattr(entry, "shown", {})
    return str(shown.get("state") or "not there")


def add_processes(found: Found, patterns: Sequence[tuple[str, str, bool]]) -> None:
    """Say which of the agent's processes are there: each pattern, why it cannot be told, and whether it fits one."""
    for pattern, why_not, is_there in patterns:
        if why_not:
            found.add("agent", "inconclusive", why_not)
            continue
        outcome: PointOutcome = "pass" if is_there else "fail"
        word = "runs" if is_there else "does not run"
        found.add("agent", outcome, f"a process like {pattern!r} {word}")
