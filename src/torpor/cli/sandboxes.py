"""Commands on sandboxes: their lives and their consoles."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.ids import check_name
from torpor.base.units import format_bytes
from torpor.cli import completion
from torpor.cli.find import SandboxArg, check_free, find
from torpor.cli.making import one_handed_over
from torpor.cli.output import (
    AsJson,
    Secret,
    age,
    as_dict,
    left,
    pairs,
    print_facts,
    print_json,
    print_table,
    secrets_of,
    span,
    visible,
)
from torpor.cli.removal import remove_each
from torpor.cli.volume_options import volume_options
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor import Sandbox
    from torpor.model import SandboxInfo


_SAID_OTHERWISE = (
    "ram_mib",
    "disk_gib",
    "expires_at",
    "ttl_left_seconds",
    "ttl_seconds",
    "on_timeout",
    "env_names",
)
"""Fields that `get` shows in other words."""


def create(
    template: Annotated[
        str, typer.Argument(help="A built template.", autocompletion=completion.templates)
    ] = "base",
    vcpus: Annotated[int | None, typer.Option(help="CPUs; default: the template's.")] = None,
    ram_mib: Annotated[int | None, typer.Option("--ram-mib", help="Memory in MiB.")] = None,
    disk_gib: Annotated[int | None, typer.Option("--disk-gib", help="Disk in GiB.")] = None,
    network: Annotated[str, typer.Option(help="`user` or `none`.")] = "user",
    env: Annotated[
        list[str] | None,
        typer.Option("-e", "--env", metavar="KEY=VALUE", help="For every command."),
    ] = None,
    secret: Secret = None,
    metadata: Annotated[
        list[str] | None, typer.Option("-m", "--metadata", metavar="KEY=VALUE", help="Your labels.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="A name for it, as its metadata `name`; commands take it.")
    ] = None,
    ttl: Annotated[int | None, typer.Option(help="Seconds until it ends; default: never.")] = None,
    on_timeout: Annotated[str, typer.Option(help="`delete` or `hibernate`.")] = "delete",
    idle: Annotated[
        int | None, typer.Option(help="Hibernate after so many seconds without work.")
    ] = None,
    volumes: Annotated[
        list[str] | None,
        typer.Option("-v", "--volume", metavar="NAME:PATH[:ro]", help="A volume at a path."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a sandbox and print its id.

    Ctrl-C while it is being made takes it back.
    """
    from torpor.sdk.sandbox import AsyncSandbox

    if network not in ("user", "none"):
        raise InvalidRequest(
            f"--network {network!r} is not known",
            hint="--network user (out, not in) or --network none",
        )
    if on_timeout not in ("delete", "hibernate"):
        raise InvalidRequest(
            f"--on-timeout {on_timeout!r} is not known", hint="--on-timeout delete|hibernate"
        )
    labels = pairs(metadata or [], "--metadata")
    if name is not None:
        labels["name"] = check_name(name, "sandbox")
        check_free(name)
    made = AsyncSandbox.create(
        template,
        vcpus=vcpus,
        ram_mib=ram_mib,
        disk_gib=disk_gib,
        network="user" if network == "user" else "none",
        env=pairs(env or [], "--env"),
        secrets=secrets_of(secret or []),
        metadata=labels,
        ttl_seconds=ttl,
        on_timeout="delete" if on_timeout == "delete" else "hibernate",
        idle_seconds=idle,
        volumes=volume_options(volumes or []),
    )
    sandbox = one_handed_over(made)
    if as_json:
        print_json(sandbox.info)
    else:
        print(sandbox.id)


