"""`torpor diff`: what differs between two snapshots."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import completion
from torpor.cli.find_snapshot import find_snapshot
from torpor.cli.output import AsJson, as_dict, print_json, visible
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.sdk.diff import SnapshotDiff

_SNAPSHOT = "Its id, the beginning of it, or SANDBOX@LABEL."


def diff(
    before: Annotated[
        str, typer.Argument(metavar="BEFORE", help=_SNAPSHOT, autocompletion=completion.snapshots)
    ],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help=_SNAPSHOT, autocompletion=completion.snapshots)
    ],
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            metavar="PATH",
            help="Leave out this path too; /proc /sys /dev /run /tmp are left out unless --all.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Look at /proc /sys /dev /run /tmp too.")
    ] = False,
    allow_cold: Annotated[
        bool,
        typer.Option("--allow-cold", help="Start from the disk alone if memory cannot go on here."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say which files and packages differ between two snapshots.

    For what an agent is made of (skills, jobs, models), and without starting machines, see
    `torpor inventory diff`.

    Both are restored as throw-away sandboxes without a network, their root file systems (no volumes) are walked
    and compared, and both are deleted again, also after Ctrl-C. This needs memory for two more machines. Their
    running programs go on meanwhile, so what those write by themselves shows too. What every restored machine
    has anew (/etc/hostname and /etc/hosts, machine-id, SSH host keys, journal) is left out. Content is read only where size is
    equal and time is not.

    A line begins with A (added), R (removed), C (changed, and what: content, mode, owner, kind, target) or
    P (package).
    """
    from torpor.sdk.diff import SKIP

    wrong = [path for path in skip or [] if not path.startswith("/")]
    if wrong:
        raise InvalidRequest(f"--skip {wrong[0]!r} is not an absolute path")
    first, second = find_snapshot(before), find_snapshot(after)
    print(
        f"note: restoring {first.id} and {second.id} to compare them; both copies are deleted again",
        file=sys.stderr,
    )
    found = first.diff(
        second.id, skip=[*(skip or []), *(() if everything else SKIP)], allow_cold=allow_cold
    )
    if as_json:
        print_json(as_dict(found))
        return
    for line in _lines(found):
        print(visible(line))
    if found.volumes:
        where = visible(", ".join(found.volumes))
        print(
            f"note: volumes are no part of the disk and were not compared: {where}", file=sys.stderr
        )
    if found.packages is None:
        print("note: there is no dpkg-query, so packages were not compared", file=sys.stderr)
    if found.is_empty:
        print("note: nothing that was looked at differs", file=sys.stderr)


def _lines(found: SnapshotDiff) -> list[str]:
    lines = [(info.path, f"A  {info.path}") for info in found.added]
    lines += [(info.path, f"R  {info.path}") for info in found.removed]
    lines += [(c.path, f"C  {c.path}  ({', '.join(c.what)})") for c in found.changed]
    return [line for _, line in sorted(lines)] + [
        f"P  {p.name}  {p.before or 'not installed'} -> {p.after or 'not installed'}"
        for p in found.packages or ()
    ]
