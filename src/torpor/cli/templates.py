"""Commands on templates."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes
from torpor.cli import completion
from torpor.cli.output import (
    AsJson,
    age,
    as_dict,
    print_facts,
    print_json,
    print_table,
    stderr_is_terminal,
    visible,
)

if TYPE_CHECKING:
    from torpor.model import BuildEvent

TemplateArg = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A built template.", autocompletion=completion.templates),
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Build and look after templates.",
)


@app.command("ls")
def ls(as_json: AsJson = False) -> None:
    """List the built templates."""
    from torpor.sdk.sync_templates import Templates

    found = Templates.list()
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "CPUS", "MEMORY", "DISK", "IMAGE", "USER", "AGE", "DESCRIPTION"),
        [
            (
                t.name,
                t.vcpus,
                format_bytes(t.ram_mib << 20),
                format_bytes(t.disk_gib << 30),
                format_bytes(t.size_bytes),
                t.default_user,
                age(t.created_at),
                t.description,
            )
            for t in found
        ],
        empty="no templates; `torpor template build base` makes one",
    )


@app.command("show")
def show(name: TemplateArg, as_json: AsJson = False) -> None:
    """Show all that is so about a template."""
    from torpor.sdk.sync_templates import Templates

    info = Templates.get(name)
    if as_json:
        print_json(info)
        return
    facts = as_dict(info)
    facts["env"] = ", ".join(f"{key}={value}" for key, value in info.env.items()) or None
    facts["command"] = shlex.join(info.command) or None
    facts["size"] = format_bytes(info.size_bytes)
    facts["created_at"] = f"{info.created_at:%Y-%m-%d %H:%M:%S} UTC, {age(info.created_at)} ago"
    del facts["size_bytes"]
    print_facts(facts)


@app.command("build")
def build(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            autocompletion=completion.recipes,
            help="A shipped recipe, or a TOML file; with --rootfs, --image or --dockerfile the new template's name.",
        ),
    ],
    rootfs: Annotated[
        Path | None,
        typer.Option(
            metavar="TAR", help="Make it of this root file system, as `docker export` writes one."
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|REF",
            help="Make it of this container image: an OCI layout, what `docker save` writes, "
            "or a reference to one in a registry (through skopeo).",
        ),
    ] = None,
    dockerfile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Make it by this Dockerfile (a documented subset)."),
    ] = None,
    context: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What its COPY takes from; else the Dockerfile's folder."),
    ] = None,
    disk_gib: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, help="Size of its disk, with --rootfs, --image or --dockerfile."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Build again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build a template; one that is built already is not built again."""
    from torpor.sdk.sync_templates import Templates

    try:
        with build_progress() as progress:
            info = Templates.build(
                recipe,
                rootfs=rootfs,
                image=image,
                dockerfile=dockerfile,
                context=context,
                disk_gib=disk_gib,
                force=force,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("note: the build goes on in the daemon; the same command follows it", file=sys.stderr)
        raise
    if as_json:
        print_json(info)
    else:
        print(f"{info.name}  {format_bytes(info.size_bytes)}  {info.digest[:12]}")


@app.command("rm")
def rm(name: TemplateArg, as_json: AsJson = False) -> None:
    """Forget a template; refused while a sandbox needs it."""
    from torpor.sdk.sync_templates import Templates

    Templates.delete(name)
    print_json({"deleted": [name]}) if as_json else print(name)


@contextlib.contextmanager
def build_progress() -> Iterator[Callable[[BuildEvent], object]]:
    """Show the steps of a build: a bar on a terminal, else a line for each new step."""
    if not stderr_is_terminal():
        seen: set[str] = set()

        def line(event: BuildEvent) -> None:
            # of the plan each word: also that another build of the same is waited for
            key = f"{event.step} {event.message}" if event.step == "plan" else event.step
            if key not in seen or event.step == "run":
                seen.add(key)
                print(f"{event.step}: {visible(event.message)}", file=sys.stderr)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("build", total=1.0)

        def move(event: BuildEvent) -> None:
            message = Text(f"{event.step}: {visible(event.message)}")
            message.truncate(max(20, console.width - 60), overflow="ellipsis")
            bar.update(task, completed=event.fraction, description=message.plain)

        yield move
