"""One template build, from plan to pointer, and the log of it that any number of callers follow."""

from __future__ import annotations

import asyncio
import errno
import functools
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.base import faults
from torpor.base.aio import finish
from torpor.base.clock import Clock
from torpor.base.fsio import free_bytes, locked, publish_dir
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.base.units import GIB, format_bytes
from torpor.errors import BuildFailed, DataDamaged, InsufficientResources, NotFound
from torpor.layers.seal import seal
from torpor.model import BuildEvent, TemplateInfo
from torpor.templates import manifest, namespace, rootfs, worklock
from torpor.templates.dockerfile.run import carry_out
from torpor.templates.manifest import Template
from torpor.templates.plan import Bootstrapper, BuildPlan, Step
from torpor.templates.settle import Booter, settle

NEEDED_BYTES = 3 * GIB
"""Free disk that a build wants to begin: the tree, the image made from it, and room for its boot."""

_SPANS = {
    "plan": (0.00, 0.01),
    "packages": (0.01, 0.42),
    "unpack": (0.01, 0.42),
    "files": (0.42, 0.44),
    "run": (0.44, 0.45),
    "image": (0.45, 0.50),
    "boot": (0.50, 0.78),
    "settle": (0.78, 0.97),
    "publish": (0.97, 1.00),
}
"""Share of the whole that each step takes, from measured builds of `base` under emulation."""

_REMOVE_S = 300.0


