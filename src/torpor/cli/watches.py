"""Commands on watches: run checks on a machine again and again, and say what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import parse_seconds
from torpor.cli.find import SandboxArg, find
from torpor.cli.output import AsJson, age, left, print_facts, print_json, print_table, span, visible
from torpor.cli.unnamed import UnlessNamed
from torpor.errors import CheckFailed, InvalidRequest, NotFound

if TYPE_CHECKING:
    from torpor.model_watches import WatchInfo


class _PutUnlessNamed(UnlessNamed):
    unnamed = "put"
    shown_as = "torpor watch SANDBOX"


app = typer.Typer(
    cls=_PutUnlessNamed,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help=(
        "Look at a sandbox again and again (`torpor watch SANDBOX --checks FILE`), outside any change; what fails is "
        "told, with the way back."
    ),
)


@app.command("put")
def put(
    sandbox: SandboxArg,
    checks: Annotated[Path, typer.Option("--checks", metavar="FILE", help="What has to be well.")],
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="TIME", help="How often: 6h, 1d; default: once a day."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="CRON",
            help="Instead: minute, hour, day, month, weekday in UTC ('0 4 * * *').",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME|FILE", help="Agent profile; default: what fits."),
    ] = None,
    wake: Annotated[
        bool, typer.Option("--wake", help="Also wake it to look; else one that sleeps sleeps on.")
    ] = False,
    look: Annotated[
        bool, typer.Option("--look/--no-look", help="Look now, too, and say what was found.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Watch a sandbox, in place of the watch that it has. Nothing is put back by itself: what fails is told.

    The exit code is 90 when the look that is made now fails.
    """
    found = find(sandbox)
    seconds = None
    if every is not None:
        try:
            seconds = parse_seconds(every)
        except ValueError as exc:
            raise InvalidRequest(f"--every: {exc}") from exc
    info = found.watch(checks, schedule=schedule, every_seconds=seconds, profile=profile, wake=wake)
    if look:
        info = found.look()
    _told(info, as_json)


@app.command("look")
def look(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """Look at a watched sandbox now, and say what was found. The exit code is 90 when it fails."""
    _told(find(sandbox).look(), as_json)


def _told(info: WatchInfo, as_json: bool) -> None:
    print_json(info.to_json()) if as_json else print_facts(_facts(info))
    if info.outcome == "fail":
        raise typer.Exit(CheckFailed.exit_code)


@app.command("show")
def show(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """Show the watch of a sandbox, what it found last, and the way back when it failed."""
    found = find(sandbox)
    info = found.watched()
    if info is None:
        raise NotFound(
            f"sandbox {found.id} is not watched",
            hint=f"watch it: torpor watch {found.id} --checks FILE",
        )
    print_json(info.to_json()) if as_json else print_facts(_facts(info))


def _facts(info: WatchInfo) -> dict[str, object]:
    looked = None if info.looked_at is None else f"{info.looked_at:%Y-%m-%d %H:%M} UTC"
    facts: dict[str, object] = {
        "sandbox": info.sandbox_id,
        "checks": info.checks_source,
        "when": _when(info),
        "next": left(info.next_at),
        "sleeping": "is woken" if info.wake else "is left asleep",
        "looked at": looked,
        "outcome": info.outcome,
        "found": info.sentence or None,
    }
    if info.reasons:
        facts["reasons"] = "\n".join(info.reasons)
    if info.failing_since is not None:
        facts["failing since"] = f"{info.failing_since:%Y-%m-%d %H:%M} UTC"
        facts["put it back"] = info.offer or "no snapshot of it is known to be good"
        if info.offer:
            facts["not undone"] = "what it did to others; what it did to itself since then is lost"
    return facts


def _when(info: WatchInfo) -> str:
    return info.schedule or f"every {span(info.every_seconds or 0)}"


@app.command("ls")
def ls(as_json: AsJson = False) -> None:
    """List the sandboxes that are watched, those that fail first."""
    from torpor.sdk.watches import watches

    found = watches()
    if as_json:
        print_json([info.to_json() for info in found])
        return
    print_table(
        ("SANDBOX", "WHEN", "NEXT", "OUTCOME", "LOOKED", "FOUND"),
        [
            (
                i.sandbox_id,
                _when(i),
                left(i.next_at),
                i.outcome,
                None if i.looked_at is None else age(i.looked_at),
                i.sentence or None,
            )
            for i in found
        ],
        empty="nothing is watched; `torpor watch SANDBOX --checks FILE` begins",
    )


@app.command("rm")
def rm(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """Watch a sandbox no more."""
    info = find(sandbox).unwatch()
    print_json(info.to_json()) if as_json else print(f"{visible(info.sandbox_id)}  not watched")
