"""Commands on volumes: make, list, show, attach, detach, grow, snapshot, clone, copy, remove."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes
from torpor.cli import completion
from torpor.cli.find import SandboxArg, find
from torpor.cli.output import AsJson, age, as_dict, print_facts, print_json, print_table, waiting
from torpor.cli.removal import remove_each
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.model_volumes import VolumeInfo

_REMOTE = re.compile(r"([a-z0-9][a-z0-9._-]{0,62}):(/.*)", re.DOTALL)

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Storage that outlives sandboxes: make volumes, attach them, and look after them.",
)

Name = Annotated[
    str,
    typer.Argument(metavar="VOLUME", help="Its name or id.", autocompletion=completion.volumes),
]
NewName = Annotated[str, typer.Argument(metavar="VOLUME", help="Its name.")]
Size = Annotated[float, typer.Option("--size-gib", help="GiB that it may grow to hold.")]


@app.command("create")
def create(name: NewName, size_gib: Size = 1, as_json: AsJson = False) -> None:
    """Make a volume with an empty ext4 file system, and print its name."""
    from torpor.sdk.sync_volumes import Volume

    made = Volume.create(name, size_gib)
    print_json(made.info) if as_json else print(made.name)


@app.command("ls")
def ls(
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print names only.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the volumes, by name."""
    from torpor.sdk.sync_volumes import Volume

    found = [volume.info for volume in Volume.list()]
    if as_json:
        print_json(found)
    elif quiet:
        for info in found:
            print(info.name)
    else:
        print_table(
            ("NAME", "SIZE", "ON DISK", "USED", "ATTACHED TO", "AGE"),
            [
                (
                    info.name,
                    format_bytes(info.size_bytes),
                    format_bytes(info.allocated_bytes),
                    None if info.used_bytes is None else format_bytes(info.used_bytes),
                    _holders(info),
                    age(info.created_at),
                )
                for info in found
            ],
            empty="there are no volumes; make one: torpor volume create NAME",
        )


def _holders(info: VolumeInfo) -> str | None:
    texts = [
        f"{h.sandbox_id}:{h.path}"
        + (" read-only" if h.read_only else "")
        + ("" if h.state == "attached" else f" ({h.state})")
        for h in info.holders
    ]
    return ", ".join(texts) or None


@app.command("get")
def get(name: Name, as_json: AsJson = False) -> None:
    """Show all that is so about a volume; a running sandbox that has it is asked how full it is."""
    from torpor.sdk.sync_volumes import Volume

    info = Volume.get(name).info
    if as_json:
        print_json(info)
        return
    facts = as_dict(info)
    facts["size"] = format_bytes(info.size_bytes)
    facts["on_disk"] = format_bytes(info.allocated_bytes)
    facts["used"] = None if info.used_bytes is None else format_bytes(info.used_bytes)
    facts["attached_to"] = _holders(info)
    for name_of, moment in (("created_at", info.created_at), ("used_at", info.used_at)):
        facts[name_of] = moment and f"{moment:%Y-%m-%d %H:%M:%S} UTC, {age(moment)} ago"
    for key in ("size_bytes", "allocated_bytes", "used_bytes", "holders"):
        del facts[key]
    print_facts(facts)


