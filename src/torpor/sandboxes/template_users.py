"""Which sandboxes and snapshots stand on which template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torpor.layers.manifest import Manifest
from torpor.model import SandboxInfo, SnapshotId


def template_users(
    sandboxes: Iterable[SandboxInfo],
    snapshots: Iterable[Manifest],
    damaged: Mapping[SnapshotId, frozenset[str]],
) -> dict[str, list[str]]:
    """Return the ids of who needs each template, by its digest, sandboxes first.

    A template's own snapshot does not need it: that goes when it goes. `damaged` are snapshots whose manifests
    cannot be read, with all the digests that are named in them.
    """
    found: dict[str, list[str]] = {}
    for sandbox in sandboxes:
        found.setdefault(sandbox.template_digest, []).append(sandbox.id)
    for manifest in snapshots:
        if manifest.info.reason != "template":
            found.setdefault(manifest.info.template_digest, []).append(manifest.info.id)
    for snapshot_id, digests in damaged.items():
        for digest in digests:
            found.setdefault(digest, []).append(snapshot_id)
    return found
