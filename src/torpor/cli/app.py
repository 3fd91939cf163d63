"""The root of the command line: finds commands lazily and turns errors into words and exit codes."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typing_extensions import override

from torpor import __version__
from torpor.cli.commands import COMMANDS
from torpor.errors import TorporError, error_to_wire

_LOG_LINES = 20
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class LazyGroup(TyperGroup):
    """Imports a command's module when the command is run, not before."""

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = COMMANDS.get(cmd_name)
        if found is None:
            return None
        target = getattr(importlib.import_module(found.module), found.function)
        return build(cmd_name, target, found.help)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = " or ".join(f"`{found}`" for found in get_close_matches(name, COMMANDS, n=2))
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.help) for name, found in COMMANDS.items()])

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except TorporError as error:
            tell_as_asked(error)
            raise typer.Exit(error.exit_code) from None


def build(name: str, target: typer.Typer | Callable[..., Any], help_text: str) -> Any:
    """Return the command `name` made of `target`."""
    if isinstance(target, typer.Typer):
        found = typer.main.get_command(target)
        found.name = name
        return found
    holder = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    holder.command(
        name, help=target.__doc__ or help_text, context_settings=getattr(target, "settings", None)
    )(target)
    return typer.main.get_command(holder)


def tell_as_asked(error: TorporError) -> None:
    """Say an error in words, and with `--json` also as the object that the REST API sends, on stdout."""
    words = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    if "--json" in words:
        print(json.dumps(error_to_wire(error), indent=2))
    tell(error)


def tell(error: TorporError) -> None:
    """Say an error in words on stderr."""
    from torpor.cli.output import visible

    print(f"error: {visible(error.message, keep_lines=True)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {visible(error.hint, keep_lines=True)}", file=sys.stderr)
    log = error.facts.get("log")
    if isinstance(log, str) and log.strip():
        print("the end of its log:", file=sys.stderr)
        for line in log.strip().splitlines()[-_LOG_LINES:]:
            print(f"    {visible(line)}", file=sys.stderr)


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A computer for every AI agent that can be put down and picked up.",
)


def _show_version(value: bool) -> None:
    if value:
        print(f"torpor {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options that stand before the command."""


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning of ours as a note; others are for developers and stay out of sight."""
    if category.__module__.startswith("torpor."):
        print(f"note: {message}", file=sys.stderr)


def run() -> None:
    """Run the command line with `sys.argv`."""
    warnings.showwarning = _note
    # httpx imports its own command line, with 40 ms of pygments and rich, unless it finds none.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="surrogateescape")  # file names may be any bytes
    app()
