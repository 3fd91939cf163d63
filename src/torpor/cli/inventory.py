"""`torpor inventory`: what a machine holds, and what differs, in the words of someone who runs an agent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import completion
from torpor.cli.find_snapshot import find_source
from torpor.cli.output import AsJson, age, print_facts, print_json, visible
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.model_inventory import Entry, Inventory

_REF = "Id of a sandbox or snapshot, the beginning of one, a name, or SANDBOX@LABEL."
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="A shipped agent profile, or a file. Default: what fits.",
    ),
]
_SAME = 3

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="What a machine holds: packages, services, skills, jobs and so on; and what differs.",
)


@app.command("show")
def show(
    ref: Annotated[
        str,
        typer.Argument(metavar="SANDBOX|SNAPSHOT", help=_REF, autocompletion=completion.sources),
    ],
    profile: Profile = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="List the entries of this kind alone."),
    ] = None,
    commands: Annotated[
        bool,
        typer.Option("--commands", help="Also run the profile's commands that tell versions."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a running sandbox holds now, or what a snapshot held when it was taken.

    Without --kind, counts are printed, and the entries of the kinds that an agent profile adds. Values
    that may be secret never leave the machine.
    """
    from torpor.model_inventory import KINDS

    for kind in kinds or []:
        if kind not in KINDS:
            raise InvalidRequest(f"--kind {kind!r} is not known", hint=f"one of {', '.join(KINDS)}")
    found = _inventory(find_source(ref), profile, commands=commands)
    if as_json:
        print_json(found.to_json())
        return
    if kinds:
        for kind in kinds:
            _print_entries(found, kind)
    else:
        _print_summary(found)
    _print_notes(found)


@app.command("diff")
def diff(
    before: Annotated[
        str, typer.Argument(metavar="BEFORE", help=_REF, autocompletion=completion.sources)
    ],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help=_REF, autocompletion=completion.sources)
    ],
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Say what differs between two snapshots, or between a snapshot and a running sandbox.

    It reads what was noted when the snapshots were taken and starts no machine. `torpor diff` compares
    every file of two snapshots instead, in two machines that it starts for that.
    """
    left, right = find_source(before), find_source(after)
    found = _inventory(left, profile).diff(_inventory(right, profile))
    if as_json:
        print_json({"before": left, "after": right, **found.to_json()})
        return
    for sentence in found.sentences():
        print(visible(sentence))
    for note in found.not_compared:
        print(f"note: {visible(note)}", file=sys.stderr)
    if found.is_empty:
        print("note: nothing that was compared differs", file=sys.stderr)


def _inventory(ref: str, profile: str | None, *, commands: bool = False) -> Inventory:
    from torpor.sdk.sync_sandbox import Sandbox
    from torpor.sdk.sync_snapshots import Snapshot

    if ref.startswith("snap_"):
        return Snapshot.handle(ref).inventory()
    return Sandbox.handle(ref).inventory(profile=profile, commands=commands)


_AGENT_KINDS = ("versions", "models", "tools", "skills", "jobs", "memory", "channels")


def _print_summary(found: Inventory) -> None:
    counts = {
        kind: f"{len(section.entries)}{'' if section.is_complete else ' (incomplete)'}"
        for kind, section in found.sections.items()
    }
    print_facts(
        {
            "profile": found.profile,
            "taken": f"{age(found.taken_at)} ago, in {found.duration_ms} ms",
            **counts,
        }
    )
    for kind in _AGENT_KINDS:
        if found.entries(kind):
            print()
            _print_entries(found, kind)


def _print_entries(found: Inventory, kind: str) -> None:
    print(f"{kind}:")
    for entry in found.entries(kind).values():
        print(f"  {visible(_line(entry))}")


def _line(entry: Entry) -> str:
    parts = [f"{name}={value}" for name, value in entry.shown.items() if value is not None]
    parts += [f"{name}=hidden" for name in entry.hidden]
    parts += [f"{name}=unknown" for name in entry.unknown]
    return f"{entry.name}  {' '.join(parts)}".rstrip()


def _print_notes(found: Inventory) -> None:
    notes = list(found.notes)
    for kind, section in found.sections.items():
        notes += [f"{kind}: {note}" for note in section.notes[:_SAME]]
        if len(section.notes) > _SAME:
            notes.append(f"{kind}: {len(section.notes) - _SAME} more; see --json")
    for note in notes:
        print(f"note: {visible(note)}", file=sys.stderr)
