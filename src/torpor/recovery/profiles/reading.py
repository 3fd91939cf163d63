"""A profile's YAML, checked word for word and turned into an `AgentProfile`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torpor.errors import InvalidRequest
from torpor.model_inventory_rules import RULES, Rule, check_rules
from torpor.recovery.profiles.document import Item
from torpor.recovery.profiles.model import (
    SECTIONS,
    AgentProfile,
    Command,
    Cursor,
    QuiesceHook,
    Source,
    SourceKind,
    Turn,
    Version,
)

FORMAT = 1
NAME = r"[a-z][a-z0-9-]{0,62}"
_HOWS: tuple[SourceKind, ...] = ("folders", "files", "json", "yaml")
_SOURCE_KEYS = {*_HOWS, "containing", "at", "name", "fields", "only", "show", "ignore"}
_COMMAND_KEYS = {"command", "timeout_seconds", "user"}
_HOOKS: Mapping[str, Literal["sqlite", "postgresql", "redis", "command"]] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "redis": "redis",
    "command": "command",
}
_LISTS: Mapping[str, Callable[[Item], str]]
_MANY = 200


def profile_of(root: Item) -> AgentProfile:
    """Return the profile that a document describes.

    Raises:
        InvalidRequest: something in it cannot be; the message has its line and column.
    """
    known = {
        "format", "name", "title", "description", "user", "sources", "freeze_in_drills",
        "versions", "turn", "quiesce", "cursor", "rules", "may_change", "may_grow", *_LISTS,
    }  # fmt: skip
    table = root.table(known)
    if "format" not in table:
        root.fail(f"the key 'format' is missing: {FORMAT}")
    if table["format"].number(0, 1e6) != FORMAT:
        table["format"].fail(f"this version reads format {FORMAT}")
    if "name" not in table:
        root.fail("the key 'name' is missing")
    values: dict[str, Any] = {"name": table["name"].text(fits=NAME)}
    for key in ("title", "description", "user"):
        if key in table:
            values[key] = table[key].text()
    for key, check in _LISTS.items():
        if key in table:
            values[key] = _bounded(table[key], table[key].texts(check))
    for key, read in _PARTS.items():
        if key in table:
            values.update(read(table[key]))
    return AgentProfile(**values)


def _bounded(item: Item, found: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(found) > _MANY:
        item.fail(f"it has more than {_MANY} items")
    return found


def _path(item: Item) -> str:
    """Return a path or pattern: absolute, or relative to a home; it never climbs."""
    value = item.text()
    parts = value.removeprefix("/").rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        item.fail(f"{value!r} is no path: '//', '.' and '..' are not taken")
    if value.startswith("~"):
        item.fail(
            "'~' is not taken", hint="write /root/… and /home/*/…, or a path relative to the homes"
        )
    if sum("**" in part for part in parts) > 1 or any("**" in p and p != "**" for p in parts):
        item.fail("'**' may be one whole part of a path, once")
    return value.rstrip("/")


def _absolute(item: Item) -> str:
    value = _path(item)
    if not value.startswith("/"):
        item.fail(f"{value!r} is not absolute")
    return value


def _pattern(item: Item) -> str:
    value = item.text()
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as exc:
        item.fail(f"{value[:200]!r} is no regular expression: {exc}")
    return value


def _pointer(item: Item) -> str:
    return item.text(fits=r"(/[^/]+)+")


def _unit(item: Item) -> str:
    return item.text(fits=r"[A-Za-z0-9:_.@\\*?\[\]-]+\.(service|timer|socket|target|path)")


_LISTS = {
    "homes": _absolute,
    "detect": _path,
    "watch": _path,
    "exclude": _path,
    "regenerable": _path,
    "machine_bound": _path,
    "env_files": _path,
    "sqlite": _path,
    "python": _path,
    "npm": _path,
    "services": _unit,
    "processes": _pattern,
}


def _sources(item: Item) -> dict[str, Any]:
    found: dict[str, tuple[Source, ...]] = {}
    for kind, listed in item.table(set(SECTIONS)).items():
        found[kind] = _bounded(listed, tuple(_source(each) for each in listed.items()))
    return {"sources": found}


def _source(item: Item) -> Source:
    table = item.table(_SOURCE_KEYS)
    hows = [how for how in _HOWS if how in table]
    if len(hows) != 1:
        item.fail(f"exactly one of {', '.join(_HOWS)} is wanted")
    how = hows[0]
    is_document = how in ("json", "yaml")
    for key in ("at", "name", "fields", "only", "show", "ignore"):
        if key in table and not is_document:
            table[key].fail("only documents (json, yaml) have this")
    if "containing" in table and how != "folders":
        table["containing"].fail("only folders have this")
    return Source(
        how=how,
        path=_path(table[how]),
        containing=table["containing"].text(fits="[^/]+") if "containing" in table else None,
        at=_pointer(table["at"]) if "at" in table else "",
        name=table["name"].text() if "name" in table else None,
        fields=table["fields"].flag() if "fields" in table else False,
        only=table["only"].texts() if "only" in table else (),
        show=table["show"].texts() if "show" in table else (),
        ignore=table["ignore"].texts() if "ignore" in table else (),
    )


def _command(item: Item) -> Command:
    if not item.is_table:
        return Command(command=_words(item))
    table = item.table(_COMMAND_KEYS)
    if "command" not in table:
        item.fail("the key 'command' is missing")
    seconds = table.get("timeout_seconds")
    return Command(
        command=_words(table["command"]),
        timeout_seconds=30.0 if seconds is None else seconds.number(0.1, 3600),
        user=table["user"].text() if "user" in table else None,
    )


def _words(item: Item) -> str | tuple[str, ...]:
    return item.texts() if item.is_list else item.text()


def _versions(item: Item) -> dict[str, Any]:
    return {"versions": _bounded(item, tuple(_version(each) for each in item.items()))}


def _version(item: Item) -> Version:
    table = item.table({"name", "command", "file", "pattern", "git", "at"})
    if "name" not in table:
        item.fail("the key 'name' is missing")
    if sum(key in table for key in ("command", "file", "git")) != 1:
        item.fail("exactly one of command, file, git is wanted")
    if "file" in table and sum(key in table for key in ("pattern", "at")) != 1:
        item.fail("a file needs exactly one of pattern, at")
    return Version(
        name=table["name"].text(fits=r"[A-Za-z0-9 ._@/+-]{1,64}"),
        command=_command(table["command"]) if "command" in table else None,
        file=_path(table["file"]) if "file" in table else None,
        pattern=_pattern(table["pattern"]) if "pattern" in table else None,
        git=_path(table["git"]) if "git" in table else None,
        at=_pointer(table["at"]) if "at" in table else None,
    )


def _turn(item: Item) -> dict[str, Any]:
    table = item.table({*_COMMAND_KEYS, "expect", "control"})
    seconds = table.get("timeout_seconds")
    if "command" not in table:
        item.fail("the key 'command' is missing")
    turn = Turn(
        command=Command(
            command=_words(table["command"]),
            timeout_seconds=120.0 if seconds is None else seconds.number(0.1, 3600),
            user=table["user"].text() if "user" in table else None,
        ),
        expect=_pattern(table["expect"]) if "expect" in table else None,
        control=_command(table["control"]) if "control" in table else None,
    )
    return {"turn": turn}


def _quiesce(item: Item) -> dict[str, Any]:
    return {"quiesce": _bounded(item, tuple(_hook(each) for each in item.items()))}


def _hook(item: Item) -> QuiesceHook:
    table = item.table(
        {
            "name", "kind", "paths", "prepare", "hold", "release", "required", "order",
            "prepare_timeout_seconds", "hold_max_seconds",
        }
    )  # fmt: skip
    for key in ("name", "kind"):
        if key not in table:
            item.fail(f"the key {key!r} is missing")
    kind = table["kind"].one_of(_HOOKS)
    if (kind == "command") != any(key in table for key in ("prepare", "hold", "release")):
        item.fail("a hook of kind command, and no other, has commands: prepare, hold or release")
    prepare_s, hold_s = table.get("prepare_timeout_seconds"), table.get("hold_max_seconds")
    return QuiesceHook(
        name=table["name"].text(fits=NAME),
        kind=kind,
        paths=table["paths"].texts(_path) if "paths" in table else (),
        prepare=table["prepare"].text() if "prepare" in table else None,
        hold=table["hold"].text() if "hold" in table else None,
        release=table["release"].text() if "release" in table else None,
        required=table["required"].flag() if "required" in table else False,
        order=int(table["order"].number(0, 100)) if "order" in table else 50,
        prepare_timeout_seconds=10.0 if prepare_s is None else prepare_s.number(0.1, 300),
        hold_max_seconds=30.0 if hold_s is None else hold_s.number(0.1, 300),
    )


def _cursor(item: Item) -> dict[str, Any]:
    table = item.table({"command", "file", "at"})
    if ("command" in table) == ("file" in table):
        item.fail("exactly one of command, file is wanted")
    cursor = Cursor(
        command=_command(table["command"]) if "command" in table else None,
        file=_path(table["file"]) if "file" in table else None,
        at=_pointer(table["at"]) if "at" in table else None,
    )
    return {"cursor": cursor}


def _freeze(item: Item) -> dict[str, Any]:
    table = item.table({"units", "processes"})
    return {
        "freeze_units": table["units"].texts(_unit) if "units" in table else (),
        "freeze_processes": table["processes"].texts(_pattern) if "processes" in table else (),
    }


def _rules(item: Item) -> dict[str, Any]:
    words: Mapping[str, Rule] = {rule: rule for rule in RULES}
    found: dict[str, Rule] = {}
    for key, value in item.pairs().items():
        found[key] = value.one_of(words)
        _known_kind(value, key)
    return {"rules": found}


def _by_change(key: str) -> Callable[[Item], dict[str, Any]]:
    def read(item: Item) -> dict[str, Any]:
        found: dict[str, tuple[str, ...]] = {}
        for change, kinds in item.pairs().items():
            if not re.fullmatch(NAME, change):
                kinds.fail(f"{change!r} is no name of a kind of change")
            found[change] = kinds.texts()
            for kind in found[change]:
                _known_kind(kinds, kind)
        return {key: found}

    return read


def _known_kind(item: Item, key: str) -> None:
    try:
        check_rules({key: "equal"})
    except InvalidRequest as exc:
        item.fail(exc.message, hint=exc.hint)


_PARTS: Mapping[str, Callable[[Item], dict[str, Any]]] = {
    "sources": _sources,
    "versions": _versions,
    "turn": _turn,
    "quiesce": _quiesce,
    "cursor": _cursor,
    "freeze_in_drills": _freeze,
    "rules": _rules,
    "may_change": _by_change("may_change"),
    "may_grow": _by_change("may_grow"),
}
