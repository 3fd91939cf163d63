"""What an agent profile says, as values. Nothing here reads or runs anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from torpor.model_inventory_rules import DEFAULT_RULES, Rule

SourceKind = Literal["folders", "files", "json", "yaml"]
SECTIONS = ("skills", "tools", "models", "jobs", "memory", "channels", "settings")
"""The kinds of entries that a profile names sources for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where entries of one kind are found. Paths are absolute, or relative to each of the agent's homes."""

    how: SourceKind
    """`folders`, `files`: each path that the pattern fits is an entry; `json`, `yaml`: what a document holds."""
    path: str
    """A pattern with `*`, `?` and `**`."""
    containing: str | None = None
    """For `folders`: only those that hold this file."""
    at: str = ""
    """For documents: JSON pointer to the part that holds the entries; empty: the whole."""
    name: str | None = None
    """For a list of objects: the field that names each; None: its place in the list."""
    fields: bool = False
    """For documents: every value below `at` is an entry of its own, named by its dotted path."""
    only: tuple[str, ...] = ()
    """With `fields`: patterns of the dotted names that count; empty: all."""
    show: tuple[str, ...] = ()
    """Fields whose values may be shown; all others are hidden digests."""
    ignore: tuple[str, ...] = ()
    """Fields that change by themselves, such as `last_run_at`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that is run in the guest, never on the host."""

    command: str | tuple[str, ...]
    timeout_seconds: float = 30.0
    user: str | None = None
    """None: the profile's user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """How to learn the version of a part of the agent; exactly one way is given."""

    name: str
    command: Command | None = None
    """Only run when an inventory is asked for by hand, and for changes: it may be slow."""
    file: str | None = None
    pattern: str | None = None
    """With `file`: a regular expression whose first group is the version."""
    git: str | None = None
    """A checkout: the commit that it stands at."""
    at: str | None = None
    """With `file`: a JSON pointer instead of a pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One bounded turn of the agent, and a probe that tells whether its provider can be reached at all."""

    command: Command
    expect: str | None = None
    """A regular expression that stdout must contain; None: exit code 0 is enough."""
    control: Command | None = None
    """Exit code 0: the provider can be reached, so a turn that fails is the agent's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuiesceHook:
    """What holds the agent still while it is captured: a store that is known, or commands."""

    name: str
    kind: Literal["sqlite", "postgresql", "redis", "command"]
    paths: tuple[str, ...] = ()
    """For `sqlite`: patterns of the databases."""
    prepare: str | None = None
    hold: str | None = None
    release: str | None = None
    required: bool = False
    order: int = 50
    prepare_timeout_seconds: float = 10.0
    hold_max_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How to learn the last thing that the agent did to the outside world; exactly one way is given."""

    command: Command | None = None
    file: str | None = None
    at: str | None = None
    """With `file`: JSON pointer to what is noted; None: when it was last written, and its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProfile:
    """All that is known of one kind of agent."""

    name: str
    title: str = ""
    description: str = ""
    user: str | None = None
    """Who the agent runs as; None: the owner of its home."""
    homes: tuple[str, ...] = ()
    """Patterns of the folders it lives in; those that exist count, at most four."""
    detect: tuple[str, ...] = ()
    """Paths of which one must exist for the profile to fit a machine."""
    watch: tuple[str, ...] = ()
    """Files, and folders with all below them."""
    exclude: tuple[str, ...] = ()
    """Patterns of what is never looked at, though it lies below a watched path."""
    regenerable: tuple[str, ...] = ()
    """What the agent makes anew when it is missing; never looked at either."""
    machine_bound: tuple[str, ...] = ()
    """What must not travel to another machine, such as locks and sockets; never looked at either."""
    env_files: tuple[str, ...] = ()
    sources: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    """By kind: skills, tools, models, jobs, memory, channels; `settings` are those an update must never change."""
    sqlite: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    """Patterns of Python environments: folders with lib/python*/site-packages."""
    npm: tuple[str, ...] = ()
    """Patterns of node_modules folders."""
    services: tuple[str, ...] = ()
    """Patterns of systemd units that are the agent's."""
    processes: tuple[str, ...] = ()
    """Regular expressions; each must fit the command line of a running process."""
    freeze_units: tuple[str, ...] = ()
    """Units that act by themselves, kept from starting in drills and after a rollback."""
    freeze_processes: tuple[str, ...] = ()
    versions: tuple[Version, ...] = ()
    turn: Turn | None = None
    quiesce: tuple[QuiesceHook, ...] = ()
    cursor: Cursor | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Laid over `DEFAULT_RULES`."""
    may_change: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the declared kind of change: kinds, or KIND.FIELD, that it may change."""
    may_grow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the declared kind of change: kinds of which more may come."""

    def rules_for(self, change: str | None = None) -> Mapping[str, Rule]:
        """Return the rules that hold for a declared kind of change; None: nothing was declared."""
        found: dict[str, Rule] = {**DEFAULT_RULES, **self.rules}
        if change is not None:
            for key in self.may_grow.get(change, ()):
                found[key] = "superset"
            for key in self.may_change.get(change, ()):
                for narrower in [k for k in found if k.startswith(f"{key}.")]:
                    del found[narrower]
                found[key] = "may-change"
        return MappingProxyType(found)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, without what it does not say."""
        return {
            key: value for key, value in asdict(self).items() if value not in ((), {}, None, "")
        }

    @property
    def digest(self) -> str:
        """Say which words it has: 16 hex digits over all of it."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
