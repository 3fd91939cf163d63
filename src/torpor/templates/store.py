"""`TemplateStore`: the templates of one home, and the builds that make them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from torpor.base.aio import Supervisor
from torpor.base.clock import Clock, SystemClock
from torpor.base.fsio import fsync_dir, locked, remove_tree
from torpor.base.home import Home
from torpor.base.ids import check_name
from torpor.errors import Conflict, DataDamaged, InvalidRequest, NotFound
from torpor.model import BuildEvent, TemplateInfo
from torpor.templates import manifest, planning, recipe, worklock
from torpor.templates.bootstrap import bootstrap as real_bootstrap
from torpor.templates.build import Builder, BuildLog, remove_work, store_lock
from torpor.templates.manifest import Template
from torpor.templates.plan import Bootstrapper, BuildPlan
from torpor.templates.settle import Booter

__all__ = ["Template", "TemplateStore"]

_log = logging.getLogger(__name__)

_NOBODY: Mapping[str, Sequence[str]] = {}
_KERNEL_OF = "base"
"""Whose kernel a template gets that is made of a root file system."""
_NAMED, _TOLD = 5, 100
"""How many users of a template a message names, and how many its facts do."""


class TemplateStore:
    """Templates by name and digest. May be used from one event loop; other processes may use the same home."""

    def __init__(
        self,
        home: Home,
        boot: Booter,
        *,
        bootstrap: Bootstrapper = real_bootstrap,
        clock: Clock | None = None,
    ) -> None:
        self._home = home
        self._boot = boot
        self._builder = Builder(home, boot, bootstrap, clock or SystemClock())
        self._builds: dict[str, BuildLog] = {}
        self._tasks = Supervisor(_report)

    async def clean(self) -> None:
        """Remove what builders that were killed left behind; a live builder's work is not touched."""
        for name in await asyncio.to_thread(worklock.names, self._home.tmp):
            folder = self._home.tmp / name
            with worklock.abandoned(folder) as is_ours:
                if is_ours:
                    await remove_work(folder, self._boot)
        await asyncio.to_thread(self._remove_halves)

    def list(self) -> tuple[TemplateInfo, ...]:
        """Return the templates by name; one whose files are damaged is left out and logged. Blocks."""
        found = []
        for path in sorted(self._home.templates.glob("*.json")):
            if path.name.startswith("."):
                continue
            try:
                found.append(self.get(path.stem).info)
            except (NotFound, DataDamaged, InvalidRequest) as exc:
                _log.warning("template %s is left out: %s", path.stem, exc.message)
        return tuple(found)

    def get(self, name: str) -> Template:
        """Return the template that `name` means now. Blocks.

        Raises:
            NotFound: there is none; the hint says how to build it.
            DataDamaged: its files are not what was written.
        """
        check_name(name, "template")
        digest = manifest.read_pointer(self._home.templates, name)
        try:
            return manifest.read_template(self._home.templates / digest)
        except NotFound as exc:
            raise DataDamaged(
                f"template {name!r} points to {digest}, which is gone",
                hint=f"build it again: torpor template build {name}",
            ) from exc

    def by_digest(self, digest: str) -> Template:
        """Return a template by digest, also one that no name points to any more. Blocks.

        Raises:
            NotFound: there is none.
            DataDamaged: its files are not what was written.
        """
        if not manifest.is_digest(digest):
            raise NotFound(f"there is no template with digest {digest!r}")
        return manifest.read_template(self._home.templates / digest)

    def verify(self, name: str) -> TemplateInfo:
        """Compare a template's files with their digests; reads all of them. Blocks.

        Raises:
            NotFound, DataDamaged: as `get`, or a file has other content than was written.
        """
        return manifest.verify(self.get(name).disk.parent).info

    async def build(
        self, name_or_recipe: str | Path, *, force: bool = False
    ) -> AsyncGenerator[BuildEvent, None]:
        """Build a shipped template by name, or one from a recipe file; yields steps, the template last.

        What is built already is returned at once unless `force`, which makes a new image beside the old.
        A second call for a recipe that is being built follows that build. A build goes on when its callers
        go away; `aclose` stops it.

        Raises:
            NotFound, InvalidRequest: the recipe does not exist or is malformed.
            HostNotReady: a tool or key is missing.
            InsufficientResources: the disk is too full; nothing is left.
            BuildFailed: a step failed; nothing is left.
        """
        made = await asyncio.to_thread(lambda: recipe.load(recipe.find(name_or_recipe)))
        if made.dockerfile is None:
            plan = await planning.plan_of(made)
        else:
            draft = await asyncio.to_thread(planning.draft_of, made)
            async with aclosing(self._ensure(draft.parent_name)) as below:
                async for step in below:
                    yield step
            parent = await asyncio.to_thread(self._parent, draft.parent_name)
            plan = await planning.plan_of_dockerfile(draft, parent)
        if plan.recipe.has_tree:
            async with aclosing(self._with_kernel(plan)) as found:
                async for event in found:
                    if isinstance(event, BuildEvent):
                        yield event
                    else:
                        plan = event
        log = self._builds.get(plan.recipe_digest)
        if log is None:
            log = BuildLog()
            self._builds[plan.recipe_digest] = log
            log.task = self._tasks.spawn(
                self._builder.run(plan, log, force=force), name=f"build {plan.recipe.name}"
            )
            log.task.add_done_callback(lambda _: self._ended(plan))
        async for event in log.follow():
            yield event

    async def _with_kernel(self, plan: BuildPlan) -> AsyncGenerator[BuildEvent | BuildPlan, None]:
        """Yield the plan with the kernel of `base`, and before it the steps of building that if need be."""
        async with aclosing(self._ensure(_KERNEL_OF)) as steps:
            async for event in steps:
                yield event
        found = await asyncio.to_thread(self.get, _KERNEL_OF)
        yield replace(plan, kernel=found.kernel.parent)

    async def _ensure(self, name: str | None) -> AsyncGenerator[BuildEvent, None]:
        """Yield the steps of building a shipped template that is not there; others are nobody's to build."""
        if name is None or name not in await asyncio.to_thread(recipe.shipped_names):
            return
        try:
            await asyncio.to_thread(self.get, name)
        except (NotFound, DataDamaged):
            async with aclosing(self.build(name)) as steps:
                async for event in steps:
                    yield BuildEvent(step="plan", message=f"{name}: {event.message}", fraction=0.0)

    def _parent(self, name: str | None) -> Template | None:
        """Return the template that a Dockerfile's FROM names; None: there is none. Blocks."""
        try:
            return None if name is None else self.get(name)
        except NotFound:
            return None

    def delete(self, name: str, *, needed: Mapping[str, Sequence[str]] = _NOBODY) -> None:
        """Forget a template; its files go too unless another name points to them. Blocks.

        Args:
            needed: digests, with the ids of the sandboxes and snapshots that stand on each; a template with
                one of those is not forgotten.

        Raises:
            NotFound: no such template.
            Conflict: its digest is in `needed`; the message names who needs it; nothing was done.
        """
        check_name(name, "template")
        templates = self._home.templates
        with locked(store_lock(self._home)):
            digest = manifest.read_pointer(templates, name)
            if digest in needed:
                raise _in_use(name, needed[digest])
            (templates / f"{name}.json").unlink()
            fsync_dir(templates)
            if digest not in self._pointed():
                remove_tree(templates / digest)

    def collect(self, needed: Collection[str]) -> tuple[str, ...]:
        """Remove every image that no name points to and that is not in `needed`; return their digests.

        An image is left without a name when its template is built anew. Blocks.
        """
        templates = self._home.templates
        with locked(store_lock(self._home)):
            keep = self._pointed() | frozenset(needed)
            gone = sorted(
                p.name
                for p in templates.iterdir()
                if manifest.is_digest(p.name) and p.name not in keep
            )
            for digest in gone:
                remove_tree(templates / digest)
        return tuple(gone)

    async def aclose(self) -> None:
        """Stop all builds of this process and undo them."""
        await self._tasks.aclose(within_s=120.0)

    def _ended(self, plan: BuildPlan) -> None:
        self._builds.pop(plan.recipe_digest).wake()

    def _pointed(self) -> frozenset[str]:
        """Return the digests that names point to; a pointer that cannot be read stops any removal."""
        templates = self._home.templates
        return frozenset(
            manifest.read_pointer(templates, path.stem)
            for path in templates.glob("*.json")
            if not path.name.startswith(".")
        )

    def _remove_halves(self) -> None:
        """Remove what a crash can leave beside finished templates. Blocks."""
        templates = self._home.templates
        with locked(store_lock(self._home)):
            for path in list(templates.iterdir()):
                if path.name.startswith(".") and path.suffix == ".tmp":
                    path.unlink()
                elif path.name.startswith(".") and path.suffix == ".doomed":
                    remove_tree(path.with_name(path.stem[1:]))
                elif manifest.is_digest(path.name) and not (path / manifest.MANIFEST).exists():
                    remove_tree(path)


def _in_use(name: str, users: Sequence[str]) -> Conflict:
    shown = ", ".join(users[:_NAMED]) + (
        f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
    )
    return Conflict(
        f"template {name!r} is needed by {shown}",
        hint="delete those first: torpor rm SANDBOX, torpor snapshot rm SNAPSHOT",
        name=name,
        needed_by=list(users[:_TOLD]),
    )


def _report(name: str, error: BaseException) -> None:
    _log.warning("%s failed: %s", name, error)
