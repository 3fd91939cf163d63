"""The bootstrapper for a Dockerfile on a template: the template's own disk, copied."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from torpor.base.fsio import clone_file
from torpor.errors import BuildFailed
from torpor.templates import manifest
from torpor.templates.plan import BuildPlan, Step


async def bootstrap(plan: BuildPlan, _work: Path, out: Path) -> AsyncGenerator[Step, None]:
    """Make `disk.raw`, `vmlinuz` and `initrd` in `out`; see `Bootstrapper` for what holds and is raised."""
    parent = plan.parent
    if parent is None:
        raise BuildFailed("the build has no template to begin with", step="plan")
    yield Step("unpack", f"copying the disk of {parent.info.name}", 0.0)
    for name in manifest.FILES:
        source = getattr(parent, {"disk.raw": "disk", "vmlinuz": "kernel"}.get(name, name))
        await asyncio.to_thread(_copy, source, out / name)
    await asyncio.to_thread(_grow, out / manifest.DISK, plan.disk_bytes)
    yield Step("image", "the disk is there", 1.0)


def _grow(disk: Path, size_bytes: int) -> None:
    if disk.stat().st_size < size_bytes:
        os.truncate(disk, size_bytes)


def _copy(source: Path, target: Path) -> None:
    clone_file(source, target)
    target.chmod(0o644)
