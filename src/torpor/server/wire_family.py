"""The shapes of layers and of the family tree in JSON; flat lists, however deep the family is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from torpor.model import SandboxState, SnapshotReason
from torpor.server.wire import Wire


class LayerWire(Wire):
    """A file on disk that snapshots and sandboxes are made of."""

    id: str
    size_bytes: int
    shared: Annotated[bool, Field(description="More than one needs it.")]
    snapshots: list[str]
    sandboxes: list[str]


class OwnerWire(Wire):
    """A snapshot or sandbox, and its layers."""

    id: str
    needs_bytes: Annotated[int, Field(description="All its layers, shared or not.")]
    frees_bytes: Annotated[int, Field(description="Its layers that nothing else needs.")]


class SleeperWire(OwnerWire):
    """A snapshot and its layers."""

    label: str | None
    sandbox_id: str | None
    asleep: Annotated[
        list[str], Field(description="Sandboxes that sleep at it; it cannot be deleted.")
    ]


class LayersWire(Wire):
    """All layers, their sums, and what each deletion would free."""

    layers: list[LayerWire]
    total_bytes: int
    shared_bytes: int
    exclusive_bytes: Annotated[int, Field(description="Of layers that just one needs.")]
    unneeded_bytes: Annotated[int, Field(description="Of layers that will soon be collected.")]
    snapshots: list[SleeperWire]
    sandboxes: list[OwnerWire]


class NodeWire(Wire):
    """A template, snapshot or sandbox in the family tree."""

    kind: Literal["template", "snapshot", "sandbox"]
    id: Annotated[str, Field(description="A template's is its name, or `name@digest` if outdated.")]
    parent: Annotated[str | None, Field(description="The node that it descends from.")]
    parent_deleted: Annotated[
        bool,
        Field(description="What it really descends from is deleted; `parent` is the template."),
    ]
    label: Annotated[str | None, Field(description="A snapshot's label; a template's name.")]
    state: SandboxState | None
    reason: SnapshotReason | None
    sandbox_id: Annotated[str | None, Field(description="A snapshot's: what it was taken of.")]
    size_bytes: Annotated[
        int, Field(description="Written for it alone; a sandbox's: what only it needs.")
    ]
    frees_bytes: Annotated[int, Field(description="What its deletion would free.")]
    created_at: Annotated[datetime | None, Field(description="null: of an outdated template.")]
    metadata: Mapping[str, str]


class TreeWire(Wire):
    """The family, parents before children."""

    nodes: list[NodeWire]
