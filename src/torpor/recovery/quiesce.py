"""How an agent is brought to rest, as its profile says."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from glob import has_magic

from torpor.model_quiesce import HookKind, HookSpec, QuiesceSpec, quiesce_spec
from torpor.recovery.profiles.homes import globbed
from torpor.recovery.profiles.model import AgentProfile, Command, Cursor, QuiesceHook

_AT = """\
import json, sys
value = json.load(open(sys.argv[1]))
for part in sys.argv[2].split("/")[1:]:
    part = part.replace("~1", "/").replace("~0", "~")
    value = value[int(part) if isinstance(value, list) else part]
print(value if isinstance(value, str) else json.dumps(value))
"""
"""Prints what is at a JSON pointer of a file."""

_KINDS: dict[str, HookKind] = {
    "command": "command",
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "redis": "redis",
}


def spec_of(profile: AgentProfile, given: QuiesceSpec | None = None) -> QuiesceSpec:
    """Return `given` with the profile's hooks, and with its commands for versions and for the cursor.

    What `given` says wins over the profile. A profile that names databases is believed: no others are looked for.
    Commands for versions are taken over if the profile says who runs them; those without, and versions that are
    read from files, are the inventory's. The cursor's is run by the owner of the agent's home unless the profile
    says by whom: as root it could leave files behind that the agent cannot write.

    Raises:
        InvalidRequest: the two together are too much (64 hooks, 32 versions).
    """
    given = given or QuiesceSpec()
    known = {hook.name for hook in given.hooks}
    hooks = tuple(
        found
        for found in (_hook(profile, hook) for hook in profile.quiesce)
        if found.name not in known
    )
    versions = {
        version.name: text
        for version in profile.versions
        if (text := _text(profile, version.command)) is not None
    }
    cursor = given.cursor
    if cursor is None and profile.cursor is not None:
        cursor = _cursor(profile, profile.cursor)
    return quiesce_spec(
        replace(
            given,
            hooks=(*given.hooks, *hooks),
            versions={**versions, **given.versions},
            cursor=cursor,
        )
    )


def _hook(profile: AgentProfile, hook: QuiesceHook) -> HookSpec:
    return HookSpec(
        name=hook.name,
        kind=_KINDS[hook.kind],
        required=hook.required,
        order=hook.order,
        prepare_timeout_seconds=hook.prepare_timeout_seconds,
        hold_max_seconds=hook.hold_max_seconds,
        prepare=hook.prepare,
        hold=hook.hold,
        release=hook.release,
        user=profile.user if hook.kind == "command" else None,
        paths=_paths(profile, hook.paths),
    )


def _paths(profile: AgentProfile, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths in each of the agent's homes, as patterns: not each of them is in each machine."""
    return tuple(
        path
        for found in paths
        for path in (
            [found] if found.startswith("/") else [_pattern(f"{h}/{found}") for h in profile.homes]
        )
    )


def _pattern(path: str) -> str:
    """Return a pattern that fits one path: it need not be there, as a path that is named has to."""
    return path if has_magic(path) else f"{path[:-1]}[{path[-1]}]"


def _text(profile: AgentProfile, command: Command | None) -> str | None:
    user = profile.user if command is None or command.user is None else command.user
    if command is None or user is None:
        return None
    return _line(command) if user == "root" else _run_as(shlex.quote(user), _line(command))


def _line(command: Command) -> str:
    return command.command if isinstance(command.command, str) else shlex.join(command.command)


def _run_as(user: str, line: str) -> str:
    """Return what runs a line of shell as a user, with that user's home and programs; `user` is quoted already."""
    return f"runuser -s /bin/sh -c {shlex.quote(f'PATH=$HOME/.local/bin:$PATH; {line}')} {user}"


def _cursor(profile: AgentProfile, cursor: Cursor) -> str | None:
    """Return the command whose first line is the cursor; None: nobody is known who could run it."""
    if cursor.file is not None:
        return _of_file(profile, cursor.file, cursor.at)
    assert cursor.command is not None
    found = _text(profile, cursor.command)
    if found is None and profile.homes:
        run = _run_as('"$(stat -c %U "$at")"', _line(cursor.command))
        return _for_first(profile.homes, f'[ -d "$at" ] && exec {run}')
    return found


def _of_file(profile: AgentProfile, file: str, pointer: str | None) -> str:
    """Return what tells of a file when it was last written, or what is at a JSON pointer in it."""
    places = [file] if file.startswith("/") else [f"{home}/{file}" for home in profile.homes]
    tell = "stat -c '%n, written %y, %s bytes' \"$at\""
    if pointer is not None:
        tell = f'python3 -c {shlex.quote(_AT)} "$at" {shlex.quote(pointer)}'
    return _for_first(places, f'[ -e "$at" ] && exec {tell}')


def _for_first(patterns: Sequence[str], act: str) -> str:
    """Return a line of shell that acts on the first place that is there; none is an error that is told."""
    places = " ".join(map(globbed, patterns))
    return (
        f"for at in {places}; do {act}; done; echo none of {shlex.quote(places)} is there; exit 1"
    )