class BuildLog:
    """The events of one build, kept so that a caller who comes late sees all of them."""

    def __init__(self) -> None:
        self._events: list[BuildEvent] = []
        self._more = asyncio.Event()
        self._fraction = 0.0
        self.task: asyncio.Task[TemplateInfo] | None = None

    def say(self, step: str, message: str, share: float) -> None:
        """Add an event; `share` is of this step alone."""
        low, high = _SPANS[step]
        self._add(step, message, low + (high - low) * min(1.0, max(0.0, share)), None)

    def done(self, template: TemplateInfo, message: str) -> None:
        """Add the last event."""
        self._add("done", message, 1.0, template)

    def wake(self) -> None:
        """Let followers look at the task again."""
        self._more.set()
        self._more = asyncio.Event()

    def _add(self, step: str, message: str, fraction: float, template: TemplateInfo | None) -> None:
        self._fraction = max(self._fraction, fraction)
        self._events.append(
            BuildEvent(step=step, message=message, fraction=self._fraction, template=template)
        )
        self.wake()

    async def follow(self) -> AsyncIterator[BuildEvent]:
        """Yield all events from the first on, then what is new; ends, or raises, as the build does."""
        task = self.task
        assert task is not None
        seen = 0
        while True:
            while seen < len(self._events):
                yield self._events[seen]
                seen += 1
            if task.done():
                break
            await self._more.wait()
        if task.cancelled():
            raise BuildFailed("the build was stopped and undone", step="stopped")
        task.result()


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds templates into a home."""

    home: Home
    boot: Booter
    bootstrap: Bootstrapper
    clock: Clock
    needed_bytes: int = NEEDED_BYTES

    async def run(self, plan: BuildPlan, log: BuildLog, *, force: bool) -> TemplateInfo:
        """Build `plan`, or return what is there already, and let its name point to it.

        Another builder of the same recipe, also in another process, is waited for first. On any failure
        and on cancellation nothing is left: no file, process or mount.
        """
        log.say("plan", f"recipe {plan.recipe.name} is {plan.recipe_digest[:12]}", 1.0)
        work = self.home.tmp / f"build-{plan.recipe_digest[:24]}"
        async with worklock.held(
            work, lambda: log.say("plan", "another process builds the same recipe; waiting", 1.0)
        ):
            if not force and (found := await asyncio.to_thread(self._existing, plan)) is not None:
                log.done(found.info, f"template {plan.recipe.name} is up to date")
                return found.info
            await asyncio.to_thread(self._check_space, self.needed_bytes)
            await remove_work(work, self.boot)
            try:
                info = await self._make(plan, work, log)
            except OSError as exc:
                if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise InsufficientResources("the disk is full; the build was undone") from exc
                raise
            finally:
                await finish(remove_work(work, self.boot), within_s=_REMOVE_S)
        log.done(info, f"template {info.name} is ready ({format_bytes(info.size_bytes)})")
        return info

    async def _make(self, plan: BuildPlan, work: Path, log: BuildLog) -> TemplateInfo:
        out, machine = work / "out", work / "vm"
        await asyncio.to_thread(_make_folders, work, out)
        async with aclosing(self.bootstrap(plan, work, out)) as steps:
            await _tell(steps, log)
        faults.reach("template.bootstrapped")
        # a guest whose disk cannot grow hangs instead of failing, so there must be room before it boots
        await asyncio.to_thread(self._check_space, self.needed_bytes // 8)
        for name in (manifest.KERNEL, manifest.INITRD):
            await asyncio.to_thread(seal, out / name)
        image = self._template(plan, out)
        made = plan.dockerfile
        inside = None if made is None else functools.partial(carry_out, made, work=work)
        async with aclosing(settle(self.boot, image, machine, inside)) as steps:
            await _tell(steps, log)
        faults.reach("template.settled")
        log.say("publish", "computing checksums", 0.0)
        await asyncio.to_thread(seal, out / manifest.DISK)
        image = replace(image, info=replace(image.info, created_at=self.clock.now()))  # from now on
        await asyncio.to_thread(manifest.write_manifest, out, image)
        log.say("publish", "putting it into place", 0.9)
        return (await asyncio.to_thread(self._publish, out, image)).info

    def _template(self, plan: BuildPlan, out: Path) -> Template:
        """Return the template being made; it gets a digest of its own if its recipe's is taken."""
        recipe = plan.recipe
        digest = plan.recipe_digest
        if (self.home.templates / digest).exists():
            salted = f"{digest} {new_id('bld')}"
            digest = hashlib.sha256(salted.encode()).hexdigest()
        info = TemplateInfo(
            name=recipe.name,
            description=recipe.description,
            digest=digest,
            created_at=self.clock.now(),
            vcpus=recipe.vcpus,
            ram_mib=recipe.ram_mib,
            disk_gib=recipe.disk_gib,
            size_bytes=0,
            default_user=recipe.default_user,
            default_cwd=recipe.default_cwd,
            env=recipe.env,
            command=recipe.command,
        )
        if plan.dockerfile is not None:
            said = plan.dockerfile.meaning
            info = replace(
                info,
                default_user=said.user,
                default_cwd=said.cwd,
                env=said.env,
                command=said.command,
            )
        cmdline = manifest.CMDLINE if plan.parent is None else plan.parent.cmdline
        if recipe.has_tree:
            cmdline = f"{cmdline} init={rootfs.INIT}"
        return manifest.template_at(out, info, plan.recipe_digest, cmdline)

    def _existing(self, plan: BuildPlan) -> Template | None:
        """Return the template that was made from this very recipe, its name pointing to it."""
        templates = self.home.templates
        with locked(store_lock(self.home)):
            try:
                pointed = manifest.read_pointer(templates, plan.recipe.name)
                found = manifest.read_template(templates / pointed)
            except (NotFound, DataDamaged):
                found = None
            if found is not None and found.recipe_digest == plan.recipe_digest:
                return found
            try:
                found = manifest.read_template(templates / plan.recipe_digest)
            except (NotFound, DataDamaged):
                return None
            manifest.write_pointer(templates, plan.recipe.name, plan.recipe_digest)
            return found

    def _check_space(self, needed_bytes: int) -> None:
        free = free_bytes(self.home.tmp)
        if free < needed_bytes:
            raise InsufficientResources(
                f"{self.home.tmp} has {format_bytes(free)} free; a build needs "
                f"{format_bytes(needed_bytes)}",
                hint="free some space, or let TORPOR_HOME name a larger disk",
                free_bytes=free,
                needed_bytes=needed_bytes,
            )

    def _publish(self, out: Path, image: Template) -> Template:
        templates = self.home.templates
        info = image.info
        with locked(store_lock(self.home)):
            publish_dir(out, templates / info.digest)
            faults.reach("template.published")
            manifest.write_pointer(templates, info.name, info.digest)
        return manifest.read_template(templates / info.digest)


def store_lock(home: Home) -> Path:
    """Return the lock held while names and folders of finished templates change."""
    return home.templates / ".lock"


async def remove_work(work: Path, boot: Booter) -> None:
    """Remove a work folder and all that may still run in it."""
    await boot.sweep(work / "vm")
    await namespace.remove_image_tree(work)


async def _tell(steps: AsyncIterator[Step], log: BuildLog) -> None:
    async for step in steps:
        log.say(step.step, step.message, step.share)


def _make_folders(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir()
        folder.chmod(
            0o711
        )  # the VMM of the first boot runs as another user and opens files in `out`
