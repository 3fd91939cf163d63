"""Commands on drills: prove that a snapshot comes back, list and show the proofs, and schedule them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from torpor.cli import completion
from torpor.cli.find_drill import DrillArg, find_drill
from torpor.cli.find_snapshot import find_source
from torpor.cli.output import (
    AsJson,
    age,
    left,
    print_json,
    print_table,
    stderr_is_terminal,
    visible,
)
from torpor.cli.removal import remove_each
from torpor.cli.unnamed import UnlessNamed
from torpor.errors import InvalidRequest, TorporError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torpor.model import MemoryChoice
    from torpor.model_drills import DrillInfo
    from torpor.sdk.sync_drills import Drill

_BOOTS: dict[str, tuple[str, ...]] = {"both": ("ram", "cold"), "ram": ("ram",), "cold": ("cold",)}


class _RunUnlessNamed(UnlessNamed):
    unnamed = "run"
    shown_as = "torpor drill SNAPSHOT|SANDBOX"


app = typer.Typer(
    cls=_RunUnlessNamed,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help=(
        "Prove that a snapshot comes back (`torpor drill SNAPSHOT|SANDBOX`): it is restored into an isolated clone, "
        "looked at, timed and thrown away."
    ),
)
schedule_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="List and remove the schedules that begin drills.",
)
app.add_typer(schedule_app, name="schedule")


@app.command("run")
def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SNAPSHOT|SANDBOX",
            help="A snapshot, or a sandbox: then its newest, oldest and a random one in turn.",
            autocompletion=completion.sources,
        ),
    ],
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="CRON",
            help="Not now but again and again: minute, hour, day, month, weekday in UTC ('0 4 * * 1').",
        ),
    ] = None,
    checks: Annotated[
        Path | None, typer.Option("--checks", metavar="FILE", help="What has to be well, too.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME|FILE", help="Agent profile; default: what fits."),
    ] = None,
    boots: Annotated[
        str, typer.Option("--boots", help="How it comes back: both, ram (as it was), cold (disk).")
    ] = "both",
    detach: Annotated[
        bool,
        typer.Option("-d", "--detach", help="Print the drill's id and leave it to the daemon."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a snapshot into an isolated clone, look at it, time it and throw it away.

    The clone has no network and an identity of its own, its schedulers are held, and it does not reach its agent's
    memory; the sandbox itself is not touched. The drill goes on in the daemon when you leave it (Ctrl-C). The exit
    code is 0 when it passes, 107 when it fails, 91 when it could not be told.
    """
    if boots not in _BOOTS:
        raise InvalidRequest(f"--boots {boots!r} is none of {', '.join(_BOOTS)}")
    ways = cast("Sequence[MemoryChoice]", _BOOTS[boots])
    from torpor.base.ids import is_id
    from torpor.sdk.sync_sandbox import Sandbox
    from torpor.sdk.sync_snapshots import Snapshot

    found = find_source(target)
    source = Snapshot.handle(found) if is_id(found, "snap") else Sandbox.handle(found)
    if schedule is not None:
        made = source.schedule_drills(schedule, checks=checks, profile=profile, boots=ways)
        if as_json:
            print_json(made.to_json())
        else:
            print(f"{made.id}  {visible(made.schedule)}  first {made.next_at:%Y-%m-%d %H:%M} UTC")
        return
    drill = source.drill(checks=checks, profile=profile, boots=ways, wait=False)
    if detach:
        print_json(drill.info.to_json()) if as_json else print(drill.id)
        return
    _follow(drill, as_json)


def _follow(drill: Drill, as_json: bool) -> None:
    """Show a drill until it is over; the exit code says what it showed."""
    try:
        drill.wait(_Progress(quiet=as_json))
    except KeyboardInterrupt:
        print(
            f"note: drill {drill.id} goes on in the daemon\n"
            f"      see how it stands: torpor drill show {drill.id}",
            file=sys.stderr,
        )
        raise
    _show(drill, as_json)
    try:
        drill.check()
    except TorporError as error:
        raise typer.Exit(error.exit_code) from None


class _Progress:
    """Says what a drill does, once each, on stderr when that is a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet or not stderr_is_terminal()
        self._last = ""

    def __call__(self, info: DrillInfo) -> None:
        if not self._quiet and info.step != self._last and info.is_open:
            self._last = info.step
            print(f"  {visible(info.step)}", file=sys.stderr)


def _show(drill: Drill, as_json: bool) -> None:
    if as_json:
        print_json({"drill": drill.info.to_json(), "evidence": drill.evidence})
    elif drill.text:
        print(drill.text, end="")
    else:
        print(f"{drill.id}  {visible(drill.info.step)}")


@app.command("show")
def show(drill: DrillArg, as_json: AsJson = False) -> None:
    """Show the evidence of a drill: when, how long, and what each of the six points showed."""
    _show(find_drill(drill), as_json)


def drills(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[SNAPSHOT|SANDBOX]", help="Only of this one; default: all."),
    ] = None,
    limit: Annotated[int, typer.Option(help="How many at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List drills, newest first."""
    from torpor.sdk.sync_drills import Drill

    found = Drill.list(None if target is None else find_source(target), limit=limit)
    if as_json:
        print_json([drill.info.to_json() for drill in found])
        return
    print_table(
        ("ID", "SNAPSHOT", "WHICH", "SANDBOX", "VERDICT", "AGE", "SENTENCE"),
        [
            (
                i.id,
                i.snapshot_id,
                i.choice,
                i.sandbox_id,
                i.verdict or "under way",
                age(i.created_at),
                i.sentence or i.step,
            )
            for i in (drill.info for drill in found)
        ],
        empty="no drills; `torpor drill SNAPSHOT|SANDBOX` makes one",
    )


app.command("ls")(drills)


@schedule_app.command("ls")
def schedules(as_json: AsJson = False) -> None:
    """List the schedules that begin drills, the one that comes first first."""
    from torpor.sdk.sync_drills import Drill

    found = Drill.schedules()
    if as_json:
        print_json([info.to_json() for info in found])
        return
    print_table(
        ("ID", "SCHEDULE", "OF", "NEXT", "LAST DRILL", "NOTE"),
        [
            (
                i.id,
                i.schedule,
                i.snapshot_id or i.sandbox_id,
                left(i.next_at),
                i.last_drill,
                i.note or None,
            )
            for i in found
        ],
        empty="no schedules; `torpor drill SANDBOX --schedule '0 4 * * 1'` makes one",
    )


@schedule_app.command("rm")
def unschedule(
    schedules: Annotated[list[str], typer.Argument(metavar="SCHEDULE…", help="Their ids.")],
    as_json: AsJson = False,
) -> None:
    """Begin no more drills by these schedules; one that runs goes on."""
    from torpor.sdk.sync_drills import Drill

    def end(schedule: str) -> None:
        Drill.unschedule(schedule)

    remove_each({schedule: partial(end, schedule) for schedule in schedules}, as_json=as_json)
