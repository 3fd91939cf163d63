"""`torpor bench`: how fast it is here, beside the bare floor in the same run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.output import AsJson, print_json, print_table
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.bench.run import Report
    from torpor.model import TemplateInfo


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Few samples and small sizes: a look, no comparison.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Only these: boot, exec, files, comebacks, many, pause, bytes, memory, disk, crowd, volume, database.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw pause against changed memory there, PNG and SVG."),
    ] = None,
    template: Annotated[
        str, typer.Option(help="The template whose machines are measured.")
    ] = "base",
    as_json: AsJson = False,
) -> None:
    """Measure Torpor beside the bare floor: the same QEMU or Firecracker with the same files, started by hand.

    It takes some minutes and makes sandboxes of its own, which are gone afterwards, also after Ctrl-C.
    Measure on a machine that does nothing else.
    """
    from torpor.base.home import Home
    from torpor.bench.report import (
        COLUMNS,
        OTHERS_COLUMNS,
        notes,
        others_rows,
        rows,
        to_json,
    )
    from torpor.bench.run import choose, run

    groups = choose(only)
    if os.environ.get("TORPOR_URL"):
        raise InvalidRequest(
            "TORPOR_URL names a daemon elsewhere; the floor can only be measured beside a local one",
            hint="unset TORPOR_URL",
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was made has to go then too
    report = run(Home.default(), _template(template), groups, quick=quick, say=_say)
    if as_json:
        print_json(to_json(report))
    else:
        print_table(COLUMNS, rows(report), empty="nothing was measured")
        if others := others_rows(report):
            print()
            print_table(OTHERS_COLUMNS, others, empty="")
        print()
        for note in notes(report):
            print(note)
    if plot is not None:
        _plot(report, plot)
    if report.missed:
        raise typer.Exit(1)


def _template(name: str) -> TemplateInfo:
    """Return a template; a shipped one is built if it is missing."""
    from torpor.cli.templates import build_progress
    from torpor.sdk.sync_templates import Templates

    with build_progress() as progress:
        return Templates.build(name, progress=progress)


def _plot(report: Report, folder: Path) -> None:
    from torpor.bench import plot

    if not report.pauses:
        _say("no plot: the pause was not measured")
        return
    try:
        files = plot.draw(report.pauses, folder, emulated=report.host.emulated)
    except ImportError:
        _say("no plot: matplotlib is missing; install it with: pip install 'torpor[bench]'")
        return
    for path in files:
        _say(f"drawn: {path}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
