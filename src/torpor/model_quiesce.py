"""What a snapshot with `consistency="application"` asks of the machine's programs, and what came of it.

All are frozen; units are in the names. Nothing here does any work but checking what a caller says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, cast, get_args

from torpor.errors import InvalidRequest

HookKind = Literal["command", "sqlite", "postgres", "redis"]
OnQuiesceFailure = Literal["refuse", "downgrade"]
HookState = Literal["held", "lost", "failed", "nothing", "skipped"]
"""`held`: before and after the capture; `lost`: before it only; `nothing`: there was nothing to hold;
`skipped`: another had failed before its turn."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOOKS_MOST = 64
_VERSIONS_MOST = 32
_TEXT_MOST = 4096
_PATHS_MOST = 64
_SECONDS_MOST = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSpec:
    """One hook that a caller names, beside those that are found in the machine."""

    name: str
    kind: HookKind = "command"
    required: bool = True
    """Whether the snapshot is called `application` only if this one held."""
    order: int | None = None
    """0 to 1000: the lowest prepares and holds first and is released last; None: as its kind has it."""
    prepare_timeout_seconds: float = 60.0
    hold_max_seconds: float = 30.0
    """After so long the machine releases everything by itself."""
    prepare: str | None = None
    """`command`: what is run while the machine's programs go on."""
    hold: str | None = None
    """`command`: what brings them to rest; it ends with status 0, or writes `held` and lives until released."""
    confirm: str | None = None
    """`command`: ends with status 0 if they are at rest still."""
    release: str | None = None
    """`command`: lets them go on; always run, whatever happened."""
    user: str | None = None
    """`command`: who runs them; `postgres`: the role and system user."""
    paths: tuple[str, ...] = ()
    """`sqlite`: databases, or folders that hold some, or patterns of such; empty: the usual places."""
    exclude: tuple[str, ...] = ()
    """`sqlite`: patterns of paths that are left alone."""
    address: str | None = None
    """`redis`: HOST:PORT or a socket's path; `postgres`: the folder of its socket, or a host."""
    port: int | None = None
    """`postgres`: its port."""
    password_file: str | None = None
    """`redis`: a file in the machine with its password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuiesceSpec:
    """How the machine's programs are brought to rest."""

    hooks: tuple[HookSpec, ...] = ()
    discover: bool = True
    """Whether SQLite databases, PostgreSQL and Redis are looked for; a kind that a hook names is not."""
    user_hooks: bool = True
    """Whether the programs in /etc/torpor/quiesce.d are hooks."""
    on_failure: OnQuiesceFailure = "refuse"
    """`refuse`: no snapshot if a required hook fails; `downgrade`: a lesser one, which says so."""
    timeout_seconds: float = 120.0
    """What preparing and holding may take, all together."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Commands by name; the first line that each writes is noted with the snapshot."""
    cursor: str | None = None
    """A command that writes how far the machine's dealings with the outside have come; run while all is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookResult:
    """What came of one hook. What it wrote is the guest's: cut and cleaned, and not believed."""

    name: str
    kind: str
    """As in `HookSpec`, or `program`: one in /etc/torpor/quiesce.d."""
    required: bool
    state: HookState
    message: str = ""
    failed_phase: str = ""
    """`prepare` or `hold`, if that is what failed."""
    release_problem: str = ""
    """Why its release failed; empty: it did not."""
    prepare_ms: float | None = None
    hold_ms: float | None = None
    held_ms: float | None = None
    """How long it was held, or was taking hold."""
    release_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuiesceReport:
    """What came of quiescing the machine."""

    held: bool
    """Whether every required hook said that it held, before the capture and after it."""
    reason: str = ""
    """Why not, if not."""
    confirmed: Literal["after", "lease", "no"] = "no"
    """`after`: asked again after the capture; `lease`: the machine slept at once, within the time it was held for."""
    hooks: tuple[HookResult, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Of tools and models, as commands in the machine said; None: that one failed."""
    cursor: str | None = None
    """How far the machine's dealings with the outside had come, as it said."""
    notes: tuple[str, ...] = ()
    """What went wrong without being a reason."""


def quiesce_spec(
    value: QuiesceSpec | Mapping[str, Any] | None, *, on_failure: str | None = None
) -> QuiesceSpec:
    """Return what a caller means by `value`; None is the default. `on_failure`, if given, wins over the value's.

    Raises:
        InvalidRequest: a name, type or limit in it cannot be right; the message says which.
    """
    spec = value if isinstance(value, QuiesceSpec) else _spec({} if value is None else value)
    if on_failure is not None:
        spec = replace(spec, on_failure=cast("OnQuiesceFailure", on_failure))
    return _checked(spec)


def spec_to_json(spec: QuiesceSpec | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the spec as plain values; None stays None."""
    if not isinstance(spec, QuiesceSpec):
        return None if spec is None else dict(spec)
    hooks = [
        {found.name: getattr(hook, found.name) for found in fields(hook)} for hook in spec.hooks
    ]
    body = {found.name: getattr(spec, found.name) for found in fields(spec)}
    return body | {"hooks": hooks, "versions": dict(spec.versions)}


def _spec(value: Any) -> QuiesceSpec:
    given = _keys(value, QuiesceSpec, "quiesce")
    hooks = given.pop("hooks", ())
    if not isinstance(hooks, (list, tuple)) or len(hooks) > _HOOKS_MOST:
        raise InvalidRequest(f"quiesce.hooks is a list of at most {_HOOKS_MOST} hooks")
    return QuiesceSpec(hooks=tuple(_hook(item) for item in hooks), **given)


def _hook(item: Any) -> HookSpec:
    if isinstance(item, HookSpec):
        return item
    given = _keys(item, HookSpec, "quiesce.hooks")
    if "name" not in given:
        raise InvalidRequest("a hook in quiesce.hooks has no name", hint="name: my-hook")
    for key in ("paths", "exclude"):
        if key in given:
            if not isinstance(given[key], (list, tuple)):
                raise InvalidRequest(f"quiesce.hooks: {key} is a list of strings")
            given[key] = tuple(given[key])
    return HookSpec(**given)


def _keys(value: Any, cls: type[Any], where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{where} is {type(value).__name__}; an object is wanted")
    known = {found.name for found in fields(cls)}
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise InvalidRequest(
            f"{where} has a key {unknown[0][:80]!r} that is not known",
            hint=f"known are {', '.join(sorted(known))}",
        )
    return {key: found for key, found in value.items() if found is not None}


def _checked(spec: QuiesceSpec) -> QuiesceSpec:
    if spec.on_failure not in get_args(OnQuiesceFailure):
        raise InvalidRequest(
            f"on_quiesce_failure is {spec.on_failure!r}; 'refuse' or 'downgrade' is wanted"
        )
    _seconds("quiesce.timeout_seconds", spec.timeout_seconds)
    versions: Any = spec.versions
    if not isinstance(versions, Mapping) or len(versions) > _VERSIONS_MOST:
        raise InvalidRequest(
            f"quiesce.versions is an object with at most {_VERSIONS_MOST} commands"
        )
    for name, command in versions.items():
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
            raise InvalidRequest(f"quiesce.versions: {str(name)[:80]!r} is no name")
        _text(f"quiesce.versions.{name}", command)
    if spec.cursor is not None:
        _text("quiesce.cursor", spec.cursor)
    for key in ("discover", "user_hooks"):
        if not isinstance(getattr(spec, key), bool):
            raise InvalidRequest(f"quiesce.{key} is true or false")
    names = [hook.name for hook in spec.hooks]
    for hook in spec.hooks:
        _check_hook(hook)
        if names.count(hook.name) > 1:
            raise InvalidRequest(f"two hooks are called {hook.name!r}", hint="rename one")
    return spec


def _check_hook(hook: HookSpec) -> None:
    _name("quiesce.hooks", hook.name)
    where = f"hook {hook.name}"
    if hook.kind not in get_args(HookKind):
        raise InvalidRequest(
            f"{where} is of kind {hook.kind!r}; one of {', '.join(get_args(HookKind))} is wanted"
        )
    required: Any = hook.required
    if not isinstance(required, bool):
        raise InvalidRequest(f"{where}: required is true or false")
    _seconds(f"{where}: prepare_timeout_seconds", hook.prepare_timeout_seconds)
    _seconds(f"{where}: hold_max_seconds", hook.hold_max_seconds)
    _whole(f"{where}: order", hook.order, 0, 1000)
    _whole(f"{where}: port", hook.port, 1, 65535)
    for key in ("prepare", "hold", "confirm", "release", "user", "address", "password_file"):
        if (value := getattr(hook, key)) is not None:
            _text(f"{where}: {key}", value)
    if hook.kind == "command" and hook.hold is None and hook.prepare is None:
        raise InvalidRequest(
            f"{where} has neither `prepare` nor `hold`", hint="say what brings the program to rest"
        )
    if len(hook.paths) > _PATHS_MOST or len(hook.exclude) > _PATHS_MOST:
        raise InvalidRequest(f"{where} has more than {_PATHS_MOST} paths", hint="name a folder")
    for path in (*hook.paths, *hook.exclude):
        _text(f"{where}: a path", path)
    for path in hook.paths:
        if not path.startswith("/"):
            raise InvalidRequest(f"{where}: {path[:80]!r} is not an absolute path")


def _name(where: str, name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}: {str(name)[:80]!r} is no name",
            hint="1 to 64 letters, digits, dots, dashes and underscores",
        )


def _text(where: str, value: Any) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _TEXT_MOST or "\0" in value:
        raise InvalidRequest(f"{where} is 1 to {_TEXT_MOST} characters of text")


def _seconds(where: str, value: Any) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0.1 <= value <= _SECONDS_MOST
    ):
        raise InvalidRequest(f"{where} is {value!r}; 0.1 to {_SECONDS_MOST:g} seconds are wanted")


def _whole(where: str, value: Any, least: int, most: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(f"{where} is {value!r}; {least} to {most} is wanted")


def report_to_json(report: QuiesceReport) -> dict[str, Any]:
    """Return the report as plain values."""
    return {
        "held": report.held,
        "reason": report.reason,
        "confirmed": report.confirmed,
        "hooks": [
            {found.name: getattr(hook, found.name) for found in fields(HookResult)}
            for hook in report.hooks
        ],
        "versions": dict(report.versions),
        "cursor": report.cursor,
        "notes": list(report.notes),
    }


_RESULT_KEYS = frozenset(found.name for found in fields(HookResult))


def report_from_json(body: Mapping[str, Any]) -> QuiesceReport:
    """Return what `report_to_json` made. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
    if body["confirmed"] not in ("after", "lease", "no"):
        raise ValueError(f"confirmed is {body['confirmed']!r}")
    return QuiesceReport(
        held=bool(body["held"]),
        reason=str(body["reason"]),
        confirmed=cast("Any", body["confirmed"]),
        hooks=tuple(
            HookResult(**{key: value for key, value in hook.items() if key in _RESULT_KEYS})
            for hook in body["hooks"]
        ),
        versions=dict(body["versions"]),
        cursor=body["cursor"],
        notes=tuple(body["notes"]),
    )
