"""Who descends from whom, and which bytes of disk each needs alone or shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torpor.layers.store import LayerUse
from torpor.model import SandboxInfo, SandboxState, SnapshotInfo, TemplateInfo
from torpor.server.wire_family import LayersWire, LayerWire, NodeWire, OwnerWire, SleeperWire

_SLEEPS = frozenset({SandboxState.HIBERNATED, SandboxState.WAKING, SandboxState.RESTORING})
"""States in which a sandbox needs the snapshot that it is at as a whole."""


def layers_report(
    uses: Sequence[LayerUse], snapshots: Sequence[SnapshotInfo], sandboxes: Iterable[SandboxInfo]
) -> LayersWire:
    """Return every layer, the sums, and what each deletion would free."""
    counts = [(use, len(use.snapshots) + len(use.sandboxes)) for use in uses]
    needed, freed = _needed(uses), _freed(uses)
    kept = list(sandboxes)
    return LayersWire(
        layers=[
            LayerWire(
                id=use.id,
                size_bytes=use.size_bytes,
                shared=count > 1,
                snapshots=list(use.snapshots),
                sandboxes=list(use.sandboxes),
            )
            for use, count in counts
        ],
        total_bytes=sum(use.size_bytes for use in uses),
        shared_bytes=sum(use.size_bytes for use, count in counts if count > 1),
        exclusive_bytes=sum(use.size_bytes for use, count in counts if count == 1),
        unneeded_bytes=sum(use.size_bytes for use, count in counts if count == 0),
        snapshots=[
            SleeperWire(
                id=info.id,
                label=info.label,
                sandbox_id=info.sandbox_id,
                needs_bytes=needed.get(info.id, 0),
                frees_bytes=freed.get(info.id, 0),
                asleep=[s.id for s in kept if s.parent_snapshot == info.id and s.state in _SLEEPS],
            )
            for info in snapshots
        ],
        sandboxes=[
            OwnerWire(
                id=info.id,
                needs_bytes=needed.get(info.id, 0),
                frees_bytes=freed.get(info.id, 0),
            )
            for info in kept
        ],
    )


def _owners(use: LayerUse) -> tuple[str, ...]:
    return (*use.snapshots, *use.sandboxes)


def _needed(uses: Iterable[LayerUse]) -> dict[str, int]:
    """Return the bytes that each snapshot and sandbox needs, shared or not."""
    found: dict[str, int] = {}
    for use in uses:
        for owner in _owners(use):
            found[owner] = found.get(owner, 0) + use.size_bytes
    return found


def _freed(uses: Iterable[LayerUse]) -> dict[str, int]:
    """Return the bytes that would be freed if this one alone was deleted."""
    found: dict[str, int] = {}
    for use in uses:
        owners = _owners(use)
        if len(owners) == 1:
            found[owners[0]] = found.get(owners[0], 0) + use.size_bytes
    return found


def family_tree(
    templates: Iterable[TemplateInfo],
    snapshots: Sequence[SnapshotInfo],
    sandboxes: Sequence[SandboxInfo],
    uses: Sequence[LayerUse],
    *,
    of: str | None = None,
) -> list[NodeWire]:
    """Return templates, snapshots and sandboxes, each with the one it descends from, oldest first.

    With `of`, a sandbox's id: only what has to do with it, from its first snapshot on.
    """
    freed = _freed(uses)
    roots = _roots(templates, snapshots, sandboxes)
    known = {info.id for info in snapshots}
    nodes = [*roots.values()]
    for info in sorted(snapshots, key=lambda s: (s.created_at, s.id)):
        here = info.parent if info.parent in known else None
        nodes.append(
            NodeWire(
                kind="snapshot",
                id=info.id,
                parent=here or roots[info.template_digest].id,
                parent_deleted=info.parent is not None and here is None,
                label=info.label,
                state=None,
                reason=info.reason,
                sandbox_id=info.sandbox_id,
                size_bytes=info.size_bytes,
                frees_bytes=freed.get(info.id, 0),
                created_at=info.created_at,
                metadata=info.metadata,
            )
        )
    for found in sorted(sandboxes, key=lambda s: (s.created_at, s.id)):
        here = found.parent_snapshot if found.parent_snapshot in known else None
        nodes.append(
            NodeWire(
                kind="sandbox",
                id=found.id,
                parent=here or roots[found.template_digest].id,
                parent_deleted=found.parent_snapshot is not None and here is None,
                label=None,
                state=found.state,
                reason=None,
                sandbox_id=found.id,
                size_bytes=freed.get(found.id, 0),
                frees_bytes=freed.get(found.id, 0),
                created_at=found.created_at,
                metadata=found.metadata,
            )
        )
    return nodes if of is None else _only(nodes, of)


def _roots(
    templates: Iterable[TemplateInfo],
    snapshots: Iterable[SnapshotInfo],
    sandboxes: Iterable[SandboxInfo],
) -> Mapping[str, NodeWire]:
    """Return a node for each template by its digest: those that are built, and older builds that are in use."""
    found = {info.digest: _root(info.name, info.name, info.size_bytes, info) for info in templates}
    in_use = [(s.template, s.template_digest) for s in snapshots]
    in_use += [(s.template, s.template_digest) for s in sandboxes]
    for name, digest in in_use:
        if digest not in found:
            found[digest] = _root(f"{name}@{digest[:12]}", name, 0, None)
    return found


def _root(node_id: str, label: str, size_bytes: int, info: TemplateInfo | None) -> NodeWire:
    return NodeWire(
        kind="template",
        id=node_id,
        parent=None,
        parent_deleted=False,
        label=label,
        state=None,
        reason=None,
        sandbox_id=None,
        size_bytes=size_bytes,
        frees_bytes=0,
        created_at=None if info is None else info.created_at,
        metadata={},
    )


def _only(nodes: Sequence[NodeWire], sandbox_id: str) -> list[NodeWire]:
    """Return the branches that a sandbox has to do with, and what they grow on."""
    by_id = {node.id: node for node in nodes}
    trunk = {n.id for n in nodes if n.kind == "template" or n.reason == "template"}
    branch: dict[str, str] = {}
    for node in nodes:
        path = []
        here = node
        while here.id not in branch and here.id not in trunk and here.parent not in trunk:
            path.append(here.id)
            assert here.parent is not None  # only a template has none
            here = by_id[here.parent]
        for seen in (*path, here.id):
            branch[seen] = branch.get(here.id, here.id)
    wanted = {branch[node.id] for node in nodes if node.sandbox_id == sandbox_id}
    kept = {node.id for node in nodes if branch[node.id] in wanted}
    for node in nodes:
        if node.id in wanted:
            above = node.parent
            while above is not None:
                kept.add(above)
                above = by_id[above].parent
    return [node for node in nodes if node.id in kept]
