"""Which hooks there are: those that the host names, what is found in the machine, and those in quiesce.d.

A program in `/etc/torpor/quiesce.d/` may say in a comment line among its first how it is meant:

    # torpor-quiesce: optional prepare_timeout=60 hold_max=20 order=30

Without one it is required, has the usual limits, and its order is the number that its name begins with.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.kernel import Kernel
from torpor_guest.mounts import volumes

HOOKS = "/etc/torpor/quiesce.d"
HOOKS_MOST = 64
KINDS = ("command", "sqlite", "postgres", "redis")
PHASES = ("prepare", "hold", "confirm", "release")
PREPARE_S, HOLD_MAX_S = 60.0, 30.0
LIMIT_MOST_S = 3600.0
ORDERS = {"postgres": 60, "redis": 70, "sqlite": 90}
"""Where a built-in hook comes without one given: what keeps others from writing comes last."""
ORDER = 50
SQLITE_ROOTS = ("/home", "/root", "/srv", "/opt", "/var/lib", "/var/www", "/workspace", "/data")
SQLITE_EXCLUDED = ("/opt/torpor/*", "/var/lib/torpor/*", "/var/lib/docker/overlay2/*")
_NAMED_MOST = 32 << 10
"""Bytes; what a pipe takes at once."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEADER = re.compile(rb"^#\s*torpor-quiesce:(.*)$", re.MULTILINE)
_HEADER_BYTES = 4096
_POSTGRES_SOCKETS = "/run/postgresql"
_POSTGRES_SOCKET = re.compile(r"\.s\.PGSQL\.([0-9]{1,5})")
_REDIS_PORT = "18EB"
"""6379, as /proc/net/tcp has it."""
_LISTENS = "0A"


@dataclass
class HookPlan:
    """One hook, as it is meant."""

    name: str
    kind: str
    """`command`, `sqlite`, `postgres`, `redis`, or `program`: one in quiesce.d."""
    is_required: bool = True
    order: int = ORDER
    prepare_s: float = PREPARE_S
    hold_max_s: float = HOLD_MAX_S
    is_found: bool = False
    """Whether nobody named it: then it is no failure if there is nothing to hold."""
    commands: dict[str, list[str]] = field(default_factory=dict)
    """By phase, what is run."""
    user: str | None = None
    config: dict[str, Any] = field(default_factory=dict)


def make_plan(params: dict[str, Any], kernel: Kernel) -> list[HookPlan]:
    """Return the hooks in the order they are prepared and held.

    Raises:
        AgentError: what the host says, or a header in quiesce.d, cannot be right.
    """
    named = params.get("hooks")
    plans = [_named(item) for item in (named if isinstance(named, list) else [])]
    for plan in plans:
        if plan.kind == "sqlite" and not plan.config.get("paths"):
            plan.config["roots"] = _roots(kernel)
    if params.get("discover") is not False:
        plans += _found({plan.kind for plan in plans}, kernel)
    if params.get("user_hooks") is not False:
        plans += _programs(str(kernel.path(HOOKS)))
    if len(plans) > HOOKS_MOST:
        raise AgentError(
            errors.LIMIT, f"there are {len(plans)} hooks; {HOOKS_MOST} are the most there can be"
        )
    names = [plan.name for plan in plans]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AgentError(errors.INVALID, f"two hooks are called {twice!r}")
    return sorted(plans, key=lambda plan: (plan.order, plan.name))


def _named(item: Any) -> HookPlan:
    if not isinstance(item, dict):
        raise AgentError(errors.INVALID, "a hook is an object")
    if len(json.dumps(item)) > _NAMED_MOST:
        raise AgentError(errors.LIMIT, f"a hook is described in at most {_NAMED_MOST} bytes")
    name, kind = item.get("name"), item.get("kind")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise AgentError(errors.INVALID, f"{str(name)[:100]!r} is no name of a hook")
    if kind not in KINDS:
        raise AgentError(errors.INVALID, f"hook {name} is of kind {str(kind)[:40]!r}")
    plan = HookPlan(
        name,
        kind,
        is_required=item.get("required") is not False,
        order=int(_limit(item, "order", ORDERS.get(kind, ORDER), 0, 1000)),
        prepare_s=_limit(item, "prepare_timeout_s", PREPARE_S, 0.1, LIMIT_MOST_S),
        hold_max_s=_limit(item, "hold_max_s", HOLD_MAX_S, 0.1, LIMIT_MOST_S),
        user=item.get("user") if isinstance(item.get("user"), str) else None,
    )
    if kind == "command":
        for phase in PHASES:
            if isinstance(item.get(phase), str):
                plan.commands[phase] = ["/bin/sh", "-c", item[phase]]
    else:
        keys = ("paths", "exclude", "address", "port", "password_file")
        plan.config = {key: item[key] for key in keys if item.get(key)}
        if plan.user:
            plan.config["user"] = plan.user
        plan.config["exclude"] = [*SQLITE_EXCLUDED, *plan.config.get("exclude", ())]
    return plan


