"""`EngineView`: the engine as one request sees it. All that routers ask goes through here.

What is in another workspace does not exist for it: ids of it answer as unknown ones do, and no listing has it. What
it makes is in its own workspace, under the ids of the request's plan if it has one. A new method of `EnginePort`
has to be added here, or the types do not fit: nothing passes by.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from torpor.access.ledger import Plan
from torpor.access.principal import Principal
from torpor.base.aio import closing
from torpor.base.ids import is_id
from torpor.base.tracing import span
from torpor.errors import Busy, InvalidRequest, NotAllowed, NotFound, TorporError, VmmFailed
from torpor.guest.port import Guest
from torpor.layers.store import LayerUse
from torpor.layers.verify import Damage
from torpor.model import (
    DRILL_MARK,
    BuildEvent,
    Consistency,
    MemoryChoice,
    OnTimeout,
    RestoreSpec,
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxPage,
    SandboxSpec,
    SandboxState,
    SnapshotId,
    SnapshotInfo,
    TemplateInfo,
)
from torpor.model_access import Scope
from torpor.model_events import StateEvent
from torpor.model_inventory import Inventory
from torpor.model_memory import Policy
from torpor.model_quiesce import QuiesceReport, QuiesceSpec
from torpor.model_usage import MachineUsage
from torpor.model_volumes import VolumesMode
from torpor.sandboxes.claims import Claim
from torpor.sandboxes.memories import AgentMemories
from torpor.sandboxes.missing import no_sandbox, no_snapshot
from torpor.sandboxes.port import EnginePort
from torpor.server.metrics import Metrics
from torpor.server.view_volumes import VolumesView

T = TypeVar("T")

ELSEWHERE = "elsewhere"
"""Stands for owners of a layer that are in other workspaces."""


class EngineView:
    """What a principal sees of the engine, and may do with it."""

    def __init__(
        self,
        engine: EnginePort,
        principal: Principal,
        metrics: Metrics,
        plan: Plan | None = None,
    ) -> None:
        self._engine = engine
        self._principal = principal
        self._metrics = metrics
        self._plan = plan

    @contextmanager
    def _act(self, operation: str, object_id: str | None = None) -> Iterator[None]:
        """Time what is done in the context, in a span of its own."""
        with span(f"engine.{operation}", object_id=object_id), self._metrics.timed(operation):
            yield

    @property
    def volumes(self) -> VolumesView:
        """The workspace's volumes."""
        return VolumesView(self._engine.volumes, self._principal, self.get)

    # ---- what is there ----

    async def get(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Return a sandbox of the workspace."""
        info = await self._engine.get(sandbox_id)
        if not self._principal.sees(info.workspace):
            raise no_sandbox(sandbox_id)
        return info

    async def list(self, query: SandboxFilter) -> SandboxPage:
        """Return a page of the workspace's sandboxes."""
        if not self._principal.sees_all:
            query = replace(query, workspace=self._principal.workspace)
        return await self._engine.list(query)

    async def get_snapshot(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Return a snapshot of the workspace, or a template's own."""
        info = await self._engine.get_snapshot(snapshot_id)
        if not self._sees_snapshot(info):
            raise no_snapshot(snapshot_id)
        return info

    async def snapshots(self, sandbox_id: SandboxId | None = None) -> tuple[SnapshotInfo, ...]:
        """Return the workspace's snapshots, and templates' own."""
        return tuple(s for s in await self._engine.snapshots(sandbox_id) if self._sees_snapshot(s))

    def _sees_snapshot(self, info: SnapshotInfo) -> bool:
        return info.reason == "template" or self._principal.sees(info.workspace)

    async def layers(self) -> tuple[LayerUse, ...]:
        """Return the layers that something of the workspace needs; other owners are `ELSEWHERE`."""
        uses = await self._engine.layers()
        if self._principal.sees_all:
            return uses
        snapshots = {info.id for info in await self.snapshots()}
        sandboxes = await self._sandbox_ids()
        found = []
        for use in uses:
            seen = replace(
                use,
                snapshots=_masked(use.snapshots, snapshots, SnapshotId(ELSEWHERE)),
                sandboxes=_masked(use.sandboxes, sandboxes, ELSEWHERE),
            )
            if {*seen.snapshots, *seen.sandboxes} - {ELSEWHERE}:
                found.append(seen)
        return tuple(found)

    async def _sandbox_ids(self) -> set[str]:
        found: set[str] = set()
        query = SandboxFilter(workspace=self._principal.workspace, limit=1000)
        while True:
            page = await self._engine.list(query)
            found |= {info.id for info in page.items}
            if page.next_cursor is None:
                return found
            query = replace(query, cursor=page.next_cursor)

    # ---- what makes something ----

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox in the workspace."""
        _check_metadata(spec.metadata)
        spec = replace(
            spec,
            workspace=self._principal.workspace,
            sandbox_id=self._planned(),
            volumes=await self.volumes.mounts(spec.volumes),
        )
        with self._act("create"):
            made = await self._made_once(spec.sandbox_id, lambda: self._engine.create(spec))
        self._metrics.booted(made.boot_mode, made.boot_ms)
        return made

    async def restore(
        self,
        snapshot_id: SnapshotId,
        spec: RestoreSpec,
        *,
        reason: Literal["restore", "fork"] = "restore",
    ) -> SandboxInfo:
        """Make a sandbox in the workspace from a snapshot that it sees."""
        _check_metadata(spec.metadata)
        origin = await self.get_snapshot(snapshot_id)
        mounts = await self.volumes.mounts(spec.mounts, self._home or origin.workspace)
        own = replace(spec, workspace=self._home, sandbox_id=self._planned(), mounts=mounts)
        with self._act("restore", snapshot_id):
            made = await self._made_once(
                own.sandbox_id, lambda: self._engine.restore(snapshot_id, own, reason=reason)
            )
        self._metrics.booted(made.boot_mode, made.boot_ms)
        return made

    async def fork(
        self,
        source: SandboxId | SnapshotId,
        spec: RestoreSpec,
        *,
        count: int = 1,
        snapshot_id: SnapshotId | None = None,
        ids: Sequence[SandboxId] = (),
    ) -> tuple[SandboxInfo | TorporError, ...]:
        """Make sandboxes in the workspace from a sandbox or snapshot that it sees."""
        _check_metadata(spec.metadata)
        if is_id(source, "snap"):
            await self.get_snapshot(SnapshotId(source))
        else:
            await self.get(SandboxId(source))
        spec = replace(spec, workspace=self._home)
        with self._act("fork", source):
            made = await self._forked(source, spec, count, snapshot_id, ids)
        for result in made:
            if isinstance(result, SandboxInfo):
                self._metrics.booted(result.boot_mode, result.boot_ms)
        return made

    async def _forked(
        self,
        source: SandboxId | SnapshotId,
        spec: RestoreSpec,
        count: int,
        snapshot_id: SnapshotId | None,
        ids: Sequence[SandboxId],
    ) -> tuple[SandboxInfo | TorporError, ...]:
        plan = self._plan
        if plan is None:
            return await self._engine.fork(
                source, spec, count=count, snapshot_id=snapshot_id, ids=ids
            )
        ids = [plan.sandbox(index) for index in range(max(0, min(count, 100)))]
        if not plan.is_resumed:
            return await self._engine.fork(
                source, spec, count=count, snapshot_id=plan.snapshot, ids=ids
            )
        return await self._forked_on(source, spec, count, ids, plan)

    async def _forked_on(
        self,
        source: SandboxId | SnapshotId,
        spec: RestoreSpec,
        count: int,
        ids: Sequence[SandboxId],
        plan: Plan,
    ) -> tuple[SandboxInfo | TorporError, ...]:
        """Fork what an earlier daemon began to fork: what is there counts, the rest is made."""
        origin = SnapshotId(source)
        if not is_id(source, "snap"):
            taken = await self._known(self._engine.get_snapshot(plan.snapshot))
            if taken is None:
                return await self._engine.fork(
                    source, spec, count=count, snapshot_id=plan.snapshot, ids=ids
                )
            origin = taken.id
        found: list[SandboxInfo | TorporError] = []
        for made in ids:
            own = replace(spec, sandbox_id=made)
            try:
                found.append(
                    await self._made_once(made, lambda own=own: self._restored(origin, own))  # type: ignore[misc]
                )
            except TorporError as error:
                found.append(error)
        return tuple(found)

    async def _restored(self, origin: SnapshotId, spec: RestoreSpec) -> SandboxInfo:
        return await self._engine.restore(origin, spec, reason="fork")

    async def snapshot(
        self,
        sandbox_id: SandboxId,
        *,
        label: str | None = None,
        consistency: Consistency = "filesystem",
        metadata: Mapping[str, str] | None = None,
        quiesce: QuiesceSpec | None = None,
        snapshot_id: SnapshotId | None = None,
        volumes: VolumesMode = "include",
    ) -> SnapshotInfo:
        """Take a snapshot of a sandbox of the workspace."""
        await self.get(sandbox_id)
        plan = self._plan
        if plan is not None and plan.is_resumed:
            taken = await self._known(self._engine.get_snapshot(plan.snapshot))
            if taken is not None:
                return taken
        with self._act("snapshot", sandbox_id):
            made = await self._engine.snapshot(
                sandbox_id,
                label=label,
                consistency=consistency,
                metadata=metadata,
                quiesce=quiesce,
                snapshot_id=snapshot_id if plan is None else plan.snapshot,
                volumes=volumes,
            )
        self._metrics.paused(made.pause_ms)
        return made

    @property
    def _home(self) -> str | None:
        """Where forks and restores go; None: where their snapshot is."""
        return None if self._principal.sees_all else self._principal.workspace

    def _planned(self) -> SandboxId | None:
        return None if self._plan is None else self._plan.sandbox()

    async def _made_once(
        self, planned: SandboxId | None, make: Callable[[], Awaitable[SandboxInfo]]
    ) -> SandboxInfo:
        """Return what an earlier daemon made under that id; make it only if there is no such thing."""
        if planned is None or self._plan is None or not self._plan.is_resumed:
            return await make()
        made = await self._known(self._engine.get(planned))
        if made is None:
            return await make()
        if made.state is SandboxState.CREATING:
            raise Busy(
                f"sandbox {made.id} is still being made",
                hint="send the same request again in a moment",
                sandbox_id=made.id,
                retry_after_seconds=2,
            )
        if made.state is SandboxState.FAILED:
            raise VmmFailed(
                f"sandbox {made.id} was begun and failed: {made.error}",
                hint="delete it, and create another with a fresh key",
                sandbox_id=made.id,
            )
        return made

    @staticmethod
    async def _known(asked: Awaitable[T]) -> T | None:
        try:
            return await asked
        except NotFound:
            return None

    # ---- what changes something ----

    async def delete(self, sandbox_id: SandboxId) -> SandboxInfo:
        """End and remove a sandbox of the workspace."""
        await self.get(sandbox_id)
        with self._act("delete", sandbox_id):
            return await self._engine.delete(sandbox_id)

    async def usage(self, sandbox_id: SandboxId) -> MachineUsage:
        """See `EnginePort.usage`."""
        await self.get(sandbox_id)
        return await self._engine.usage(sandbox_id)

    async def pause(self, sandbox_id: SandboxId, *, holder: str | None = None) -> SandboxInfo:
        """Stop a machine's vCPUs."""
        await self.get(sandbox_id)
        with self._act("pause", sandbox_id):
            return await self._engine.pause(sandbox_id, holder=holder)

    async def resume(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Let a paused machine run on."""
        await self.get(sandbox_id)
        with self._act("resume", sandbox_id):
            return await self._engine.resume(sandbox_id)

    async def set_ttl(
        self, sandbox_id: SandboxId, ttl_seconds: int | None, *, on_timeout: OnTimeout | None = None
    ) -> SandboxInfo:
        """Let a sandbox end so many seconds from now."""
        await self.get(sandbox_id)
        return await self._engine.set_ttl(sandbox_id, ttl_seconds, on_timeout=on_timeout)

    async def set_idle(self, sandbox_id: SandboxId, idle_seconds: int | None) -> SandboxInfo:
        """Let a sandbox hibernate by itself."""
        await self.get(sandbox_id)
        return await self._engine.set_idle(sandbox_id, idle_seconds)

    async def hibernate(
        self,
        sandbox_id: SandboxId,
        *,
        consistency: Consistency = "filesystem",
        quiesce: QuiesceSpec | None = None,
    ) -> SnapshotInfo:
        """Put a sandbox to sleep."""
        await self.get(sandbox_id)
        with self._act("hibernate", sandbox_id):
            return await self._engine.hibernate(
                sandbox_id, consistency=consistency, quiesce=quiesce
            )

    async def test_quiesce(
        self, sandbox_id: SandboxId, quiesce: QuiesceSpec | None = None
    ) -> QuiesceReport:
        """Bring a machine's programs to rest, and release them."""
        await self.get(sandbox_id)
        return await self._engine.test_quiesce(sandbox_id, quiesce)

    async def wake(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Let a hibernated sandbox go on."""
        await self.get(sandbox_id)
        with self._act("wake", sandbox_id):
            return await self._engine.wake(sandbox_id)

    async def rollback(
        self,
        sandbox_id: SandboxId,
        snapshot_id: SnapshotId,
        *,
        memory: MemoryChoice = "ram",
        agent_memory: Policy = Policy.RECONCILE,
        volumes: VolumesMode | None = None,
        holder: str | None = None,
        since_generation: int | None = None,
    ) -> SandboxInfo:
        """Put a sandbox back to a snapshot; both are in the workspace."""
        await self.get(sandbox_id)
        await self.get_snapshot(snapshot_id)
        with self._act("rollback", sandbox_id):
            return await self._engine.rollback(
                sandbox_id,
                snapshot_id,
                memory=memory,
                agent_memory=agent_memory,
                volumes=volumes,
                holder=holder,
                since_generation=since_generation,
            )

    async def check_room(self, sandbox_id: SandboxId) -> None:
        """Return if there is room for work in a sandbox of the workspace."""
        await self.get(sandbox_id)
        await self._engine.check_room(sandbox_id)

    async def claim(self, sandbox_id: SandboxId, claim: Claim | None, holder: str) -> None:
        """Claim a sandbox of the workspace."""
        await self.get(sandbox_id)
        await self._engine.claim(sandbox_id, claim, holder)

    async def protect(self, snapshot_id: SnapshotId, holder: str, reason: str) -> None:
        """Keep a snapshot of the workspace from being deleted."""
        await self.get_snapshot(snapshot_id)
        await self._engine.protect(snapshot_id, holder, reason)

    async def unprotect(self, snapshot_id: SnapshotId | None, holder: str) -> None:
        """End the holder's protection of a snapshot."""
        if snapshot_id is not None:
            await self.get_snapshot(snapshot_id)
        await self._engine.unprotect(snapshot_id, holder)

    async def mark_good(self, snapshot_id: SnapshotId, found_by: str, reason: str) -> None:
        """Note that a snapshot of the workspace is known to be good."""
        await self.get_snapshot(snapshot_id)
        await self._engine.mark_good(snapshot_id, found_by, reason)

    async def unmark_good(self, snapshot_id: SnapshotId) -> None:
        """Note that a snapshot of the workspace is not known to be good any more."""
        await self.get_snapshot(snapshot_id)
        await self._engine.unmark_good(snapshot_id)

    async def last_good(self, sandbox_id: SandboxId) -> SnapshotInfo | None:
        """Return the newest good snapshot of a sandbox of the workspace."""
        await self.get(sandbox_id)
        return await self._engine.last_good(sandbox_id)

    async def note_health(self, sandbox_id: SandboxId, note: str | None, state: str) -> None:
        """Show a note with a sandbox of the workspace."""
        await self.get(sandbox_id)
        await self._engine.note_health(sandbox_id, note, state)

    async def delete_snapshot(self, snapshot_id: SnapshotId, *, force: bool = False) -> int:
        """Remove a snapshot of the workspace; a template's own only as admin."""
        info = await self.get_snapshot(snapshot_id)
        if info.reason == "template" and self._principal.scope is not Scope.ADMIN:
            raise NotAllowed(
                f"snapshot {snapshot_id} is the template {info.template}'s own",
                hint="a token of scope `admin` may remove it",
            )
        return await self._engine.delete_snapshot(snapshot_id, force=force)

    async def verify_snapshot(self, snapshot_id: SnapshotId) -> tuple[Damage, ...]:
        """Compare all that a snapshot needs with its digests."""
        await self.get_snapshot(snapshot_id)
        damage = await self._engine.verify_snapshot(snapshot_id)
        if self._principal.sees_all:
            return damage
        seen = {info.id for info in await self.snapshots()}
        return tuple(
            replace(d, dependents=tuple(s for s in d.dependents if s in seen)) for d in damage
        )

    # ---- what happens ----

    async def events(self, *, after: str | None = None) -> AsyncIterator[StateEvent]:
        """Yield the workspace's changes of state."""
        async with closing(self._engine.events(after=after)) as events:
            async for event in events:
                if event.workspace is None or self._principal.sees(event.workspace):
                    yield event

    # ---- into machines ----

    async def snapshot_inventory(self, snapshot_id: SnapshotId) -> Inventory:
        """See `EnginePort.snapshot_inventory`."""
        await self.get_snapshot(snapshot_id)
        return await self._engine.snapshot_inventory(snapshot_id)

    async def console(self, sandbox_id: SandboxId, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield a machine's console log."""
        await self.get(sandbox_id)
        async for data in self._engine.console(sandbox_id, follow=follow):
            yield data

    def guest(self, sandbox_id: SandboxId) -> AbstractAsyncContextManager[Guest]:
        """Enter with a sandbox's guest."""
        return self._guest(sandbox_id)

    @asynccontextmanager
    async def _guest(self, sandbox_id: SandboxId) -> AsyncIterator[Guest]:
        await self.get(sandbox_id)
        async with self._engine.guest(sandbox_id) as guest:
            yield guest

    @property
    def memories(self) -> AgentMemories:
        """What the agents of the workspace know."""
        workspace = None if self._principal.sees_all else self._principal.workspace
        return self._engine.memories.seen_by(self.get, workspace)

    # ---- the host: the scope of the route says who may ----

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the built templates, which all workspaces share."""
        return await self._engine.templates()

    async def template(self, name: str) -> TemplateInfo:
        """Return one built template."""
        return await self._engine.template(name)

    def build_template(
        self, name_or_recipe: str | Path, *, force: bool = False
    ) -> AsyncIterator[BuildEvent]:
        """Build a template."""
        return self._engine.build_template(name_or_recipe, force=force)

    async def delete_template(self, name: str) -> None:
        """Forget a template."""
        await self._engine.delete_template(name)

    async def doctor(self) -> dict[str, object]:
        """Return what is so about the host."""
        return await self._engine.doctor()


def _check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Refuse what only Torpor says: a drill's clone is not counted by quotas, and has no memory."""
    if metadata and DRILL_MARK in metadata:
        raise InvalidRequest(f"metadata {DRILL_MARK!r} is Torpor's own", hint="call it otherwise")


def _masked(found: Sequence[T], seen: set[T], instead: T) -> tuple[T, ...]:
    """Return those that are seen, and one that stands for all others."""
    known = tuple(item for item in found if item in seen)
    return known if len(known) == len(found) else (*known, instead)
