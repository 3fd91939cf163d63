"""Which bootstrapper makes a recipe's image."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

from torpor.templates import debian, rootfs
from torpor.templates.dockerfile import inherit
from torpor.templates.plan import BuildPlan, Step


def bootstrap(plan: BuildPlan, work: Path, out: Path) -> AsyncGenerator[Step, None]:
    """Begin; see `Bootstrapper`."""
    if plan.parent is not None:
        return inherit.bootstrap(plan, work, out)
    made_by = rootfs.bootstrap if plan.recipe.has_tree else debian.bootstrap
    return made_by(plan, work, out)
