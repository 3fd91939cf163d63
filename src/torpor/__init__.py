"""Torpor: a computer for every AI agent that can be put down and picked up.

The public names are imported when they are first used, so that `import torpor` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torpor import errors
    from torpor.memory import Memory
    from torpor.sdk.changes import AsyncChange
    from torpor.sdk.client import Client
    from torpor.sdk.daemon_memory import AsyncDaemonMemory
    from torpor.sdk.databases import AsyncDatabase
    from torpor.sdk.drills import AsyncDrill
    from torpor.sdk.events import AsyncEvents, Events
    from torpor.sdk.inventories import AsyncProfiles
    from torpor.sdk.sandbox import AsyncSandbox
    from torpor.sdk.snapshots import AsyncSnapshot
    from torpor.sdk.sync_changes import Change
    from torpor.sdk.sync_databases import Database
    from torpor.sdk.sync_drills import Drill
    from torpor.sdk.sync_memory import DaemonMemory
    from torpor.sdk.sync_profiles import Profiles
    from torpor.sdk.sync_sandbox import Sandbox
    from torpor.sdk.sync_snapshots import Snapshot
    from torpor.sdk.sync_templates import Templates
    from torpor.sdk.sync_volumes import Volume
    from torpor.sdk.templates import AsyncTemplates
    from torpor.sdk.tokens import AsyncTokens, Tokens
    from torpor.sdk.volumes import AsyncVolume

__version__ = "0.1.0"

__all__ = [
    "AsyncChange",
    "AsyncDaemonMemory",
    "AsyncDatabase",
    "AsyncDrill",
    "AsyncEvents",
    "AsyncProfiles",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AsyncTemplates",
    "AsyncTokens",
    "AsyncVolume",
    "Change",
    "Client",
    "DaemonMemory",
    "Database",
    "Drill",
    "Events",
    "Memory",
    "Profiles",
    "Sandbox",
    "Snapshot",
    "Templates",
    "Tokens",
    "Volume",
    "__version__",
    "errors",
]

_HOMES = {
    "AsyncChange": "torpor.sdk.changes",
    "AsyncDrill": "torpor.sdk.drills",
    "AsyncEvents": "torpor.sdk.events",
    "Events": "torpor.sdk.events",
    "AsyncDaemonMemory": "torpor.sdk.daemon_memory",
    "AsyncDatabase": "torpor.sdk.databases",
    "AsyncProfiles": "torpor.sdk.inventories",
    "AsyncSandbox": "torpor.sdk.sandbox",
    "AsyncSnapshot": "torpor.sdk.snapshots",
    "AsyncTemplates": "torpor.sdk.templates",
    "AsyncTokens": "torpor.sdk.tokens",
    "AsyncVolume": "torpor.sdk.volumes",
    "Change": "torpor.sdk.sync_changes",
    "Client": "torpor.sdk.client",
    "Drill": "torpor.sdk.sync_drills",
    "DaemonMemory": "torpor.sdk.sync_memory",
    "Database": "torpor.sdk.sync_databases",
    "Memory": "torpor.memory",
    "Profiles": "torpor.sdk.sync_profiles",
    "Sandbox": "torpor.sdk.sync_sandbox",
    "Snapshot": "torpor.sdk.sync_snapshots",
    "Templates": "torpor.sdk.sync_templates",
    "Tokens": "torpor.sdk.tokens",
    "Volume": "torpor.sdk.sync_volumes",
}
"""Where each public name is defined."""


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("torpor.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torpor' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