def ls(
    state: Annotated[str | None, typer.Option(help="Only in this state, also `deleted`.")] = None,
    template: Annotated[str | None, typer.Option(help="Only of this template.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("-m", "--metadata", metavar="KEY=VALUE", help="Only with.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print ids only.")] = False,
    as_json: AsJson = False,
) -> None:
    """List sandboxes, newest first."""
    from torpor.sdk.sync_sandbox import Sandbox

    found = [
        sandbox.info
        for sandbox in Sandbox.list(
            state=state,
            template=template,
            metadata=pairs(metadata or [], "--metadata"),
            page_size=1000,
        )
    ]
    if as_json:
        print_json(found)
    elif quiet:
        for info in found:
            print(info.id)
    else:
        has_names = any("name" in info.metadata for info in found)
        print_table(
            (
                "ID",
                *(["NAME"] if has_names else []),
                "STATE",
                "TEMPLATE",
                "CPUS",
                "MEMORY",
                "DISK",
                "AGE",
                "ENDS",
            ),
            [
                (
                    info.id,
                    *([info.metadata.get("name", "-")] if has_names else []),
                    info.state,
                    info.template,
                    info.vcpus,
                    format_bytes(info.ram_mib << 20),
                    format_bytes(info.disk_gib << 30),
                    age(info.created_at),
                    _ends(info),
                )
                for info in found
            ],
            empty="no sandboxes; `torpor create` makes one",
        )
        for info in found:
            if info.health_note is not None:
                print(f"{info.id}  {visible(info.health_note)}")


def get(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """Show all that is so about a sandbox."""
    found = find(sandbox)
    info = found.refresh()
    if as_json:
        print_json(info)
    else:
        print_facts(_facts(info) | {"volumes": _volumes(found)})


def _facts(info: SandboxInfo) -> dict[str, object]:
    """Return what `get` shows; the names of environment variables without their values, which may be secrets."""
    facts = as_dict(info)
    facts["ram"] = format_bytes(info.ram_mib << 20)
    facts["disk"] = format_bytes(info.disk_gib << 30)
    facts["env"] = ", ".join(info.env_names) or None
    facts["metadata"] = ", ".join(f"{key}={value}" for key, value in info.metadata.items()) or None
    facts["created_at"] = f"{info.created_at:%Y-%m-%d %H:%M:%S} UTC, {age(info.created_at)} ago"
    ends = _ends(info)
    facts["ends"] = ends if ends == "never" else f"{ends}, then {info.on_timeout}"
    for name in _SAID_OTHERWISE:
        del facts[name]
    return facts


def _volumes(sandbox: Sandbox) -> str | None:
    """Return what volumes a sandbox has, and where."""
    texts = [
        f"{volume.name} at {holder.path}" + (" read-only" if holder.read_only else "")
        for volume in sandbox.volumes()
        for holder in volume.info.holders
        if holder.sandbox_id == sandbox.id
    ]
    return ", ".join(texts) or None


def _ends(info: SandboxInfo) -> str:
    """Return when a sandbox ends; what is left of a lease that does not run down now is time of running."""
    if info.expires_at is None and info.ttl_left_seconds is not None:
        return f"after {span(info.ttl_left_seconds)} of running"
    return left(info.expires_at)


def pause(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """Stop a sandbox's CPUs; its memory stays."""
    found = find(sandbox)
    found.pause()
    if as_json:
        print_json(found.refresh())


def resume(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """Let a paused sandbox run on."""
    found = find(sandbox)
    found.resume()
    if as_json:
        print_json(found.refresh())


def ttl(
    sandbox: SandboxArg,
    seconds: Annotated[str, typer.Argument(metavar="SECONDS|never", help="From now on.")],
    on_timeout: Annotated[str | None, typer.Option(help="`delete` or `hibernate`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say when a sandbox is to end."""
    if seconds != "never" and not seconds.isdecimal():
        raise InvalidRequest(f"{seconds!r} is neither a number of seconds nor `never`")
    if on_timeout not in (None, "delete", "hibernate"):
        raise InvalidRequest(f"--on-timeout {on_timeout!r} is neither delete nor hibernate")
    found = find(sandbox)
    found.set_ttl(
        None if seconds == "never" else int(seconds),
        on_timeout=None
        if on_timeout is None
        else "delete"
        if on_timeout == "delete"
        else "hibernate",
    )
    info = found.refresh()
    if as_json:
        print_json(info)
    else:
        print(_ends(info))


def rm(
    sandboxes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SANDBOX…",
            help="Ids, beginnings of them, or names.",
            autocompletion=completion.sandboxes,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Remove all sandboxes.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """End and remove sandboxes."""
    from torpor.sdk.sync_sandbox import Sandbox

    if every == bool(sandboxes):
        raise InvalidRequest("give ids, or --all", hint="`torpor ls` lists them")
    found = (
        list(Sandbox.list(page_size=1000)) if every else [find(text) for text in sandboxes or []]
    )
    if every and found and not yes:
        if not sys.stdin.isatty():
            raise InvalidRequest(f"--all would remove {len(found)} sandboxes", hint="add --yes")
        typer.confirm(f"Remove {len(found)} sandboxes?", abort=True)
    remove_each({sandbox.id: sandbox.delete for sandbox in found}, as_json=as_json)


def logs(
    sandbox: SandboxArg,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it grows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a sandbox's console log."""
    chunks = find(sandbox).logs(follow=follow)
    if as_json and not follow:
        print_json({"log": b"".join(chunks)})
        return
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
