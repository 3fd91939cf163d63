"""How an agent is brought to rest, as its profile says."""

from __future__ import annotations

import shlex
from dataclasses import replace
from glob import has_magic

from torpor.model_quiesce import HookKind, HookSpec, QuiesceSpec, quiesce_spec
from torpor.recovery.profiles.model import AgentProfile, Command, QuiesceHook

_KINDS: dict[str, HookKind] = {
    "command": "command",
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "redis": "redis",
}


def spec_of(profile: AgentProfile, given: QuiesceSpec | None = None) -> QuiesceSpec:
    """Return `given` with the profile's hooks, and with its commands for versions and for the cursor.

    What `given` says wins over the profile. A profile that names databases is believed: no others are looked for.
    Commands for versions and the cursor are taken over if the profile says who runs them; as root they could leave
    files behind that the agent cannot write. The rest, and what is read from files, is the inventory's.

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
        cursor = _text(profile, profile.cursor.command)
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
    text = command.command if isinstance(command.command, str) else shlex.join(command.command)
    return text if user == "root" else shlex.join(["runuser", "-u", user, "--", "sh", "-c", text])
