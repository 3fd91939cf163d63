"""`torpor check`: run a checks file in a sandbox, and write a first one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.find import SandboxArg, find
from torpor.cli.find_snapshot import find_snapshot
from torpor.cli.output import AsJson, print_json, visible
from torpor.errors import CheckFailed, CheckInconclusive, Conflict, InvalidRequest

if TYPE_CHECKING:
    from torpor.model_checks import CheckReport, CheckResult

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Say whether a sandbox is well, by a checks file.",
)

Profile = Annotated[
    str | None, typer.Option(help="The agent's profile, which says how to take a turn.")
]

_STYLES = {"pass": "green", "fail": "bold red", "warn": "yellow", "inconclusive": "magenta"}
_CODES = {"pass": 0, "fail": CheckFailed.exit_code, "inconclusive": CheckInconclusive.exit_code}


@app.command("run")
def run(
    sandbox: SandboxArg,
    checks: Annotated[
        Path, typer.Option("--checks", "-c", metavar="FILE", help="The checks file; `-`: stdin.")
    ],
    junit: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Also write JUnit XML there.")
    ] = None,
    profile: Profile = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT", help="What `inventory` compares with; default: where it last was."
        ),
    ] = None,
    within: Annotated[
        float, typer.Option(metavar="SECONDS", help="For all; the rest is inconclusive.")
    ] = 3600,
    as_json: AsJson = False,
) -> None:
    """Run a checks file in a sandbox. Exit code 0: pass; 90: a required check fails; 91: it could not be told."""
    text: str | Path = sys.stdin.read() if str(checks) == "-" else checks
    if isinstance(text, str) and "\n" not in text:
        text += "\n"  # a text, never a path
    if junit is not None and not junit.parent.is_dir():
        raise InvalidRequest(f"there is no folder {junit.parent} for --junit")
    report = find(sandbox).check(
        text,
        profile=profile,
        baseline=None if baseline is None else find_snapshot(baseline).id,
        within_seconds=within,
        on_result=None if as_json else _row(),
    )
    if junit is not None:
        _write(junit, report.to_junit())
    if as_json:
        print_json(report.to_json())
    else:
        _print_end(report)
    raise typer.Exit(_CODES[report.verdict])


@app.command("init")
def init(
    sandbox: SandboxArg,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: stdout.")
    ] = None,
    profile: Profile = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a first checks file from what the sandbox is like now; it passes when it is run at once."""
    if output is not None and output.exists() and not force:
        raise Conflict(f"{output} is there already", hint="--force replaces it")
    text = find(sandbox).check_init(profile=profile)
    if output is not None:
        _write(output, text)
    if as_json:
        print_json({"checks": text, "path": None if output is None else str(output)})
    elif output is None:
        sys.stdout.write(visible(text, keep_lines=True))
    else:
        print(output)
        hint = f"torpor check run {sandbox} --checks {output}"
        print(f"next: {hint}", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be written: {exc.strerror}") from exc


def _row() -> Callable[[CheckResult], None]:
    """Return what prints a line of the table for each result as it comes."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)

    def show(result: CheckResult) -> None:
        line = Text(f"{result.status:<13}", style=_STYLES.get(result.status, "dim"))
        name = f"{result.group} {result.kind} {result.name}"
        line.append(f"{visible(name):<48}", style="default")
        line.append(f" {result.duration_ms / 1000:>6.1f} s  ", style="dim")
        if result.status != "pass":
            line.append(visible(result.reason))
        console.print(line)

    return show


def _print_end(report: CheckReport) -> None:
    for result in report.results:
        if result.outcome == "fail":
            print(f"\n{visible(result.key)}{f' - {visible(result.title)}' if result.title else ''}")
            for finding in result.findings:
                if finding.outcome != "pass":
                    print(f"    {visible(finding.attribute)}")
                    print(f"        wanted  {visible(finding.wanted)}")
                    print(f"        found   {visible(finding.found)}")
            for line in result.output.splitlines()[-10:]:
                print(f"    | {visible(line)}")
    print(f"\n{report.sentence}")
