"""How sandboxes begin: from a template or a snapshot; see `EnginePort` for what each call promises."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torpor.base.aio import finish
from torpor.base.ids import is_id
from torpor.db.sandboxes import SandboxRow
from torpor.errors import DataDamaged, InvalidRequest, TorporError
from torpor.layers.manifest import Manifest
from torpor.model import (
    RestoreSpec,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotId,
    Stillness,
)
from torpor.model_volumes import VolumeMount, VolumesMode
from torpor.sandboxes.admission import Sizes, choose_sizes, is_default
from torpor.sandboxes.birth import RenewalReason
from torpor.sandboxes.capture import Wish
from torpor.sandboxes.fit import check_fits, check_network, check_vcpus, misfit
from torpor.sandboxes.memory_moves import FollowingMemory
from torpor.sandboxes.new_rows import new_row, row_from
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.presence import check_files
from torpor.sandboxes.promises import Promises
from torpor.sandboxes.requests import (
    FORKS_MOST,
    check_restore,
    check_snapshot_id,
    check_spec,
)
from torpor.sandboxes.room import image_of
from torpor.sandboxes.task import SandboxTask
from torpor.sandboxes.volume_attach import release_all
from torpor.sandboxes.volume_capture import check_mode
from torpor.sandboxes.volume_engine import EngineVolumes
from torpor.sandboxes.volume_restore import check_free, check_points, clones_of, cold_mounts
from torpor.sandboxes.warm import WarmTemplates


class CreationCalls(ABC):
    """The engine's ways to make a sandbox."""

    _parts: Parts
    _tasks: dict[SandboxId, SandboxTask]
    _promises: Promises
    _volumes: EngineVolumes
    _warm: WarmTemplates
    _moves: FollowingMemory

    @abstractmethod
    async def _task(self, sandbox_id: SandboxId) -> SandboxTask:
        """Return the task of a living sandbox."""

    @abstractmethod
    async def _look_at_host(self) -> None:
        """Raise `HostNotReady` unless machines can be started."""

    @abstractmethod
    async def get(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Return a sandbox."""

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox and return it running."""
        check_spec(spec)
        self._volumes.check_mounts(spec.volumes)
        await self._look_at_host()
        check_network(spec.network, self._parts.host)
        template = await asyncio.to_thread(self._parts.templates.get, spec.template)
        sizes = choose_sizes(spec, template.info)
        check_vcpus(sizes.vcpus, self._parts.host)
        origin = self._warm.find(template, sizes)
        if origin is None and is_default(sizes, template.info):
            await self._promises.check_room(sizes)
            origin = await self._warm.take(template)
        if origin is None:
            task = await self._admit(new_row(self._parts, spec, sizes, template.info))
            return await task.create_cold(template, spec.env, spec.volumes)
        origin = self._parts.layers.shortened(origin)
        return await self._create_from(
            origin,
            new_row(self._parts, spec, sizes, template.info, origin),
            spec.env,
            "create",
            spec.volumes,
        )

    async def restore(
        self,
        snapshot_id: SnapshotId,
        spec: RestoreSpec,
        *,
        reason: Literal["restore", "fork"] = "restore",
    ) -> SandboxInfo:
        """Make a new sandbox that goes on from a snapshot, with an identity of its own."""
        check_restore(spec)
        check_mode(spec.volumes)
        self._volumes.check_mounts(spec.mounts)
        await self._look_at_host()
        store = self._parts.layers
        origin = store.shortened(self._parts.origin(check_snapshot_id(snapshot_id)))
        row = row_from(self._parts, origin, spec)
        info = row.info
        check_points(origin, spec.volumes)
        await check_free(self._parts, origin, info.id, spec.volumes)
        if not info.is_clone_of_drill:  # that is thrown away, and a proof does not depend on quotas
            self._parts.volumes.check_clones(self._clones(origin, spec))
        check_network(info.network, self._parts.host)
        check_vcpus(info.vcpus, self._parts.host)
        with self._parts.pins.held(origin.info.id, *origin.layer_ids):
            await check_files(self._parts, origin, (), devices=False)
            if not info.is_clone_of_drill:
                await self._moves.intend_new(
                    info,
                    origin.info.watermark,
                    is_fork=reason == "fork",
                    policy=spec.agent_memory,
                    others=[t.info.id for t in self._tasks.values() if t.info.agent == info.agent],
                )
            try:
                await self._begin(origin, row, spec, reason)
            except Exception:
                if info.id not in self._tasks:
                    await self._moves.withdraw(info.id)
                raise
        return await self.get(info.id)  # memory follows when it is first asked for

    async def _begin(
        self, origin: Manifest, row: SandboxRow, spec: RestoreSpec, reason: RenewalReason
    ) -> None:
        """Make the sandbox of `row` go on from a snapshot, or boot from its disk if that is wanted or needed."""
        is_cold = spec.memory == "cold"
        why = None if is_cold else misfit(origin.info, self._parts.host)
        if (
            not is_cold
            and why is None
            and not (spec.allow_cold and await self._lost_its_ram(origin))
        ):
            await self._create_from(
                origin, row, spec.env, reason, spec.mounts, spec.volumes, spec.still
            )
            return
        if not (is_cold or spec.allow_cold):
            check_fits(origin.info, self._parts.host)
        template = await asyncio.to_thread(
            self._parts.templates.by_digest, origin.info.template_digest
        )
        # its memory begins empty: no RAM layer is part of it
        row = replace(row, layers=replace(row.layers, image=None, ram=()))
        with self._parts.pins.held(*origin.layer_ids):
            try:
                mounts = await cold_mounts(self._parts, origin, row.info, spec.volumes)
                task = await self._admit(row)
            except BaseException:
                await finish(release_all(self._parts, row.info.id), within_s=60.0)
                raise
        await task.create_cold(template, spec.env, (*mounts, *spec.mounts), spec.still)

    async def fork(
        self,
        source: SandboxId | SnapshotId,
        spec: RestoreSpec,
        *,
        count: int = 1,
        snapshot_id: SnapshotId | None = None,
        ids: Sequence[SandboxId] = (),
    ) -> tuple[SandboxInfo | TorporError, ...]:
        """Make `count` sandboxes from a running sandbox or a snapshot; each is a sandbox or its own error."""
        if not 1 <= count <= FORKS_MOST:
            raise InvalidRequest(
                f"count is {count}; 1 to {FORKS_MOST} is wanted",
                hint="fork in several calls" if count > 0 else "leave it out to get one fork",
            )
        check_restore(spec)
        if is_id(source, "snap"):
            found = self._parts.layers.get(SnapshotId(source))
            self._parts.volumes.check_clones(self._clones(found, spec) * count)
            origin = found.info.id
        else:
            if spec.volumes in (None, "include"):
                held = self._parts.volumes.shelf.held_by(source)
                written = [row.size_bytes for row, holder in held if not holder.read_only]
                self._parts.volumes.check_clones(written * count)
            wish = Wish(reason="fork", snapshot_id=snapshot_id)
            origin = (await (await self._task(SandboxId(source))).snapshot(wish)).info.id

        async def one(own: RestoreSpec) -> SandboxInfo | TorporError:
            try:
                return await self.restore(origin, own, reason="fork")
            except TorporError as exc:
                return exc

        specs = [replace(spec, sandbox_id=made) for made in ids] or [spec] * count
        return tuple(await asyncio.gather(*map(one, specs)))

    def _clones(self, origin: Manifest, spec: RestoreSpec) -> list[int]:
        """Return the sizes of the volumes' clones that a sandbox from a snapshot brings along."""
        workspace, is_cold = spec.workspace or origin.info.workspace, spec.memory == "cold"
        return clones_of(self._parts, origin, workspace, spec.volumes, is_cold=is_cold)

    async def _admit(self, row: SandboxRow) -> SandboxTask:
        """Write the row of a sandbox that the host has room for, and start its task."""
        info = row.info
        async with self._promises.turn:
            await self._promises.check_room(Sizes(info.vcpus, info.ram_mib, info.disk_gib))
            # it may have been deleted while we waited
            await asyncio.to_thread(self._parts.templates.by_digest, info.template_digest)
            await asyncio.to_thread(self._parts.rows.insert, row)
            task = self._tasks[info.id] = SandboxTask(self._parts, row)
        task.start()
        return task

    async def _lost_its_ram(self, origin: Manifest) -> bool:
        """Return whether a snapshot's RAM cannot be put together any more, so that only its disk is left."""
        with self._parts.pins.held(origin.info.id, *origin.layer_ids):
            try:
                await image_of(self._parts, origin)
            except DataDamaged as exc:
                self._parts.report(f"RAM of {origin.info.id}", exc)
                return True
        return False

    async def _create_from(
        self,
        origin: Manifest,
        row: SandboxRow,
        env: Mapping[str, str],
        reason: RenewalReason,
        mounts: Sequence[VolumeMount] = (),
        volumes: VolumesMode | None = None,
        still: Stillness | None = None,
    ) -> SandboxInfo:
        with self._parts.pins.held(origin.info.id, *origin.layer_ids):
            task = await self._admit(row)
            return await task.create_from(origin, env, reason, mounts, volumes, still)
