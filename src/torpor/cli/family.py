"""Commands on what there is as a whole: the family tree, and what takes up the disk."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes
from torpor.cli import completion
from torpor.cli.find import find
from torpor.cli.find_snapshot import find_source
from torpor.cli.output import AsJson, age, print_json, print_table, visible

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from torpor.sdk.family import FamilyNode, Owner

_PIPE_WIDTH = 1000


def tree(
    sandbox: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]",
            help="Only its family; default: all there is.",
            autocompletion=completion.sandboxes,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the family: template, snapshots, and the sandboxes that are at them, with labels, sizes and ages.

    A sandbox stands below the snapshot that it last was at. Snapshots that follow each other in one sandbox
    stand below each other; a branch begins where it was put back, restored or forked.
    """
    from torpor.sdk.sync_snapshots import Snapshot

    nodes = Snapshot.tree(sandbox_id=None if sandbox is None else find(sandbox).id)
    if as_json:
        print_json(nodes)
        return
    if not nodes:
        print("nothing is there; `torpor template build base` makes a template", file=sys.stderr)
        return
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(width=width, highlight=False)
    for drawn in draw(nodes):
        console.print(drawn)


def draw(nodes: list[FamilyNode]) -> list[Tree]:
    """Return the family as trees, one a template."""
    from rich.tree import Tree

    children: dict[str | None, list[FamilyNode]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    trees = []
    for root in children.get(None, []):
        drawn = Tree(_words(root))
        trees.append(drawn)
        pending = [(child, drawn) for child in reversed(children.get(root.id, []))]
        while pending:
            node, branch = pending.pop()
            own = branch.add(_words(node))
            below = children.get(node.id, [])
            later = _continued_by(node, below)
            pending += [(child, own) for child in reversed(below) if child is not later]
            if later is not None:
                pending.append((later, branch))  # goes on beside it, not below it
    return trees


def _continued_by(node: FamilyNode, below: list[FamilyNode]) -> FamilyNode | None:
    """Return the one snapshot that followed this one in the same sandbox."""
    if node.kind != "snapshot" or node.sandbox_id is None:
        return None
    later = [n for n in below if n.kind == "snapshot" and n.sandbox_id == node.sandbox_id]
    return later[0] if len(later) == 1 else None


def _words(node: FamilyNode) -> Text:
    from rich.text import Text

    text = Text(visible(node.id), style="bold" if node.kind == "template" else "")
    if node.kind == "template":
        said = ["template"]
    elif node.kind == "snapshot":
        text.append(f"  {visible(node.label)}" if node.label else "", style="bold")
        said = [f"{node.reason} of {node.sandbox_id}" if node.sandbox_id else "of the template"]
    else:
        text.append(f"  {node.state}", style="green" if node.state == "running" else "yellow")
        said = [f"{k}={v}" for k, v in node.metadata.items() if not k.startswith("fork_")]
    if node.size_bytes or node.kind != "template":
        said.append(format_bytes(node.size_bytes))
    if node.created_at is not None:
        said.append(age(node.created_at))
    if node.parent_deleted:
        said.append("what it comes from is deleted")
    text.append(f"  {visible(', '.join(said))}", style="dim")
    return text


def layers(
    doomed: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SNAPSHOT|SANDBOX…]",
            help="Say what deleting all of these would free.",
            autocompletion=completion.sources,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say it, which is all this command ever does.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="List each layer too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what takes up the disk: shared and exclusive bytes, and what each deletion would free.

    Nothing is deleted by this, with or without --dry-run. Layers that nothing needs are removed by themselves.
    """
    from torpor.sdk.sync_snapshots import Snapshot

    report = Snapshot.layers()
    if doomed:
        ids = sorted({find_source(text) for text in doomed})
        freed = report.freed_by(ids)
        asleep = sorted({s for owner in report.snapshots if owner.id in ids for s in owner.asleep})
        held = [sandbox for sandbox in asleep if sandbox not in ids]
        if as_json:
            print_json({"delete": ids, "frees_bytes": freed, "refused_for": held})
            return
        print(f"deleting {', '.join(ids)} would free {format_bytes(freed)}")
        if held:
            print(f"note: it would be refused: {', '.join(held)} sleeps at it", file=sys.stderr)
        return
    if as_json:
        print_json(report)
        return
    if every:
        print_table(
            ("LAYER", "SIZE", "SHARED", "NEEDED BY"),
            [
                (
                    x.id,
                    format_bytes(x.size_bytes),
                    "yes" if x.shared else "no",
                    " ".join((*x.snapshots, *x.sandboxes)),
                )
                for x in report.layers
            ],
            empty="no layers",
        )
        print()
    print_table(
        ("ID", "LABEL", "NEEDS", "FREES", "ASLEEP AT IT"),
        [_row(owner) for owner in (*report.snapshots, *report.sandboxes)],
        empty="no snapshots and no sandboxes",
    )
    print(
        f"\n{format_bytes(report.total_bytes)} in {len(report.layers)} layers: "
        f"{format_bytes(report.shared_bytes)} shared, {format_bytes(report.exclusive_bytes)} exclusive, "
        f"{format_bytes(report.unneeded_bytes)} not needed"
    )


def _row(owner: Owner) -> tuple[object, ...]:
    return (
        owner.id,
        owner.label,
        format_bytes(owner.needs_bytes),
        format_bytes(owner.frees_bytes),
        " ".join(owner.asleep) or None,
    )
