"""The synchronous face has the same names and signatures as the asynchronous one."""

from __future__ import annotations

import inspect

import pytest

from torpor.sdk.changes import AsyncChange
from torpor.sdk.contexts import AsyncContext, AsyncContexts
from torpor.sdk.databases import AsyncDatabase
from torpor.sdk.drills import AsyncDrill
from torpor.sdk.dual import dual
from torpor.sdk.familiar_commands import AsyncCommands
from torpor.sdk.familiar_files import AsyncFiles
from torpor.sdk.files import AsyncFilesystem
from torpor.sdk.hold import AsyncHold, Hold
from torpor.sdk.process import AsyncProcess
from torpor.sdk.sandbox import AsyncSandbox
from torpor.sdk.snapshots import AsyncSnapshot
from torpor.sdk.sync_changes import Change
from torpor.sdk.sync_contexts import Context, Contexts
from torpor.sdk.sync_databases import Database
from torpor.sdk.sync_drills import Drill
from torpor.sdk.sync_familiar import Commands, Files
from torpor.sdk.sync_files import Filesystem
from torpor.sdk.sync_process import Process
from torpor.sdk.sync_sandbox import Sandbox
from torpor.sdk.sync_snapshots import Snapshot
from torpor.sdk.sync_templates import Templates
from torpor.sdk.sync_volumes import Volume
from torpor.sdk.templates import AsyncTemplates
from torpor.sdk.volumes import AsyncVolume

PAIRS = [
    (AsyncSandbox, Sandbox),
    (AsyncProcess, Process),
    (AsyncFilesystem, Filesystem),
    (AsyncSnapshot, Snapshot),
    (AsyncHold, Hold),
    (AsyncChange, Change),
    (AsyncDrill, Drill),
    (AsyncTemplates, Templates),
    (AsyncDatabase, Database),
    (AsyncVolume, Volume),
    (AsyncContext, Context),
    (AsyncContexts, Contexts),
    (AsyncCommands, Commands),
    (AsyncFiles, Files),
]
DUALS = {
    "check",
    "check_init",
    "attach_volume",
    "change",
    "changes",
    "connect",
    "delete",
    "detach_volume",
    "drill",
    "explore",
    "forward",
    "get_info",
    "hibernate",
    "hold",
    "inventory",
    "is_running",
    "kill",
    "look",
    "pause",
    "ports",
    "preview_url",
    "profile",
    "promote",
    "refresh",
    "resume",
    "rollback",
    "schedule_drills",
    "set_idle",
    "set_timeout",
    "set_ttl",
    "snapshot",
    "snapshots",
    "test_quiesce",
    "unwatch",
    "usage",
    "volumes",
    "wake",
    "watch",
    "watched",
}
SNAPSHOT_DUALS = {"delete", "diff", "drill", "inventory", "restore", "schedule_drills", "verify"}

DIFFER = {"watch_dir"}
"""As in E2B: who waits for events is called with them, who does not asks a handle for them."""


def members(cls: type) -> dict[str, object]:
    """Return the public names, those of the bases too."""
    found = {
        name: value for base in reversed(cls.__mro__[:-1]) for name, value in vars(base).items()
    }
    return {name: value for name, value in found.items() if not name.startswith("_")}


def plain(member: object) -> object:
    if isinstance(member, (classmethod, staticmethod)):
        return member.__func__
    if isinstance(member, dual):
        return member.__wrapped__
    return member


def kind(member: object) -> type:
    return dual if isinstance(member, dual) else type(member)


def shape(function: object) -> list[tuple[str, object, object]]:
    assert callable(function)
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS, ids=lambda c: c.__name__)
def test_names_and_signatures(asynchronous: type, synchronous: type) -> None:
    ours, theirs = members(synchronous), members(asynchronous)
    # An id is an attribute there and a property here.
    assert set(ours) - {"exec_id"} == set(theirs) - {"exec_id"}
    for name, member in theirs.items():
        assert kind(ours[name]) is kind(member), name
        if not isinstance(member, property) and name not in DIFFER:
            assert shape(plain(ours[name])) == shape(plain(member)), name


@pytest.mark.parametrize(
    ("cls", "duals"),
    [
        (AsyncSandbox, DUALS),
        (Sandbox, DUALS),
        (AsyncSnapshot, SNAPSHOT_DUALS),
        (Snapshot, SNAPSHOT_DUALS),
    ],
)
def test_which_methods_work_on_the_class(cls: type, duals: set[str]) -> None:
    assert {name for name, value in members(cls).items() if isinstance(value, dual)} == duals
    for name in (*duals, "fork"):
        assert getattr(cls, name).__doc__
        assert getattr(cls, name).__name__ == name


@pytest.mark.parametrize("cls", [Sandbox, AsyncSandbox])
def test_who_calls_the_class_is_told_what_to_call(cls: type) -> None:
    with pytest.raises(TypeError, match=rf"{cls.__name__}\.create\(\.\.\.\)"):
        cls()


def test_a_name_is_no_sandbox() -> None:
    with pytest.raises(TypeError, match=r"Sandbox\.create\(\.\.\.\)"):
        Sandbox("base")  # type: ignore[arg-type]
