"""Commands on databases: make, list, show, connect, snapshot, clone, look after, remove."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes, parse_seconds
from torpor.cli import completion
from torpor.cli.find import SandboxArg, find
from torpor.cli.output import (
    AsJson,
    age,
    as_dict,
    print_facts,
    print_json,
    print_table,
    stderr_is_terminal,
    visible,
    waiting,
)
from torpor.cli.removal import remove_each
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.model_databases import DatabaseInfo, DatabaseStep

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="PostgreSQL databases that outlive their machines: make them, connect, branch, go back.",
)

Name = Annotated[
    str,
    typer.Argument(metavar="DATABASE", help="Its name or id.", autocompletion=completion.databases),
]
NewName = Annotated[str, typer.Argument(metavar="DATABASE", help="Its name.")]
Size = Annotated[str, typer.Option("--size", help="What it may grow to hold, such as 1g or 16g.")]


@app.command("create")
def create(
    name: NewName,
    size: Size = "1g",
    ram_mib: Annotated[int | None, typer.Option("--ram-mib", help="Memory of its machine.")] = None,
    vcpus: Annotated[int | None, typer.Option("--vcpus", help="CPUs of its machine.")] = None,
    idle: Annotated[
        int | None,
        typer.Option("--idle", help="Hibernate after so many seconds without a connection."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a database, wait until it answers, and print its URL; the password is in it."""
    from torpor.sdk.sync_databases import Database

    with _goes_on(name), _progress() as progress:
        made = Database.create(
            name, size, ram_mib=ram_mib, vcpus=vcpus, idle_seconds=idle, progress=progress
        )
    _print_made(made.info, made.connection_url, as_json=as_json)


def _print_made(info: DatabaseInfo, url: str, *, as_json: bool) -> None:
    if as_json:
        print_json({**as_dict(info), "connection_url": url})
    else:
        print(url)


@contextlib.contextmanager
def _goes_on(name: str) -> Iterator[None]:
    """Say what Ctrl-C does not end."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"note: if {name} was begun it goes on: `torpor db ls` shows it, `torpor db rm {name}` takes it away",
            file=sys.stderr,
        )
        raise


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[DatabaseStep], object]]:
    """Show the steps: a spinner on a terminal, else a line for each."""
    if not stderr_is_terminal():
        seen: set[str] = set()

        def line(found: DatabaseStep) -> None:
            # of a build each step; what is said within a step is too much for lines
            message = found.message.partition(":")[0] if found.step == "template" else found.message
            key = f"{found.step} {message}"
            if key not in seen:
                seen.add(key)
                print(f"{found.step}: {visible(found.message)}", file=sys.stderr)

        yield line
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("create", spinner="dots") as status:
        yield lambda found: status.update(f"{found.step}: {visible(found.message)[:100]}")


@app.command("ls")
def ls(
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print names only.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the databases, by name."""
    from torpor.sdk.sync_databases import Database

    found = [database.info for database in Database.list()]
    if as_json:
        print_json(found)
    elif quiet:
        for info in found:
            print(info.name)
    else:
        print_table(
            ("NAME", "STATE", "SIZE", "MEMORY", "PORT", "VERSION", "ATTACHED TO", "AGE"),
            [
                (
                    info.name,
                    info.state,
                    format_bytes(info.size_bytes),
                    format_bytes(info.ram_mib << 20),
                    info.port,
                    _version(info),
                    ", ".join(f"{a.sandbox_id}:{a.port}" for a in info.attachments) or None,
                    age(info.created_at),
                )
                for info in found
            ],
            empty="there are no databases; make one: torpor db create NAME",
        )


def _version(info: DatabaseInfo) -> str | None:
    return info.server_version and info.server_version.partition(" ")[0]


