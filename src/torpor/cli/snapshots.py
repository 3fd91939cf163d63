"""Commands on snapshots: take, list, show, verify, remove."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes
from torpor.cli import completion
from torpor.cli.find import SandboxArg, find
from torpor.cli.find_snapshot import SnapshotArg, find_snapshot
from torpor.cli.output import (
    AsJson,
    age,
    as_dict,
    pairs,
    print_facts,
    print_json,
    print_table,
    visible,
)
from torpor.cli.quiesce import (
    Consistent,
    OnFailure,
    QuiesceFile,
    consistency_of,
    on_failure,
    print_report,
    read_quiesce,
)
from torpor.cli.removal import remove_each
from torpor.cli.unnamed import UnlessNamed
from torpor.cli.volume_options import volumes_mode
from torpor.errors import DataDamaged

if TYPE_CHECKING:
    from torpor.model import SnapshotInfo
    from torpor.model_memory import Watermark
    from torpor.sdk.sync_snapshots import Snapshot

_HOOKS_SHOWN = 3


class _CreateUnlessNamed(UnlessNamed):
    unnamed = "create"
    shown_as = "torpor snapshot SANDBOX"


app = typer.Typer(
    cls=_CreateUnlessNamed,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Take a snapshot of a sandbox (`torpor snapshot SANDBOX`), and look after snapshots.",
)


@app.command("create")
def create(
    sandbox: SandboxArg,
    label: Annotated[
        str | None, typer.Option(help="A name, unique among the sandbox's snapshots.")
    ] = None,
    consistency: Consistent = "filesystem",
    quiesce: QuiesceFile = None,
    on_quiesce_failure: OnFailure = None,
    metadata: Annotated[
        list[str] | None, typer.Option("-m", "--metadata", metavar="KEY=VALUE", help="Your labels.")
    ] = None,
    volumes: Annotated[
        str,
        typer.Option(help="`include` them, `detach` them before, or `keep-current` ones."),
    ] = "include",
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of a whole sandbox, which goes on, and print the snapshot's id."""
    taken = find(sandbox).snapshot(
        label=label,
        consistency=consistency_of(consistency),
        metadata=pairs(metadata or [], "--metadata"),
        quiesce=read_quiesce(quiesce),
        on_quiesce_failure=on_failure(on_quiesce_failure),
        volumes=volumes_mode(volumes) or "include",
    )
    if taken.consistency != consistency:
        why = taken.quiesce.reason if taken.quiesce else "the sandbox stood still"
        print(
            f"note: it is {taken.consistency}-consistent: {visible(why)}",
            file=sys.stderr,
        )
    if taken.info.inventory != "taken":
        print(f"note: inventory {visible(taken.info.inventory)}", file=sys.stderr)
    print_json(taken.info) if as_json else print(taken.id)


@app.command("ls")
def ls(
    sandbox: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]",
            help="Only of this one; default: all.",
            autocompletion=completion.sandboxes,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print ids only.")] = False,
    as_json: AsJson = False,
) -> None:
    """List snapshots, newest first."""
    from torpor.sdk.sync_snapshots import Snapshot

    found = Snapshot.list() if sandbox is None else _of(sandbox)
    if as_json:
        print_json([snapshot.info for snapshot in found])
    elif quiet:
        for snapshot in found:
            print(snapshot.id)
    else:
        print_table(
            ("ID", "LABEL", "SANDBOX", "WHY", "CONSISTENCY", "SIZE", "PAUSE", "AGE"),
            [
                (
                    s.id,
                    s.label,
                    s.sandbox_id,
                    s.reason,
                    _had(s.info),
                    format_bytes(s.size_bytes),
                    f"{s.pause_ms:.0f} ms",
                    age(s.created_at),
                )
                for s in found
            ],
            empty="no snapshots; `torpor snapshot SANDBOX` takes one",
        )


