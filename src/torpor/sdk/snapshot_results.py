"""What calls about snapshots and forks return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from torpor.base.plain import from_plain
from torpor.model import (
    AgentMemory,
    Goodness,
    Network,
    OnTimeout,
    SandboxId,
    SnapshotId,
    SnapshotInfo,
)
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_memory import Watermark
from torpor.model_quiesce import QuiesceSpec, quiesce_spec, report_from_json, spec_to_json
from torpor.model_volumes import VolumesMode

LIFE_LIMIT_S = 600.0
"""Seconds for a machine to be saved or to come back; without hardware virtualisation it can take minutes."""


class RestoreOptions(TypedDict, total=False):
    """What a sandbox that is made from a snapshot may be given of its own."""

    env: Mapping[str, str] | None
    secrets: Mapping[str, str] | None
    metadata: Mapping[str, str] | None
    network: Network | None
    ttl_seconds: int | None
    on_timeout: OnTimeout
    idle_seconds: int | None
    allow_cold: bool
    agent_memory: AgentMemory | None
    volumes: VolumesMode | None


Quiesce = QuiesceSpec | Mapping[str, Any] | None
"""How programs are brought to rest: a `QuiesceSpec`, or the same as a mapping; None: as is usual."""


def quiesce_body(quiesce: Quiesce, on_quiesce_failure: str | None) -> tuple[dict[str, Any], float]:
    """Return what a request says about quiescing, and how much longer it may take for that.

    Raises:
        InvalidRequest: it cannot be right.
    """
    body: dict[str, Any] = {}
    if quiesce is not None:
        body["quiesce"] = spec_to_json(quiesce)
    if on_quiesce_failure is not None:
        body["on_quiesce_failure"] = on_quiesce_failure
    spec = quiesce_spec(quiesce, on_failure=on_quiesce_failure)
    return body, spec.timeout_seconds + 10.0 * len(spec.versions)


def restore_body(
    *,
    env: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
    network: Network | None,
    ttl_seconds: int | None,
    on_timeout: OnTimeout,
    idle_seconds: int | None,
    allow_cold: bool,
    agent_memory: AgentMemory | None = None,
    volumes: VolumesMode | None = None,
    secrets: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the request that makes a sandbox from a snapshot."""
    return {
        "env": dict(env or {}),
        "secrets": dict(secrets or {}),
        "metadata": dict(metadata or {}),
        "network": network,
        "ttl_seconds": ttl_seconds,
        "on_timeout": on_timeout,
        "idle_seconds": idle_seconds,
        "allow_cold": allow_cold,
        "agent_memory": agent_memory,
        "volumes": volumes,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A layer of a snapshot that is not what was written."""

    layer: str
    problem: str
    dependents: tuple[SnapshotId, ...]
    """All snapshots that need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether all that a snapshot needs is what was written."""

    ok: bool
    damage: tuple[Damage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What a promotion did."""

    winner: SandboxId
    tree_id: str | None
    """What the fork and its siblings have in common; None: it is no fork."""
    deleted: tuple[SandboxId, ...]
    failures: Mapping[SandboxId, str]
    """Siblings that could not be deleted, and why."""


def verification(body: Mapping[str, Any]) -> Verification:
    """Return the verification in `body`."""
    return Verification(
        ok=body["ok"],
        damage=tuple(
            Damage(
                layer=item["layer"],
                problem=item["problem"],
                dependents=tuple(SnapshotId(found) for found in item["dependents"]),
            )
            for item in body["damage"]
        ),
    )


def promotion(body: Mapping[str, Any]) -> Promotion:
    """Return the promotion in `body`."""
    return Promotion(
        winner=SandboxId(body["winner"]),
        tree_id=body["tree_id"],
        deleted=tuple(SandboxId(found) for found in body["deleted"]),
        failures={SandboxId(found): why for found, why in body["failures"].items()},
    )


def snapshot_info(body: Mapping[str, Any]) -> SnapshotInfo:
    """Return the snapshot in `body`."""
    sandbox_id, parent = body["sandbox_id"], body["parent"]
    return SnapshotInfo(
        id=SnapshotId(body["id"]),
        label=body["label"],
        sandbox_id=SandboxId(sandbox_id) if sandbox_id else None,
        parent=SnapshotId(parent) if parent else None,
        reason=body["reason"],
        template=body["template"],
        template_digest=body["template_digest"],
        created_at=datetime.fromisoformat(body["created_at"]),
        consistency=body["consistency"],
        vcpus=body["vcpus"],
        ram_mib=body["ram_mib"],
        disk_gib=body["disk_gib"],
        network=body["network"],
        driver=body["driver"],
        driver_version=body["driver_version"],
        cpu=body["cpu"],
        accel=body["accel"],
        size_bytes=body["size_bytes"],
        pause_ms=body["pause_ms"],
        metadata=body["metadata"],
        quiesce=report_from_json(body["quiesce"]) if body.get("quiesce") else None,
        machine=body.get("machine", 1),
        volumes=body.get("volumes", {}),
        volumes_mode=body.get("volumes_mode"),
        env_names=tuple(body.get("env_names", ())),
        protected=tuple(body.get("protected") or ()),
        good=_goodness(body.get("good")),
        workspace=body.get("workspace", DEFAULT_WORKSPACE),
        watermark=_watermark(body.get("watermark")),
        inventory=body.get("inventory", "not taken: by an earlier version"),
    )


def _goodness(body: Mapping[str, Any] | None) -> Goodness | None:
    if body is None:
        return None
    return Goodness(
        found_by=body["found_by"],
        reason=body["reason"],
        found_at=datetime.fromisoformat(body["found_at"]),
    )


def _watermark(body: Mapping[str, Any] | None) -> Watermark | None:
    return None if body is None else from_plain(Watermark, body)