@app.command("show")
def show(name: Name, as_json: AsJson = False) -> None:
    """Show all that is so about a database, but its password."""
    from torpor.sdk.sync_databases import Database

    database = Database.handle(name)
    info = database.refresh()
    if as_json:
        print_json(info)
        return
    facts = as_dict(info)
    facts["size"] = format_bytes(info.size_bytes)
    facts["created_at"] = f"{info.created_at:%Y-%m-%d %H:%M:%S} UTC, {age(info.created_at)} ago"
    since = info.recoverable_from
    facts["recoverable_from"] = None if since is None else f"{since:%Y-%m-%d %H:%M:%S} UTC"
    facts["attachments"] = ", ".join(f"{a.sandbox_id}:{a.port}" for a in info.attachments) or None
    del facts["size_bytes"]
    print_facts(facts)


@app.command("url")
def url(name: Name, as_json: AsJson = False) -> None:
    """Print the URL that clients on this host connect with; the password is in it."""
    from torpor.sdk.sync_databases import Database

    found = Database.handle(name).url()
    print_json({"connection_url": found}) if as_json else print(found)


@app.command("psql", context_settings={"ignore_unknown_options": True})
def psql(
    name: Name,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARG…]", help="For psql, such as -c 'SELECT 1'.")
    ] = None,
) -> None:
    """Open a psql shell on a database, or run psql with arguments; without one here, that of its machine."""
    from torpor.cli.psql import run_psql
    from torpor.sdk.sync_databases import Database

    run_psql(Database.handle(name), args or [])


@app.command("wake")
def wake(name: Name, as_json: AsJson = False) -> None:
    """Let a database run: one that sleeps is woken, one that lost its machine gets a new one."""
    from torpor.sdk.sync_databases import Database

    info = Database.handle(name).wake()
    print_json(info) if as_json else print(f"{info.name}  {info.state}")


@app.command("hibernate")
def hibernate(name: Name, as_json: AsJson = False) -> None:
    """Put a database to sleep; the next connection wakes it."""
    from torpor.sdk.sync_databases import Database

    info = Database.handle(name).hibernate()
    print_json(info) if as_json else print(f"{info.name}  {info.state}")


@app.command("idle")
def idle(
    name: Name,
    seconds: Annotated[str, typer.Argument(metavar="SECONDS|never", help="Such as 900 or 15m.")],
    as_json: AsJson = False,
) -> None:
    """Let a database hibernate by itself after so long without a connection, or never."""
    from torpor.sdk.sync_databases import Database

    try:
        wanted = None if seconds == "never" else int(parse_seconds(seconds))
    except ValueError as exc:
        raise InvalidRequest(str(exc)) from exc
    info = Database.handle(name).set_idle(wanted)
    print_json(info) if as_json else print(f"{info.name}  {info.idle_seconds or 'never'}")


@app.command("grow")
def grow(
    name: Name,
    size: Annotated[str, typer.Argument(metavar="SIZE", help="The new size, such as 4g.")],
    as_json: AsJson = False,
) -> None:
    """Make a database's volume larger, while it runs."""
    from torpor.sdk.sync_databases import Database

    info = Database.handle(name).grow(size)
    print_json(info) if as_json else print(f"{info.name}  {format_bytes(info.size_bytes)}")