def _limit(item: dict[str, Any], key: str, default: float, least: float, most: float) -> float:
    value = item.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise AgentError(errors.INVALID, f"{key} is {least:g} to {most:g}, got {value!r}")
    return float(value)


def _found(named: set[str], kernel: Kernel) -> list[HookPlan]:
    """Return hooks for what there is in the machine; a kind that was named is left to who named it."""
    plans = []
    if "postgres" not in named:
        folder = str(kernel.path(_POSTGRES_SOCKETS))
        for port in _postgres_ports(folder):
            name = "postgres" if port == "5432" else f"postgres-{port}"
            plans.append(_builtin(name, "postgres", False, {"address": folder, "port": port}))
    if "redis" not in named and _redis_listens(kernel):
        plans.append(_builtin("redis", "redis", False, {}))
    if "sqlite" not in named:
        config = {"roots": _roots(kernel), "exclude": list(SQLITE_EXCLUDED)}
        plans.append(_builtin("sqlite", "sqlite", True, config))
    return plans


def _builtin(name: str, kind: str, is_required: bool, config: dict[str, Any]) -> HookPlan:
    return HookPlan(
        name, kind, is_required=is_required, order=ORDERS[kind], is_found=True, config=config
    )


def _roots(kernel: Kernel) -> list[str]:
    """Return the folders below which databases are looked for: the usual ones, and other disks."""
    usual = [str(kernel.path(root)) for root in SQLITE_ROOTS]
    disks = [
        volume.places[0]
        for volume in volumes(kernel.mounts())
        if volume.is_writable and "/" not in volume.places
    ]
    return [*usual, *disks]


def _postgres_ports(folder: str) -> list[str]:
    """Return the ports of the servers that listen in `folder`."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = (_POSTGRES_SOCKET.fullmatch(name) for name in names)
    return [match[1] for match in found if match]


def _redis_listens(kernel: Kernel) -> bool:
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return False
    return any(
        fields[1].endswith(f":{_REDIS_PORT}") and fields[3] == _LISTENS
        for fields in map(str.split, lines)
        if len(fields) > 3
    )


def _programs(folder: str) -> list[HookPlan]:
    """Return the programs in `folder`; hidden names and backups are passed over."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [f"{folder}/{name}" for name in names if name[0] != "." and name[-1] != "~"]
    return [_program(path) for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def _program(path: str) -> HookPlan:
    name = os.path.basename(path)
    if not _NAME.fullmatch(name):
        raise AgentError(
            errors.INVALID,
            f"the hook {name!r} has a name that cannot be used",
            hint="letters, digits, dots, dashes and underscores are wanted",
        )
    digits = re.match(r"[0-9]{1,3}", name)
    plan = HookPlan(name, "program", order=int(digits[0]) if digits else ORDER)
    plan.commands = {phase: [path, phase] for phase in ("prepare", "hold", "release")}
    with open(path, "rb") as file:
        header = _HEADER.search(file.read(_HEADER_BYTES))
    if header:
        _read_header(plan, header[1].decode("utf-8", "replace").split())
    return plan


def _read_header(plan: HookPlan, words: list[str]) -> None:
    for word in words:
        key, _, value = word.partition("=")
        if word in ("required", "optional"):
            plan.is_required = word == "required"
            continue
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if key == "order" and 0 <= number <= 1000:
            plan.order = int(number)
        elif key == "prepare_timeout" and 0 < number <= LIMIT_MOST_S:
            plan.prepare_s = number
        elif key == "hold_max" and 0 < number <= LIMIT_MOST_S:
            plan.hold_max_s = number
        else:
            raise AgentError(
                errors.INVALID,
                f"the hook {plan.name} says {word!r} in its header, which means nothing",
                hint="required, optional, order=N, prepare_timeout=SECONDS and hold_max=SECONDS do",
            )
