"""Commands that make this host ready."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.output import AsJson, print_json
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.hostsetup.install import Installed
    from torpor.hostsetup.pool import Pool

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Make this host ready for Firecracker.",
)


@app.callback()
def host() -> None:
    """Make this host ready for Firecracker."""


@app.command("setup")
def setup(
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Put the programs there.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace another version that is there.")
    ] = False,
    pool: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Also make a file with XFS for the home, such as 50g."),
    ] = None,
    pool_file: Annotated[Path, typer.Option(metavar="FILE", help="Where that file is.")] = Path(
        "/var/lib/torpor-pool.xfs"
    ),
    as_json: AsJson = False,
) -> None:
    """Install the Firecracker that Torpor is tested with; what is there already stays.

    When TORPOR_FIRECRACKER names one, that one is looked at and nothing is installed.

    With --pool also make a file with a file system on which copies of disks share their blocks, and print the
    commands that mount it. Nothing is mounted, and no home is touched.
    """
    from torpor.hostsetup.install import default_folder, install, look_at, why_unused

    size = None if pool is None else _size(pool)
    made = None if size is None else asyncio.run(_pool(pool_file.absolute(), size))
    if made is not None and not as_json:
        _tell_pool(made)  # also when what follows fails
    named = os.environ.get("TORPOR_FIRECRACKER")
    if named and into is None:
        installed = asyncio.run(look_at(Path(named)))
    else:
        installed = asyncio.run(install(into or default_folder(), force=force))
    program = installed.programs[-1]
    unused = why_unused(program)
    setting = f"TORPOR_FIRECRACKER={shlex.quote(str(program))}" if unused else None
    if as_json:
        print_json({"firecracker": installed, "pool": made, "setting": setting})
        return
    _tell_programs(installed)
    if setting:
        print(f"{unused}; to use this one, start the daemon and doctor with {setting}")
    _tell_daemon()
    print("what is used, and why: torpor doctor")


async def _pool(file: Path, size_bytes: int) -> Pool:
    from torpor.base.home import Home
    from torpor.hostsetup.pool import make_pool

    return await make_pool(file, size_bytes, Home.default().root)


def _size(text: str) -> int:
    from torpor.base.units import parse_size

    try:
        return parse_size(text)
    except ValueError as exc:
        raise InvalidRequest(f"--pool: {exc}") from exc


def _tell_programs(installed: Installed) -> None:
    verb = "installed" if installed.changed else "is there already:"
    places = ", ".join(str(path) for path in installed.programs)
    print(f"Firecracker {installed.version} {verb} {places}")


def _tell_daemon() -> None:
    from torpor.base.home import Home
    from torpor.sdk.daemon import answers

    home = Home.default()
    if answers(home):
        print(
            f"a daemon serves {home.root} and keeps what it began with; to end it, which no machine notices:\n"
            f"    {'' if os.geteuid() else 'sudo '}pkill -TERM -f 'torpor.server --home {home.root} '"
        )


def _tell_pool(pool: Pool) -> None:
    from torpor.base.units import format_bytes

    print(
        f"pool {pool.file} ({format_bytes(pool.size_bytes)}) {'made' if pool.changed else 'is there already'}"
    )
    if pool.mounted:
        print(
            f"copies at {pool.mount_point} share their blocks; nothing is left to do where that is the home (TORPOR_HOME)"
        )
        return
    print("run as root:")
    for command in pool.commands:
        print(f"    {command}")
