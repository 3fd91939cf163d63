"""The template of the machines inside the rig, made outside by the product's own bootstrapper.

It is not booted here, as a template's build does once to let it settle: its first boot is the one in the rig, where
the driver takes its snapshot.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tests.rig.image import HOST, bootstrap, cached, say
from torpor.layers.seal import seal
from torpor.model import TemplateInfo
from torpor.templates import manifest, recipe
from torpor.templates.debian import find_tool
from torpor.templates.plan import BuildPlan, make_plan

RECIPE = HOST / "machine.toml"

_BYTES = 4 << 30
"""Of the disk that carries it in; the file is sparse."""


def template_disk() -> Path:
    """Return a disk whose file system has the template, without a snapshot of it, in `/templates`."""
    plan = make_plan(recipe.load(RECIPE))

    def build(work: Path) -> Path:
        return _build(plan, work)

    return cached(f"template-{plan.recipe_digest[:16]}", build) / "template.raw"


def _build(plan: BuildPlan, work: Path) -> Path:
    say("building the template of the machines inside")
    templates, out = work / "content" / "templates", work / "out"
    folder = templates / plan.recipe_digest
    folder.mkdir(parents=True)
    out.mkdir()
    asyncio.run(bootstrap(plan, work, folder))
    for name in manifest.FILES:
        seal(folder / name)
    made = manifest.template_at(folder, _info(plan), plan.recipe_digest)
    manifest.write_manifest(folder, made)
    manifest.write_pointer(templates, plan.recipe.name, plan.recipe_digest)
    disk = out / "template.raw"
    with disk.open("wb") as file:
        file.truncate(_BYTES)
    mke2fs = find_tool("mke2fs") or "mke2fs"
    argv = [mke2fs, "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", str(templates.parent)]
    subprocess.run([*argv, str(disk)], check=True, timeout=300)
    shutil.rmtree(templates.parent)
    return out


def _info(plan: BuildPlan) -> TemplateInfo:
    made = plan.recipe
    return TemplateInfo(
        name=made.name,
        description=made.description,
        digest=plan.recipe_digest,
        created_at=datetime.now(UTC),
        vcpus=made.vcpus,
        ram_mib=made.ram_mib,
        disk_gib=made.disk_gib,
        size_bytes=0,
        default_user=made.default_user,
        default_cwd=made.default_cwd,
        env=made.env,
    )