@app.command("rm")
def rm(
    names: Annotated[
        list[str],
        typer.Argument(metavar="VOLUME…", help="Names or ids.", autocompletion=completion.volumes),
    ],
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Delete their own snapshots with them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete volumes and all that is in them. Refused while a sandbox has one, or a snapshot needs it."""
    from torpor.sdk.sync_volumes import Volume

    remove_each(
        {name: partial(Volume.handle(name).delete, snapshots=snapshots) for name in names},
        as_json=as_json,
    )


@app.command("attach")
def attach(
    name: Name,
    sandbox: SandboxArg,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Where, such as /data.")],
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The sandbox cannot write to it.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Check and mend its file system first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Attach a volume to a running sandbox and mount it at a path; one that sleeps is woken."""
    if name.startswith("sbx_"):
        name, sandbox = sandbox, name
    found = find(sandbox)
    holder = found.attach_volume(name, path, read_only=read_only, repair=repair)
    print_json(holder) if as_json else print(f"{name}  at {holder.path} of {found.id}")


@app.command("detach")
def detach(
    sandbox: SandboxArg,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Its path there, or its name.")],
    as_json: AsJson = False,
) -> None:
    """Unmount a volume and take it from a sandbox. Refused, with who it is, while processes use it."""
    if path.startswith("sbx_"):
        sandbox, path = path, sandbox
    found = find(sandbox)
    found.detach_volume(path)
    print_json({"sandbox_id": found.id, "detached": path}) if as_json else print(path)


@app.command("grow")
def grow(
    name: Name,
    size_gib: Annotated[float, typer.Argument(metavar="GIB", help="The new size.")],
    as_json: AsJson = False,
) -> None:
    """Make a volume and its file system larger, also while a running sandbox uses it."""
    from torpor.sdk.sync_volumes import Volume

    info = Volume.handle(name).grow(size_gib)
    print_json(info) if as_json else print(f"{info.name}  {format_bytes(info.size_bytes)}")


@app.command("snapshot")
def snapshot(
    name: Name,
    label: Annotated[
        str | None, typer.Option(help="A name, unique among the volume's snapshots.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of a volume alone, attached or not, and print its id."""
    from torpor.sdk.sync_volumes import Volume

    made = Volume.handle(name).snapshot(label=label)
    print_json(made) if as_json else print(made.id)


@app.command("snapshots")
def snapshots(name: Name, as_json: AsJson = False) -> None:
    """List a volume's own snapshots, the newest first."""
    from torpor.sdk.sync_volumes import Volume

    found = Volume.handle(name).snapshots()
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "LABEL", "WHY", "SIZE", "AGE"),
        [(s.id, s.label, s.reason, format_bytes(s.size_bytes), age(s.created_at)) for s in found],
        empty=f"volume {name} has no snapshots; take one: torpor volume snapshot {name}",
    )


@app.command("rm-snapshot")
def rm_snapshot(
    name: Name,
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id or label.")],
    as_json: AsJson = False,
) -> None:
    """Delete a snapshot of a volume; what others need of it stays."""
    from torpor.sdk.sync_volumes import Volume

    freed = Volume.handle(name).delete_snapshot(snapshot)
    if as_json:
        print_json({"deleted": snapshot, "freed_bytes": freed})
    else:
        print(f"{snapshot}  {format_bytes(freed)} freed")


@app.command("clone")
def clone(
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new volume.")],
    at: Annotated[
        str | None, typer.Option("--snapshot", help="Id or label of a snapshot to begin at.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a volume that begins as another is now, or was at a snapshot, copy-on-write; print its name."""
    from torpor.sdk.sync_volumes import Volume

    made = Volume.handle(name).clone(new_name, snapshot=at)
    print_json(made.info) if as_json else print(made.name)


@app.command("keep")
def keep(name: Name, as_json: AsJson = False) -> None:
    """Let a volume that was made for a restored or forked sandbox stay when that is deleted."""
    from torpor.sdk.sync_volumes import Volume

    info = Volume.handle(name).keep()
    print_json(info) if as_json else print(info.name)


@app.command("cp")
def cp(
    source: Annotated[str, typer.Argument(help="A path here, or VOLUME:/path.")],
    target: Annotated[str, typer.Argument(help="VOLUME:/path, or a path here.")],
    user: Annotated[
        str | None, typer.Option("-u", "--user", help="The owner in the volume; default: root.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy files and folders in and out of a volume, without a sandbox of yours.

    As with `cp -r`: into the target if that is a folder, else to that very name.
    """
    from torpor.sdk.sync_volumes import Volume

    inside, outside = _REMOTE.fullmatch(target), _REMOTE.fullmatch(source)
    if (inside is None) == (outside is None):
        raise InvalidRequest(
            "one of the two has to be in a volume", hint="torpor volume cp ./file VOLUME:/folder/"
        )
    with waiting(f"copying {source} to {target}"):
        if inside is not None:
            moved = Volume.handle(inside[1]).copy_in(Path(source), inside[2], user=user)
        else:
            assert outside is not None
            moved = Volume.handle(outside[1]).copy_out(outside[2], Path(target))
    if as_json:
        print_json({"target": target, "files": moved.files, "size_bytes": moved.size_bytes})
    else:
        what = "1 file" if moved.files == 1 else f"{moved.files} files and folders"
        print(f"{what}, {format_bytes(moved.size_bytes)} to {target}")
