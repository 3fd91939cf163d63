"""Keeping chains of layers short, in the background: one merge at a time, the result used by machines that start later.

A merge changes nothing that a machine or a manifest names; it adds a layer and a note (see `layers.merges`). What it
leaves when it is broken off is a layer without a note, which is collected.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from torpor.base.faults import reach
from torpor.base.fsio import free_bytes
from torpor.base.ids import new_id
from torpor.base.units import MIB
from torpor.errors import InsufficientResources, TorporError
from torpor.layers import plan
from torpor.layers.manifest import LayerRef
from torpor.layers.merges import Kind, Merged
from torpor.layers.plan import disk_run, ram_run
from torpor.layers.ram_merge import merge_apart
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.room import LOW_BYTES

PERIOD_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a snapshot's or volume's chain that is to become one layer."""

    what: str
    template_digest: str | None
    """What the chain lies over; None: nothing, as a volume's."""
    kind: Kind
    below: tuple[LayerRef, ...]
    run: tuple[LayerRef, ...]
    replaces: tuple[str, ...]
    """The first layers of `run`."""


class Merger:
    """Finds chains that are too long and merges them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._given_up: set[tuple[str, ...]] = set()
        """Runs that could not be merged; they are tried again by the next daemon."""
        self._looked: object = None

    async def run(self) -> None:
        """Merge whatever becomes too long, for as long as the daemon lives."""
        while True:
            if not await self.merge_one():
                await asyncio.sleep(PERIOD_S)

    async def merge_one(self) -> bool:
        """Merge one run; return whether another look may find more. A failure is reported, not raised."""
        store = self._parts.layers
        seen = (store.version, self._parts.volumes.shelf.version)
        if seen == self._looked:
            return False
        job = await asyncio.to_thread(self._next)
        if job is None:
            self._looked = seen
            return False
        size = sum(ref.size_bytes for ref in job.run)
        if await asyncio.to_thread(free_bytes, self._parts.home.root) < size + LOW_BYTES:
            return False  # a shorter chain is not worth a full disk
        try:
            await self._do(job)
        except InsufficientResources:
            return False
        except (TorporError, OSError) as exc:
            self._given_up.add(job.replaces)
            self._parts.report(f"merging {job.kind} layers of {job.what}", exc)
        return True

    def _next(self) -> Job | None:
        store = self._parts.layers
        for manifest in store.snapshots():
            short = store.shortened(manifest)
            ram_bytes = manifest.info.ram_mib * MIB
            kinds: tuple[tuple[Kind, tuple[LayerRef, ...], slice | None], ...] = (
                ("disk", short.disk, disk_run(short.disk)),
                ("ram", short.ram, ram_run(short.ram, ram_bytes)),
            )
            for kind, chain, part in kinds:
                if part is None:
                    continue
                info = manifest.info
                job = self._job(info.id, info.template_digest, kind, chain, part)
                if job is not None:
                    return job
            for point in short.volumes:
                job = self._of_volume(point.name, point.disk)
                if job is not None:
                    return job
        return self._of_any_volume()

    def _of_any_volume(self) -> Job | None:
        """Return the next of the chains that volumes and their own snapshots are."""
        store, shelf = self._parts.layers, self._parts.volumes.shelf
        for snapshot in shelf.snapshots():
            job = self._of_volume(snapshot.info.id, store.merges.shortened(snapshot.disk))
            if job is not None:
                return job
        for row in shelf.all():
            if row.holders:  # what runs is not touched, and what sleeps begins from its snapshot
                continue
            chain = store.merges.shortest(row.layers.disk)
            if len(chain) > plan.DISK_MOST:
                with contextlib.suppress(FileNotFoundError):  # changed meanwhile
                    refs = [store.ref(layer, store.disk_path(layer)) for layer in chain]
                    job = self._of_volume(row.name, tuple(refs))
                    if job is not None:
                        return job
        return None

    def _of_volume(self, name: str, chain: tuple[LayerRef, ...]) -> Job | None:
        part = disk_run(chain)
        return None if part is None else self._job(f"volume {name}", None, "disk", chain, part)

    def _job(
        self,
        what: str,
        template_digest: str | None,
        kind: Kind,
        chain: tuple[LayerRef, ...],
        part: slice,
    ) -> Job | None:
        replaces = self._parts.layers.merges.first_layers(ref.id for ref in chain[part])
        if replaces in self._given_up:
            return None
        return Job(what, template_digest, kind, chain[: part.start], chain[part], replaces)

    async def _do(self, job: Job) -> None:
        store, layer = self._parts.layers, new_id("lyr")
        out = store.path(job.kind, layer)
        chain = [ref.id for ref in (*job.below, *job.run)]
        with self._parts.pins.held(layer, *chain):
            files = [store.path(job.kind, ref.id) for ref in job.run]
            if job.kind == "ram":
                await merge_apart(files, out)
            else:
                below = [store.disk_path(ref.id) for ref in job.below]
                if job.template_digest is not None:
                    template = await asyncio.to_thread(
                        self._parts.templates.by_digest, job.template_digest
                    )
                    below = [template.disk, *below]
                await self._parts.driver.merge_disk(below, files, out)
            reach("merge.made")
            ref = await asyncio.to_thread(store.ref, layer, out)
            reach("merge.durable")
            await asyncio.to_thread(store.add_merged, Merged(ref, job.kind, job.replaces))
            reach("merge.noted")