@app.command("snapshot")
def snapshot(
    name: Name,
    label: Annotated[
        str | None, typer.Option(help="A name, unique among the database's snapshots.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of a database while it runs, and print its id."""
    from torpor.sdk.sync_databases import Database

    made = Database.handle(name).snapshot(label=label)
    print_json(made) if as_json else print(made.id)


@app.command("snapshots")
def snapshots(name: Name, as_json: AsJson = False) -> None:
    """List a database's snapshots, the newest first."""
    from torpor.sdk.sync_databases import Database

    found = Database.handle(name).snapshots()
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "LABEL", "AT"),
        [(s.id, s.label, f"{s.at:%Y-%m-%d %H:%M:%S} UTC") for s in found],
        empty=f"database {name} has no snapshots; take one: torpor db snapshot {name}",
    )


@app.command("rm-snapshot")
def rm_snapshot(
    name: Name,
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id or label.")],
    as_json: AsJson = False,
) -> None:
    """Delete a snapshot of a database; clones of it stay."""
    from torpor.sdk.sync_databases import Database

    Database.handle(name).delete_snapshot(snapshot)
    print_json({"deleted": snapshot}) if as_json else print(snapshot)


@app.command("clone")
def clone(
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new database.")],
    at: Annotated[
        str | None, typer.Option("--snapshot", help="Id or label of a snapshot to begin at.")
    ] = None,
    target_time: Annotated[
        str | None,
        typer.Option(
            "--target-time", help="Begin as it was at that time, such as 2026-01-31T12:00:00Z."
        ),
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", help="Of its volume; default: the same.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a database that begins as another, copy-on-write, and print its URL."""
    from torpor.sdk.sync_databases import Database

    how = "replaying its log up to then" if target_time else "copy-on-write"
    with _goes_on(new_name), waiting(f"cloning {name}: {how}"):
        made = Database.handle(name).clone(
            new_name, snapshot=at, target_time=target_time, size=size
        )
    _print_made(made.info, made.connection_url, as_json=as_json)


@app.command("reset-password")
def reset_password(name: Name, as_json: AsJson = False) -> None:
    """Give a database a new password, end all sessions, and print the new URL."""
    from torpor.sdk.sync_databases import Database

    found = Database.handle(name).reset_password()
    print_json({"connection_url": found}) if as_json else print(found)


@app.command("upgrade")
def upgrade(
    name: Name,
    build: Annotated[
        bool, typer.Option("--build/--no-build", help="Build the template anew before.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Let a database go on in a new machine with PostgreSQL's newest minor version."""
    from torpor.sdk.sync_databases import Database

    how = "building the template anew, which takes minutes" if build else "in a new machine"
    with waiting(f"upgrading {name}: {how}"):
        info = Database.handle(name).upgrade(build=build)
    print_json(info) if as_json else print(f"{info.name}  {info.server_version}")


@app.command("dump")
def dump(
    name: Name,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Replaced when the dump is whole.")],
    database: Annotated[
        str, typer.Option("--database", "-d", help="Which of the server's.")
    ] = "postgres",
    as_json: AsJson = False,
) -> None:
    """Write a consistent dump to a file, in pg_dump's custom format, for pg_restore."""
    from torpor.sdk.sync_databases import Database

    with waiting(f"dumping {name}"):
        size = Database.handle(name).dump(path, database=database)
    if as_json:
        print_json({"path": str(path), "size_bytes": size})
    else:
        print(f"{path}  {format_bytes(size)}")


@app.command("attach")
def attach(
    name: Name,
    sandbox: SandboxArg,
    port: Annotated[int, typer.Option("--port", help="Of the sandbox's own loopback.")] = 5432,
    as_json: AsJson = False,
) -> None:
    """Let a sandbox's programs reach a database at 127.0.0.1, without a network; print their URL."""
    from torpor.sdk.sync_databases import Database

    if name.startswith("sbx_"):
        name, sandbox = sandbox, name
    found = Database.handle(name).attach(find(sandbox).id, port=port)
    print_json({"connection_url": found}) if as_json else print(found)


@app.command("detach")
def detach(name: Name, sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """Let a sandbox reach a database no more."""
    from torpor.sdk.sync_databases import Database

    if name.startswith("sbx_"):
        name, sandbox = sandbox, name
    found = find(sandbox)
    Database.handle(name).detach(found.id)
    print_json({"database": name, "sandbox_id": found.id}) if as_json else print(found.id)


@app.command("rm")
def rm(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="DATABASE…", help="Names or ids.", autocompletion=completion.databases
        ),
    ],
    keep_volume: Annotated[
        bool, typer.Option("--keep-volume", help="Leave the volume db-NAME with all data.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete databases with all that is in them; clones stay."""
    from torpor.sdk.sync_databases import Database

    remove_each(
        {name: partial(Database.handle(name).delete, keep_volume=keep_volume) for name in names},
        as_json=as_json,
    )
