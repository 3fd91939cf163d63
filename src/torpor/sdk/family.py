"""What takes up the disk, and who descends from whom."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from torpor.model import SandboxState, SnapshotReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A file on disk that snapshots and sandboxes are made of."""

    id: str
    size_bytes: int
    shared: bool
    """More than one needs it."""
    snapshots: tuple[str, ...]
    sandboxes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A snapshot or sandbox, and its layers."""

    id: str
    needs_bytes: int
    """All its layers, shared or not."""
    frees_bytes: int
    """Its layers that nothing else needs: what deleting it would free."""
    label: str | None = None
    sandbox_id: str | None = None
    """A snapshot's: what it was taken of."""
    asleep: tuple[str, ...] = ()
    """A snapshot's: sandboxes that sleep at it, so that it cannot be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersReport:
    """All layers, their sums, and what each deletion would free."""

    layers: tuple[Layer, ...]
    total_bytes: int
    shared_bytes: int
    exclusive_bytes: int
    """Of layers that just one needs."""
    unneeded_bytes: int
    """Of layers that nothing needs, which will soon be collected."""
    snapshots: tuple[Owner, ...]
    sandboxes: tuple[Owner, ...]

    def freed_by(self, ids: Collection[str]) -> int:
        """Return the bytes of layers that deleting all of `ids`, snapshots or sandboxes, would free."""
        doomed = set(ids)
        return sum(
            layer.size_bytes
            for layer in self.layers
            if (owners := {*layer.snapshots, *layer.sandboxes}) and owners <= doomed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyNode:
    """A template, snapshot or sandbox in the family tree."""

    kind: Literal["template", "snapshot", "sandbox"]
    id: str
    """A template's is its name, or `name@digest` if it was built anew since."""
    parent: str | None
    """The node that it descends from; a sandbox's is the snapshot it last was at."""
    parent_deleted: bool
    """What it really descends from is deleted; `parent` is the template."""
    label: str | None
    """A snapshot's label; a template's name."""
    state: SandboxState | None
    reason: SnapshotReason | None
    sandbox_id: str | None
    """A snapshot's: what it was taken of."""
    size_bytes: int
    """Written for it alone; a sandbox's: what only it needs."""
    frees_bytes: int
    """What its deletion would free."""
    created_at: datetime | None
    """None: of a template that was built anew since."""
    metadata: Mapping[str, str]


def report_of(body: Mapping[str, Any]) -> LayersReport:
    """Return the layers in `body`."""
    return LayersReport(
        layers=tuple(
            Layer(
                id=item["id"],
                size_bytes=item["size_bytes"],
                shared=item["shared"],
                snapshots=tuple(item["snapshots"]),
                sandboxes=tuple(item["sandboxes"]),
            )
            for item in body["layers"]
        ),
        total_bytes=body["total_bytes"],
        shared_bytes=body["shared_bytes"],
        exclusive_bytes=body["exclusive_bytes"],
        unneeded_bytes=body["unneeded_bytes"],
        snapshots=tuple(_owner(item) for item in body["snapshots"]),
        sandboxes=tuple(_owner(item) for item in body["sandboxes"]),
    )


def _owner(item: Mapping[str, Any]) -> Owner:
    return Owner(
        id=item["id"],
        needs_bytes=item["needs_bytes"],
        frees_bytes=item["frees_bytes"],
        label=item.get("label"),
        sandbox_id=item.get("sandbox_id"),
        asleep=tuple(item.get("asleep", ())),
    )


def nodes_of(body: Mapping[str, Any]) -> list[FamilyNode]:
    """Return the family in `body`."""
    return [
        FamilyNode(
            kind=item["kind"],
            id=item["id"],
            parent=item["parent"],
            parent_deleted=item["parent_deleted"],
            label=item["label"],
            state=SandboxState(item["state"]) if item["state"] else None,
            reason=item["reason"],
            sandbox_id=item["sandbox_id"],
            size_bytes=item["size_bytes"],
            frees_bytes=item["frees_bytes"],
            created_at=datetime.fromisoformat(item["created_at"]) if item["created_at"] else None,
            metadata=item["metadata"],
        )
        for item in body["nodes"]
    ]
