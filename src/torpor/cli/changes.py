"""Commands on changes: make one, list them, confirm or undo one, read its report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import parse_seconds
from torpor.cli import completion
from torpor.cli.change_progress import Progress
from torpor.cli.find import SandboxArg, find
from torpor.cli.find_change import ChangeArg, find_change
from torpor.cli.output import AsJson, age, print_json, print_table, visible
from torpor.cli.quiesce import consistency_of
from torpor.cli.unnamed import UnlessNamed
from torpor.errors import InvalidRequest, TorporError

if TYPE_CHECKING:
    from torpor.sdk.sync_changes import Change


class _MakeUnlessNamed(UnlessNamed):
    unnamed = "make"
    shown_as = "torpor change SANDBOX REASON"


app = typer.Typer(
    cls=_MakeUnlessNamed,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help=(
        'Change a sandbox without fear (`torpor change SANDBOX "why" --run COMMAND`): snapshot, change, verify, '
        "then keep it or put the whole machine back."
    ),
)


@app.command("make")
def make(
    sandbox: SandboxArg,
    reason: Annotated[str, typer.Argument(help="Why, in one line.")],
    run: Annotated[
        str, typer.Option("--run", metavar="COMMAND", help="Run by /bin/sh in the machine, once.")
    ],
    checks: Annotated[
        Path | None, typer.Option("--checks", metavar="FILE", help="What has to be well.")
    ] = None,
    probation: Annotated[
        str,
        typer.Option(
            "--probation",
            metavar="TIME",
            help="Look at it again for so long (90s, 10m, 2h); then it is rolled back unless confirmed.",
        ),
    ] = "0",
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm/--no-confirm",
            help="Whether silence at the end of the probation rolls back; else it keeps, if all is well.",
        ),
    ] = True,
    interval: Annotated[
        str | None,
        typer.Option("--interval", metavar="TIME", help="Between two looks in probation."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", help="What it leads to; once rolled back, it is refused next time."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also a target that was rolled back before.")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME|FILE", help="Agent profile; default: what fits."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="What sort of change the profile is to expect: update, …"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="KIND", help="What may differ or get lost: jobs, ports, …"),
    ] = None,
    inventory: Annotated[
        bool, typer.Option("--inventory/--no-inventory", help="Compare what the machine holds.")
    ] = True,
    consistency: Annotated[
        str | None,
        typer.Option(help="Of the snapshot: application, filesystem, crash; default: the best."),
    ] = None,
    ram: Annotated[
        bool, typer.Option("--ram", help="Roll back to memory too; default: boot the old disk.")
    ] = False,
    reboot: Annotated[
        bool, typer.Option("--reboot", help="Boot the machine from its disk before it is verified.")
    ] = False,
    user: Annotated[str | None, typer.Option("-u", "--user", help="Who runs the command.")] = None,
    cwd: Annotated[str | None, typer.Option("-w", "--cwd", help="Where the command runs.")] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Then the command is killed.")
    ] = "1h",
    author: Annotated[str | None, typer.Option(help="Who; default: your user name.")] = None,
    detach: Annotated[
        bool,
        typer.Option("-d", "--detach", help="Print the change's id and leave it to the daemon."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change a sandbox: snapshot, run the command, verify, then keep it or put the whole machine back.

    What the machine does to the outside world meanwhile is not undone: mail that is sent, rows that are written
    elsewhere, API calls that are made. The change goes on in the daemon when you leave it (Ctrl-C). The exit code is
    0 when it is kept, 96 when it was rolled back, 97 when it failed.
    """
    change = find(sandbox).change(
        reason,
        run=run,
        checks=checks,
        profile=profile,
        kind=kind,
        allow=allow or (),
        inventory=inventory,
        target=target,
        probation_seconds=_seconds("--probation", probation),
        require_confirm=confirm,
        interval_seconds=None if interval is None else _seconds("--interval", interval),
        consistency=None if consistency is None else consistency_of(consistency),
        memory="ram" if ram else "cold",
        reboot=reboot,
        force=force,
        author=author,
        user=user,
        cwd=cwd,
        run_timeout_seconds=_seconds("--timeout", timeout),
    )
    change.start()
    if detach:
        print_json(change.info.to_json()) if as_json else print(change.id)
        return
    _follow(change, as_json)


