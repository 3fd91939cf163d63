"""The shapes of snapshots, restores, forks and promotions in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from torpor.errors import TorporError, error_to_wire
from torpor.layers.verify import Damage
from torpor.model import (
    Consistency,
    Goodness,
    MemoryChoice,
    Network,
    OnTimeout,
    RestoreSpec,
    SandboxInfo,
    SnapshotInfo,
    SnapshotReason,
)
from torpor.model_memory import Policy, Watermark
from torpor.model_quiesce import OnQuiesceFailure, QuiesceSpec, quiesce_spec
from torpor.model_volumes import VolumesMode
from torpor.server.wire import ErrorWire, SandboxWire, Wire, secrets_field, with_secrets
from torpor.server.wire_quiesce import Quiesce, QuiesceWire


class HibernateRequest(Wire):
    """What POST …/hibernate takes; nothing is needed."""

    consistency: Consistency = "filesystem"
    quiesce: Quiesce = None
    on_quiesce_failure: OnQuiesceFailure | None = None

    def spec(self) -> QuiesceSpec | None:
        """Return how programs are brought to rest; None: nothing was said about it."""
        if self.quiesce is None and self.on_quiesce_failure is None:
            return None
        return quiesce_spec(self.quiesce, on_failure=self.on_quiesce_failure)


class SnapshotRequest(HibernateRequest):
    """What POST …/snapshots takes; nothing is needed."""

    label: str | None = None
    metadata: dict[str, str] | None = None
    volumes: Annotated[
        VolumesMode,
        Field(description="`include` them, or `detach` them before; see the docs on volumes."),
    ] = "include"


class GoodnessWire(Wire):
    """Why a snapshot is known to be good."""

    found_by: Annotated[str, Field(description="Id of the change that was kept, or the drill.")]
    reason: str
    found_at: datetime

    @staticmethod
    def of(mark: Goodness) -> GoodnessWire:
        """Return `mark` as JSON has it."""
        return GoodnessWire(found_by=mark.found_by, reason=mark.reason, found_at=mark.found_at)


class SnapshotWire(Wire):
    """One snapshot."""

    id: str
    snapshot_id: Annotated[str, Field(description="Alias of `id`.")]
    label: str | None
    sandbox_id: str | None
    parent: str | None
    reason: SnapshotReason
    template: str
    template_digest: str
    created_at: datetime
    consistency: Consistency
    vcpus: int
    ram_mib: int
    disk_gib: int
    network: Network
    driver: str
    driver_version: str
    cpu: str
    accel: str
    size_bytes: int
    pause_ms: float
    metadata: Mapping[str, str]
    quiesce: Annotated[
        QuiesceWire | None,
        Field(description="What came of asking its programs to hold still; null: they were not."),
    ]
    machine: Annotated[int, Field(description="Which machine its driver built.")]
    volumes: Annotated[
        Mapping[str, str], Field(description="Names of the volumes that the machine had, by path.")
    ]
    volumes_mode: VolumesMode | None
    env_names: Annotated[
        Sequence[str],
        Field(description="Names of the environment of its sandbox; values are never told."),
    ]
    protected: Annotated[
        list[str], Field(description="Why it cannot be deleted now; empty when it can.")
    ]
    good: Annotated[
        GoodnessWire | None,
        Field(
            description="Why it is known to be good; the newest such one of a sandbox is never removed by itself."
        ),
    ]
    workspace: str
    watermark: Annotated[
        Watermark | None, Field(description="Where the memory of its agent stood.")
    ]
    inventory: Annotated[str, Field(description="`taken`, `incomplete: why` or `not taken: why`.")]

    @staticmethod
    def of(info: SnapshotInfo) -> SnapshotWire:
        """Return `info` as JSON has it."""
        return SnapshotWire(
            id=info.id,
            snapshot_id=info.id,
            label=info.label,
            sandbox_id=info.sandbox_id,
            parent=info.parent,
            reason=info.reason,
            template=info.template,
            template_digest=info.template_digest,
            created_at=info.created_at,
            consistency=info.consistency,
            vcpus=info.vcpus,
            ram_mib=info.ram_mib,
            disk_gib=info.disk_gib,
            network=info.network,
            driver=info.driver,
            driver_version=info.driver_version,
            cpu=info.cpu,
            accel=info.accel,
            size_bytes=info.size_bytes,
            pause_ms=info.pause_ms,
            metadata=info.metadata,
            quiesce=None if info.quiesce is None else QuiesceWire.of(info.quiesce),
            machine=info.machine,
            volumes=info.volumes,
            volumes_mode=info.volumes_mode,
            env_names=info.env_names,
            protected=list(info.protected),
            good=None if info.good is None else GoodnessWire.of(info.good),
            workspace=info.workspace,
            watermark=info.watermark,
            inventory=info.inventory,
        )


class SnapshotListWire(Wire):
    """Snapshots, newest first."""

    snapshots: list[SnapshotWire]
    next_cursor: str | None = None

    @staticmethod
    def of(found: Sequence[SnapshotInfo], next_cursor: str | None = None) -> SnapshotListWire:
        """Return `found` as JSON has it."""
        return SnapshotListWire(
            snapshots=[SnapshotWire.of(info) for info in found], next_cursor=next_cursor
        )


class SnapshotDeletedWire(Wire):
    """A snapshot that is gone, and the bytes that this freed at once."""

    deleted: str
    freed_bytes: int


class DamageWire(Wire):
    """A layer that is not what was written, and all snapshots that need it."""

    layer: str
    problem: str
    dependents: list[str]


class VerifyWire(Wire):
    """Whether all that a snapshot needs is what was written."""

    ok: bool
    damage: list[DamageWire]

    @staticmethod
    def of(found: Sequence[Damage]) -> VerifyWire:
        """Return `found` as JSON has it."""
        return VerifyWire(
            ok=not found,
            damage=[
                DamageWire(layer=d.layer, problem=d.problem, dependents=list(d.dependents))
                for d in found
            ],
        )


class RestoreRequest(Wire):
    """What POST …/restore takes: what the new sandbox has of its own; nothing is needed."""

    env: Annotated[dict[str, str] | None, Field(repr=False)] = None
    secrets: dict[str, str] = secrets_field()
    metadata: dict[str, str] | None = None
    network: Annotated[Network | None, Field(description="null: the snapshot's.")] = None
    ttl_seconds: int | None = None
    on_timeout: OnTimeout = "delete"
    idle_seconds: int | None = None
    allow_cold: Annotated[
        bool, Field(description="Start cold from the disk when the RAM cannot go on here.")
    ] = False
    agent_memory: Annotated[
        Policy | None,
        Field(
            description="How the memory of the snapshot's agent goes on in the new one; null: `reconcile`, of a fork `rewind`."
        ),
    ] = None
    volumes: Annotated[
        VolumesMode | None,
        Field(description="What becomes of the snapshot's volumes; null: as it was taken."),
    ] = None

    def spec(self, **more_metadata: str) -> RestoreSpec:
        """Return the request in the engine's words; `more_metadata` wins over the request's."""
        return RestoreSpec(
            env=with_secrets(self.env or {}, self.secrets),
            metadata={**(self.metadata or {}), **more_metadata},
            network=self.network,
            ttl_seconds=self.ttl_seconds,
            on_timeout=self.on_timeout,
            idle_seconds=self.idle_seconds,
            allow_cold=self.allow_cold,
            agent_memory=self.agent_memory,
            volumes=self.volumes,
        )


class ForkRequest(RestoreRequest):
    """What POST …/fork takes; nothing is needed."""

    count: Annotated[
        int | None,
        Field(description="How many; then one that fails is a result and not the answer's status."),
    ] = None


class RollbackRequest(Wire):
    """What POST …/rollback takes."""

    snapshot_id: str
    memory: Annotated[
        MemoryChoice,
        Field(description="`ram`: memory as it was; `cold`: the disk alone, which then boots."),
    ] = "ram"
    agent_memory: Annotated[
        Policy, Field(description="What the memory of its agent does; docs/memory.md.")
    ] = Policy.RECONCILE
    volumes: Annotated[
        VolumesMode | None,
        Field(description="What becomes of the volumes; null: as the snapshot was taken."),
    ] = None


class ForkMadeWire(Wire):
    """A fork."""

    sandbox: SandboxWire


class ForkFailedWire(Wire):
    """Why a fork is not there."""

    error: ErrorWire


class ForkErrorWire(Wire):
    """Why a fork is not there, as clients of other sandbox services read it."""

    index: int
    err: str


class ForkWire(Wire):
    """What a fork made, in the order asked for."""

    results: list[ForkMadeWire | ForkFailedWire]
    sandbox: Annotated[
        SandboxWire | None, Field(description="The fork, when one was asked for.")
    ] = None
    children: list[SandboxWire]
    errors: list[ForkErrorWire]
    parent_id: str
    tree_id: Annotated[str, Field(description="`fork_tree_id` in the metadata of all of them.")]
    snapshot_id: Annotated[str | None, Field(description="Where they were forked.")]

    @staticmethod
    def of(found: Sequence[SandboxInfo | TorporError], *, parent_id: str, tree_id: str) -> ForkWire:
        """Return `found` as JSON has it."""
        made = [SandboxWire.of(result) for result in found if isinstance(result, SandboxInfo)]
        return ForkWire(
            results=[_result(result) for result in found],
            sandbox=made[0] if len(found) == 1 and made else None,
            children=made,
            errors=[
                ForkErrorWire(index=index, err=result.message)
                for index, result in enumerate(found)
                if isinstance(result, TorporError)
            ],
            parent_id=parent_id,
            tree_id=tree_id,
            snapshot_id=next((sandbox.parent_snapshot for sandbox in made), None),
        )


def _result(result: SandboxInfo | TorporError) -> ForkMadeWire | ForkFailedWire:
    if isinstance(result, TorporError):
        return ForkFailedWire(error=ErrorWire.model_validate(error_to_wire(result)))
    return ForkMadeWire(sandbox=SandboxWire.of(result))


class PromoteRequest(Wire):
    """What POST …/promote takes; nothing is needed."""

    cleanup_siblings: Annotated[
        bool, Field(description="Delete the other forks of the same fork.")
    ] = False
    tree_id: Annotated[
        str | None, Field(description="Refuse unless the fork's `fork_tree_id` is this.")
    ] = None


class PromoteWire(Wire):
    """What a promotion did."""

    winner: str
    tree_id: str | None
    deleted: list[str]
    failures: Annotated[
        dict[str, str], Field(description="Siblings that could not be deleted, and why.")
    ]
