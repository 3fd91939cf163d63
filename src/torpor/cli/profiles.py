"""`torpor profile`: the agent profiles that there are, and which one a machine has."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from torpor.cli.find import SandboxArg, find
from torpor.cli.output import AsJson, as_dict, print_json, print_table, visible

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Agent profiles: where an agent keeps what it is made of.",
)


@app.command("list", hidden=True)
@app.command("ls")
def ls(as_json: AsJson = False) -> None:
    """List the agent profiles that come with Torpor."""
    from torpor.sdk.sync_profiles import Profiles

    found = Profiles.list()
    if as_json:
        print_json([as_dict(profile) for profile in found])
        return
    print_table(
        ("NAME", "TITLE", "DESCRIPTION"),
        [(profile.name, profile.title, profile.description) for profile in found],
        empty="there are no profiles",
    )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `torpor profile ls` says.")],
    as_json: AsJson = False,
) -> None:
    """Print an agent profile's YAML: a beginning for one of your own."""
    from torpor.sdk.sync_profiles import Profiles

    found = Profiles.get(name)
    if as_json:
        print_json(as_dict(found))
        return
    print(found.text, end="")


@app.command("detect")
def detect(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """Say which agent profile fits a running sandbox: its own file, a shipped one, or `machine`."""
    found = find(sandbox).profile()
    if as_json:
        print_json(as_dict(found))
        return
    print(visible(found.name))
    if found.is_own:
        print("note: it is the machine's own /etc/torpor/profile.yaml", file=sys.stderr)
    if found.problem is not None:
        print(f"note: its own profile is not used: {visible(found.problem)}", file=sys.stderr)
    if not found.is_own and len(found.fits) > 1:
        print(f"note: these fit: {', '.join(found.fits)}", file=sys.stderr)
