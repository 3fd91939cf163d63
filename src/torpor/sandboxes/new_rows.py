"""The first row of a sandbox: what it is to be, before anything of it exists."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from torpor.base.ids import new_id
from torpor.db.sandboxes import MachineLayers, SandboxRow
from torpor.layers.manifest import Manifest
from torpor.model import (
    RestoreSpec,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    TemplateInfo,
)
from torpor.sandboxes.admission import Sizes
from torpor.sandboxes.comeback import layers_at
from torpor.sandboxes.parts import Parts


def new_row(
    parts: Parts,
    spec: SandboxSpec,
    sizes: Sizes,
    template: TemplateInfo,
    origin: Manifest | None = None,
) -> SandboxRow:
    """Return the row of a sandbox that boots from a template, or goes on from the snapshot `origin`."""
    info = SandboxInfo(
        id=spec.sandbox_id or SandboxId(new_id("sbx")),
        state=SandboxState.CREATING,
        template=template.name,
        template_digest=template.digest,
        vcpus=sizes.vcpus,
        ram_mib=sizes.ram_mib,
        disk_gib=sizes.disk_gib,
        network=spec.network,
        env_names=tuple(sorted({*spec.env, *(() if origin is None else origin.info.env_names)})),
        metadata=dict(spec.metadata),
        ttl_seconds=spec.ttl_seconds,
        on_timeout=spec.on_timeout,
        created_at=parts.clock.now(),
        expires_at=None,
        driver=parts.driver.name,
        accel=parts.host.accel,
        idle_seconds=spec.idle_seconds,
        parent_snapshot=None if origin is None else origin.info.id,
        workspace=spec.workspace,
    )
    left = None if spec.ttl_seconds is None else timedelta(seconds=spec.ttl_seconds)
    layers = MachineLayers() if origin is None else layers_at(origin)
    return SandboxRow(
        info,
        epoch=0 if origin is None else origin.epoch,
        ttl_left=left,
        layers=replace(layers, active=new_id("lyr")),
    )


def row_from(parts: Parts, origin: Manifest, spec: RestoreSpec) -> SandboxRow:
    """Return the row of a sandbox that is made from a snapshot, with that machine's sizes."""
    info = origin.info
    template = TemplateInfo(
        name=info.template,
        digest=info.template_digest,
        created_at=info.created_at,
        vcpus=info.vcpus,
        ram_mib=info.ram_mib,
        disk_gib=info.disk_gib,
        size_bytes=0,
        default_user="",
        default_cwd="",
        env={},
    )
    made = SandboxSpec(
        template=info.template,
        network=spec.network or info.network,
        env=spec.env,
        metadata=spec.metadata,
        ttl_seconds=spec.ttl_seconds,
        on_timeout=spec.on_timeout,
        idle_seconds=spec.idle_seconds,
        workspace=spec.workspace or info.workspace,
        sandbox_id=spec.sandbox_id,
    )
    return new_row(parts, made, Sizes(info.vcpus, info.ram_mib, info.disk_gib), template, origin)
