"""Writes a first checks file from what a machine is like now.

It is run once before it is handed out, and what does not pass is left out, so that it passes when it is run
at once on the same machine. A first file is a beginning: it knows that things are there, not that they are right.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from torpor.errors import InvalidRequest
from torpor.recovery.checks.clean import clean
from torpor.recovery.checks.facts import Unclear
from torpor.recovery.checks.inside import run_script
from torpor.recovery.checks.parse import parse_checks
from torpor.recovery.checks.plan import TurnSpec
from torpor.recovery.checks.probe import ProbeMachine
from torpor.recovery.checks.run import Progress, run_checks

SURVEY_SECONDS = 120.0
_WALK_SECONDS = 30.0
_DATABASE_SECONDS = 60.0
_TABLES_MOST = 20
_SLACK_RESTARTS = 2
_DEFAULTS = {"timeoutSeconds": 30}
"""All checks run at once; a machine that is slow, or busy, takes long for so many."""
_NAME_CHARS = 200
_EACH_MOST = 60
_HEAD = """\
# A first checks file, written by `torpor check init` from the machine as it was.
# It says that these are there; add what shows that they work: http, sqlite queries, a turn of the agent.
# The reference of all keys is docs/reference/checks.md.
"""

# whose name says nothing of what it runs; the machine's own agent is a python3 too
_INTERPRETER = re.compile(
    r"python[0-9.]*|node|nodejs|bun|deno|ruby[0-9.]*|perl|java|php[0-9.-]*|sh|dash|bash"
)

Groups = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFile:
    """A checks file that was written for a machine."""

    text: str
    left_out: tuple[str, ...]
    """What was seen and does not pass as a check now: id and reason."""
    notes: tuple[str, ...]
    """What was not looked at."""


async def first_checks(
    probe: ProbeMachine, *, turn: TurnSpec | None = None, progress: Progress | None = None
) -> FirstFile:
    """Look at a machine and return a checks file that it passes.

    Args:
        probe: the machine; nothing in it is changed.
        turn: a turn of the agent as its profile names it; it is in the file, but not run.
        progress: called with each result of the trial run.

    Raises:
        InvalidRequest: the machine has no Python, or there is nothing in it to check.
        OperationTimeout, GuestUnreachable, …: as `ProbeMachine.run`.
    """
    found = await _survey(probe)
    groups = _groups(found)
    for path in _texts(found.get("databases")):
        groups["required"].setdefault("sqlite", {})[path] = await _database(probe, path)
    plan = parse_checks(_dump(groups), source="checks.yaml")
    plan = dataclasses.replace(plan, folders=False)
    report = await run_checks(plan, probe, progress=progress)
    left_out = []
    for result in report.results:
        kept = groups.get(result.group, {}).get(result.kind, {})
        if result.outcome != "pass" and kept.pop(result.name, None) is not None:
            left_out.append(f"{result.key}: {result.reason}")
    if turn is not None:
        groups["required"].setdefault("turn", {})["answers"] = {"title": "the agent takes a turn"}
    notes = _texts(found.get("notes"))
    text = _HEAD + "".join(
        f"# {line}\n"
        for line in (*(f"left out, for it does not pass now: {said}" for said in left_out), *notes)
    )
    return FirstFile(text=text + _dump(groups), left_out=tuple(left_out), notes=notes)


async def _survey(probe: ProbeMachine) -> Mapping[str, Any]:
    try:
        asked = {"walk_seconds": _WALK_SECONDS}
        return await run_script(probe, "survey", asked, timeout_seconds=SURVEY_SECONDS)
    except TimeoutError as exc:
        raise InvalidRequest(
            f"the machine could not be looked at within {SURVEY_SECONDS:g} s",
            hint="is it overloaded?",
        ) from exc
    except Unclear as exc:
        raise InvalidRequest(
            f"the machine could not be looked at: {exc}",
            hint="write the file by hand; docs/reference/checks.md has examples",
        ) from exc


def _groups(found: Mapping[str, Any]) -> Groups:
    required: dict[str, dict[str, Any]] = {}
    wanted: dict[str, dict[str, Any]] = {}
    for unit in _objects(found.get("services")):
        restarts = unit.get("restarts")
        name = _text(unit.get("name"))
        if name and isinstance(restarts, int):
            required.setdefault("service", {})[name] = {
                "enabled": True,
                "running": True,
                "restarts": {"le": restarts + _SLACK_RESTARTS},
            }
    for entry in _objects(found.get("ports")):
        port, program = entry.get("port"), _text(entry.get("program"))
        if isinstance(port, int) and 0 < port < 65536:
            required.setdefault("port", {})[f"tcp:{port}"] = {"listening": True}
        if program and not _INTERPRETER.fullmatch(program):
            required.setdefault("process", {})[program] = {"running": True}
    for entry in _objects(found.get("files")):
        path, mode = _text(entry.get("path")), _text(entry.get("mode"))
        if path.startswith("/") and mode:
            wants = {"filetype": "file", "mode": mode}
            owner = _text(entry.get("owner"))
            required.setdefault("file", {})[path] = {**wants, **({"owner": owner} if owner else {})}
    for name in _texts(found.get("packages")):
        wanted.setdefault("package", {})[name] = {"installed": True}
    return {"required": required, "wanted": wanted}


async def _database(probe: ProbeMachine, path: str) -> dict[str, Any]:
    """Return what a database is checked for: its schema, and that tables with rows still have some."""
    asked = {
        "path": path, "quick-check": False, "write-canary": False, "queries": [], "tables": None,
        "lock_wait": 5,
    }  # fmt: skip
    wants: dict[str, Any] = {"quick-check": True, "timeoutSeconds": _DATABASE_SECONDS}
    try:
        found = await run_script(probe, "sqlite_probe", asked, timeout_seconds=_DATABASE_SECONDS)
    except (TimeoutError, Unclear):
        return wants
    schema, rows = found.get("schema"), found.get("rows")
    if isinstance(schema, str) and len(schema) == 64:
        wants["schema"] = schema
    filled = [name for name, count in rows.items() if count] if isinstance(rows, dict) else []
    tables = [name for name in filled if _text(name)][:_TABLES_MOST]
    return {**wants, "min-rows": dict.fromkeys(tables, 1)} if tables else wants


def _dump(groups: Groups) -> str:
    filled = {
        group: {kind: entries for kind, entries in kinds.items() if entries}
        for group, kinds in groups.items()
    }
    if not any(filled.values()):
        raise InvalidRequest(
            "nothing was found in the machine that could be checked: no enabled service of its own, no port, "
            "no configuration, no database",
            hint="write the file by hand; docs/reference/checks.md has examples",
        )
    filled = {group: kinds for group, kinds in filled.items() if kinds}
    file = {"defaults": _DEFAULTS, **filled}
    return yaml.safe_dump(file, sort_keys=False, allow_unicode=True, width=120)


def _objects(raw: object) -> Iterator[Mapping[str, Any]]:
    for item in raw[:_EACH_MOST] if isinstance(raw, list) else ():
        if isinstance(item, dict):
            yield item


def _texts(raw: object) -> tuple[str, ...]:
    items = raw[:_EACH_MOST] if isinstance(raw, list) else []
    return tuple(text for text in map(_text, items) if text)


def _text(raw: object) -> str:
    """Return a text from the machine if it can stand in a checks file, else nothing."""
    if not isinstance(raw, str) or not 0 < len(raw) <= _NAME_CHARS:
        return ""
    return raw if raw.isprintable() and clean(raw) == raw else ""
