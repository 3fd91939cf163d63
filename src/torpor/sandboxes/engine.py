"""The engine: all sandboxes of one host. See `EnginePort` for what each call promises."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from torpor.base.aio import Supervisor
from torpor.base.clock import SystemClock
from torpor.base.home import Home
from torpor.base.ids import check_id, new_id
from torpor.db.database import Database
from torpor.db.sandboxes import SandboxRow, SandboxRows
from torpor.doctor import collect
from torpor.errors import HostNotReady, InvalidRequest, NotFound
from torpor.guest.client import connect
from torpor.guest.port import Guest
from torpor.model import (
    BuildEvent,
    OnTimeout,
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxPage,
    SandboxSpec,
    SandboxState,
    TemplateInfo,
)
from torpor.sandboxes import folder as files
from torpor.sandboxes.admission import Sizes, check_room, choose_sizes
from torpor.sandboxes.boot import TemplateBooter
from torpor.sandboxes.lifecycle import WITH_MACHINE
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.recover import recover
from torpor.sandboxes.task import SandboxTask
from torpor.templates.store import Template, TemplateStore
from torpor.vmm.qemu import QemuDriver

log = logging.getLogger(__name__)

_UPKEEP_S = 30.0
_DELETED_KEPT = timedelta(days=1)
_CONSOLE_CHUNK = 64 << 10
_CONSOLE_POLL_S = 0.5
"""QEMU appends to a file and tells nobody; a log that is followed is looked at this often."""
_METADATA_MOST = 64
_TEXT_MOST = 4096


def open_engine(home: Home) -> Engine:
    """Return the engine of `home`, with the QEMU driver; `start` it before use."""
    home.prepare()
    driver = QemuDriver()
    parts = Parts(
        home=home,
        rows=SandboxRows(Database.open(home.database)),
        driver=driver,
        templates=TemplateStore(home, TemplateBooter(driver, connect)),
        connect_guest=connect,
        clock=SystemClock(),
        report=lambda name, exc: log.error("%s: %s", name, exc, exc_info=exc),
    )
    return Engine(parts)


class Engine:
    """Owns the sandboxes' tasks."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tasks: dict[SandboxId, SandboxTask] = {}
        self._admission = asyncio.Lock()
        self._supervisor = Supervisor(parts.report)

    async def start(self) -> None:
        """Adopt what an earlier daemon left, and begin."""
        await self._parts.templates.clean()
        for task in await recover(self._parts):
            self._tasks[task.info.id] = task
            task.start()
        await asyncio.to_thread(
            self._parts.templates.collect, self._digests()
        )  # images that were replaced while in use
        self._supervisor.launch(self._upkeep(), name="upkeep")

    async def aclose(self) -> None:
        """Stop; machines run on for the next daemon."""
        await self._supervisor.aclose()
        await self._parts.templates.aclose()
        await asyncio.gather(*(task.aclose() for task in self._tasks.values()))
        await asyncio.to_thread(self._parts.rows.close)

    # ---- sandboxes ----

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox and return it running."""
        _check_words(spec)
        support = await self._parts.driver.probe()
        if not support.usable:
            raise HostNotReady(support.reason, hint=support.fix)
        async with self._admission:
            template = await asyncio.to_thread(self._parts.templates.get, spec.template)
            sizes = choose_sizes(spec, template.info)
            living = [task.info for task in self._tasks.values()]
            await asyncio.to_thread(check_room, sizes, living, self._parts.home.root)
            row = self._new_row(spec, sizes, template, support.accel)
            await asyncio.to_thread(self._parts.rows.insert, row)
            task = self._tasks[row.info.id] = SandboxTask(self._parts, row)
        task.start()
        return await task.create(template, spec.env)

    async def get(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Return a sandbox, also one deleted within a day."""
        check_id(sandbox_id, "sbx", "sandbox")
        task = self._tasks.get(sandbox_id)
        if task is not None:
            return task.info
        row = await asyncio.to_thread(self._parts.rows.get, sandbox_id)
        if row is None:
            raise NotFound(
                f"there is no sandbox {sandbox_id}",
                hint="list them: torpor ls",
                sandbox_id=sandbox_id,
            )
        return row.info

    async def list(self, query: SandboxFilter) -> SandboxPage:
        """Return a page of sandboxes, newest first."""
        if not 1 <= query.limit <= 1000:
            raise InvalidRequest(f"limit is {query.limit}; 1 to 1000 is wanted")
        return await asyncio.to_thread(self._parts.rows.page, query)

    async def delete(self, sandbox_id: SandboxId) -> SandboxInfo:
        """End and remove a sandbox from any state."""
        task = self._tasks.get(sandbox_id)
        if task is None:
            return await self.get(sandbox_id)  # deleted already, or never there
        info = await task.delete()
        await self._forget(task)
        return info

    async def pause(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Stop a sandbox's vCPUs."""
        return await (await self._task(sandbox_id)).pause()

    async def resume(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Let a paused sandbox run on."""
        return await (await self._task(sandbox_id)).resume()

    async def set_ttl(
        self, sandbox_id: SandboxId, ttl_seconds: int | None, *, on_timeout: OnTimeout | None = None
    ) -> SandboxInfo:
        """Set the time to live, counted from now."""
        _check_on_timeout(on_timeout)
        if ttl_seconds is not None and ttl_seconds < 1:
            raise InvalidRequest(
                f"ttl_seconds is {ttl_seconds}; 1 or more is wanted",
                hint="to end it now, delete it",
            )
        return await (await self._task(sandbox_id)).set_ttl(ttl_seconds, on_timeout)

    async def console(self, sandbox_id: SandboxId, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the console log; with `follow`, go on until the machine ends."""
        info = await self.get(sandbox_id)
        path = self._parts.driver.console(files.folder_of(self._parts.home, sandbox_id))
        offset = 0
        while True:
            lives = info.state in WITH_MACHINE
            data, offset = await asyncio.to_thread(files.read_console, path, offset, _CONSOLE_CHUNK)
            if data:
                yield data
            elif not (follow and lives):
                return
            else:
                await asyncio.sleep(_CONSOLE_POLL_S)
                info = await self.get(sandbox_id)

    @contextlib.asynccontextmanager
    async def guest(self, sandbox_id: SandboxId) -> AsyncIterator[Guest]:
        """Enter with the connected guest of a running sandbox."""
        async with (await self._task(sandbox_id)).guest() as guest:
            yield guest

    # ---- templates ----

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the built templates, by name."""
        return await asyncio.to_thread(self._parts.templates.list)

    async def template(self, name: str) -> TemplateInfo:
        """Return one built template."""
        return (await asyncio.to_thread(self._parts.templates.get, name)).info

    def build_template(
        self, name_or_recipe: str | Path, *, force: bool = False
    ) -> AsyncIterator[BuildEvent]:
        """Build a template; yields its steps."""
        return self._parts.templates.build(name_or_recipe, force=force)

    async def delete_template(self, name: str) -> None:
        """Forget a template that no sandbox needs."""
        async with self._admission:  # no create may begin on it meanwhile
            await asyncio.to_thread(self._parts.templates.delete, name, needed=self._digests())

    async def doctor(self) -> dict[str, object]:
        """Return what `torpor doctor --json` prints."""
        return await collect(self._parts.home)

    # ---- inside ----

    def _digests(self) -> frozenset[str]:
        return frozenset(task.info.template_digest for task in self._tasks.values())

    def _new_row(
        self, spec: SandboxSpec, sizes: Sizes, template: Template, accel: str | None
    ) -> SandboxRow:
        info = SandboxInfo(
            id=SandboxId(new_id("sbx")),
            state=SandboxState.CREATING,
            template=template.info.name,
            template_digest=template.info.digest,
            vcpus=sizes.vcpus,
            ram_mib=sizes.ram_mib,
            disk_gib=sizes.disk_gib,
            network=spec.network,
            env_names=tuple(sorted(spec.env)),
            metadata=dict(spec.metadata),
            ttl_seconds=spec.ttl_seconds,
            on_timeout=spec.on_timeout,
            created_at=self._parts.clock.now(),
            expires_at=None,
            driver=self._parts.driver.name,
            accel=accel,
        )
        left = None if spec.ttl_seconds is None else timedelta(seconds=spec.ttl_seconds)
        return SandboxRow(info, ttl_left=left)

    async def _task(self, sandbox_id: SandboxId) -> SandboxTask:
        task = self._tasks.get(sandbox_id)
        if task is None:
            info = await self.get(sandbox_id)
            raise NotFound(
                f"sandbox {sandbox_id} is {info.state}",
                hint="create a new one",
                sandbox_id=sandbox_id,
            )
        return task

    async def _forget(self, task: SandboxTask) -> None:
        if self._tasks.get(task.info.id) is task:
            del self._tasks[task.info.id]
            await task.aclose()

    async def _upkeep(self) -> None:
        """Keep logs small and listings short, for as long as the daemon lives."""
        while True:
            await asyncio.sleep(_UPKEEP_S)
            for task in list(self._tasks.values()):
                if task.info.state is SandboxState.DELETED:  # by its TTL
                    await self._forget(task)
                else:
                    path = self._parts.driver.console(
                        files.folder_of(self._parts.home, task.info.id)
                    )
                    await asyncio.to_thread(files.trim_console, path)
            before = self._parts.clock.now() - _DELETED_KEPT
            await asyncio.to_thread(self._parts.rows.forget_deleted, before)


def _check_words(spec: SandboxSpec) -> None:
    """Refuse what cannot be right before anything is looked up."""
    if spec.network not in ("user", "none"):
        raise InvalidRequest(f"network is {spec.network!r}; 'user' or 'none' is wanted")
    _check_on_timeout(spec.on_timeout)
    for what, pairs in (("metadata", spec.metadata), ("env", spec.env)):
        if len(pairs) > _METADATA_MOST * (1 if what == "metadata" else 16):
            raise InvalidRequest(f"{what} has {len(pairs)} entries", hint="give fewer")
        for key, value in pairs.items():
            if (
                not key
                or len(key) > 256
                or len(value) > (_TEXT_MOST if what == "metadata" else 128 << 10)
            ):
                raise InvalidRequest(
                    f"{what} has an entry whose name or value is empty or too long: {key[:80]!r}"
                )
            if what == "env" and ("=" in key or "\0" in key + value):
                raise InvalidRequest(f"{key!r} cannot be the name of an environment variable")


def _check_on_timeout(on_timeout: OnTimeout | None) -> None:
    if on_timeout not in (None, "delete"):
        raise InvalidRequest(
            f"on_timeout is {on_timeout!r}; this version can only 'delete'",
            hint="leave on_timeout out",
        )