def _follow(change: Change, as_json: bool) -> None:
    """Show a change until it is over; the exit code says what became of it."""
    try:
        change.wait(Progress(quiet=as_json))
    except KeyboardInterrupt:
        print(
            f"note: change {change.id} goes on in the daemon\n"
            f"      see how it stands: torpor report {change.id}\n"
            f"      keep it, once it is on probation: torpor confirm {change.id}\n"
            f"      undo it: torpor change rollback {change.id}",
            file=sys.stderr,
        )
        raise
    assert change.report is not None
    if as_json:
        print_json({"change": change.info.to_json(), "report": change.report.data})
    else:
        print(change.report.text, end="")
    try:
        change.check()
    except TorporError as error:
        raise typer.Exit(error.exit_code) from None


def _seconds(option: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as exc:
        raise InvalidRequest(f"{option}: {exc}") from exc


@app.command("rollback")
def rollback(
    change: ChangeArg,
    why: Annotated[str, typer.Option("--why", help="In one line, for the report.")] = "",
    as_json: AsJson = False,
) -> None:
    """Undo a change that is open, whatever it does now, and wait until that is done.

    What the machine did to the outside world meanwhile is not undone.
    """
    found = find_change(change)
    found.rollback(why, by=_me())
    print_json(found.info.to_json()) if as_json else print(
        f"{found.id}  {found.state}: {found.why}"
    )
    assert found.report is not None
    steps = {step["name"] for step in found.report.data["steps"]}
    if found.info.ending == "rejected" and "put back" not in steps:
        return  # it had not begun to change anything: that is as good
    if found.verdict != "rolled_back":
        found.check()


@app.command("follow")
def follow(change: ChangeArg, as_json: AsJson = False) -> None:
    """Follow a change that was begun before, until it is over."""
    _follow(find_change(change), as_json)


def confirm(change: ChangeArg, as_json: AsJson = False) -> None:
    """Keep a change that is on probation, now."""
    found = find_change(change).confirm(by=_me())
    print_json(found.info.to_json()) if as_json else print(
        f"{found.id}  {found.state}: {found.why}"
    )


def _me() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def changes(
    sandbox: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]",
            help="Only of this one; default: all.",
            autocompletion=completion.sandboxes,
        ),
    ] = None,
    only_open: Annotated[
        bool, typer.Option("--open", help="Only those that are not over.")
    ] = False,
    limit: Annotated[int, typer.Option(help="How many at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List changes, newest first."""
    from torpor.sdk.sync_changes import Change

    sandbox_id = None if sandbox is None else _sandbox_id(sandbox)
    found = [
        change.info
        for change in Change.list(sandbox_id=sandbox_id, limit=limit)
        if change.info.is_open or not only_open
    ]
    if as_json:
        print_json([info.to_json() for info in found])
        return
    print_table(
        ("ID", "SANDBOX", "STATE", "VERDICT", "BY", "AGE", "REASON"),
        [
            (c.id, c.sandbox_id, c.state, c.verdict, c.author or None, age(c.created_at), c.reason)
            for c in found
        ],
        empty="no changes; `torpor change SANDBOX REASON --run COMMAND` makes one",
    )


def _sandbox_id(text: str) -> str:
    """Return the id of a sandbox, which may be deleted."""
    from torpor.base.ids import is_id

    return text if is_id(text, "sbx") else find(text).id


def report(
    change: ChangeArg,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write it as one page that needs nothing else."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is known of a change: what differs, which check failed, before and after, what to do next."""
    found = find_change(change)
    found.refresh()
    assert found.report is not None
    if html is not None:
        try:
            html.write_text(found.html(), encoding="utf-8")
        except OSError as exc:
            raise InvalidRequest(f"--html {html}: {exc.strerror}") from exc
        if not as_json:
            print(visible(str(html)))
            return
    print_json(found.report.data) if as_json else print(found.report.text, end="")