def _had(info: SnapshotInfo) -> str:
    """Return its consistency, with the hooks that held, or that it was to be more."""
    if info.quiesce is None:
        return info.consistency
    if not info.quiesce.held:
        return f"{info.consistency} (not application)"
    names = [hook.name for hook in info.quiesce.hooks if hook.state == "held"]
    more = f" +{len(names) - _HOOKS_SHOWN}" if len(names) > _HOOKS_SHOWN else ""
    return f"{info.consistency} ({', '.join(names[:_HOOKS_SHOWN])}{more})"


def _of(text: str) -> list[Snapshot]:
    """Return the snapshots of the sandbox that `text` means, which may be deleted."""
    from torpor.sdk.sync_snapshots import Snapshot

    begins = (text, f"sbx_{text}")
    found = [s for s in Snapshot.list() if text and (s.sandbox_id or "").startswith(begins)]
    if len({s.sandbox_id for s in found}) == 1:
        return found
    return find(text).snapshots()  # none, or several: says so


def _memory(mark: Watermark | None) -> str | None:
    """Return where the memory of its agent stood."""
    if mark is None or not (mark.branch or mark.problem):
        return None
    return mark.problem or f"of {mark.agent}, at transaction {mark.tx} of {mark.branch}"


@app.command("show")
def show(snapshot: SnapshotArg, as_json: AsJson = False) -> None:
    """Show all that is so about a snapshot."""
    from torpor.sdk.sync_snapshots import Snapshot

    info = Snapshot.get(find_snapshot(snapshot).id).info
    if as_json:
        print_json(info)
        return
    facts = as_dict(info)
    facts["ram"] = format_bytes(info.ram_mib << 20)
    facts["disk"] = format_bytes(info.disk_gib << 30)
    facts["size"] = format_bytes(info.size_bytes)
    facts["pause"] = f"{info.pause_ms:.1f} ms"
    facts["metadata"] = ", ".join(f"{key}={value}" for key, value in info.metadata.items()) or None
    del facts["quiesce"], facts["watermark"]
    facts["volumes"] = ", ".join(f"{name} at {path}" for path, name in info.volumes.items()) or None
    facts["created_at"] = f"{info.created_at:%Y-%m-%d %H:%M:%S} UTC, {age(info.created_at)} ago"
    facts["env"] = ", ".join(info.env_names) or None
    facts["protected"] = "; ".join(info.protected) or None
    facts["agent_memory"] = _memory(info.watermark)
    facts["good"] = None if info.good is None else info.good.reason
    for name in ("ram_mib", "disk_gib", "size_bytes", "pause_ms", "env_names"):
        del facts[name]
    print_facts(facts)
    if info.quiesce is not None:
        print()
        print_report(info.quiesce)


@app.command("rm")
def rm(
    snapshots: Annotated[
        list[str],
        typer.Argument(
            metavar="SNAPSHOT…",
            help="Ids, beginnings of ids, or SANDBOX@LABEL.",
            autocompletion=completion.snapshots,
        ),
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Also the last one of a sandbox that is known to be good."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove snapshots; what others need of them stays. `torpor layers` says what this frees."""
    found = [find_snapshot(text) for text in snapshots]
    remove_each({one.id: partial(one.delete, force=force) for one in found}, as_json=as_json)


@app.command("verify")
def verify(snapshot: SnapshotArg, as_json: AsJson = False) -> None:
    """Read all that a snapshot needs and compare it with what was written; fail if it is damaged."""
    found = find_snapshot(snapshot)
    outcome = found.verify()
    if as_json:
        print_json({"id": found.id, "ok": outcome.ok, "damage": outcome.damage})
    elif outcome.ok:
        print(f"{found.id}  ok")
    else:
        print_table(
            ("LAYER", "PROBLEM", "NEEDED BY"),
            [(d.layer, d.problem, ", ".join(d.dependents)) for d in outcome.damage],
            empty="",
        )
    if not outcome.ok:
        raise typer.Exit(DataDamaged.exit_code)
