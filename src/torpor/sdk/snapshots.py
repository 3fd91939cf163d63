"""`AsyncSnapshot`: a point of a sandbox's life, as an object."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from torpor.errors import TorporError
from torpor.model import (
    AgentMemory,
    Consistency,
    MemoryChoice,
    Network,
    OnTimeout,
    SandboxId,
    SnapshotId,
    SnapshotInfo,
    SnapshotReason,
)
from torpor.model_drills import ScheduleInfo
from torpor.model_inventory import Inventory, inventory_from_json
from torpor.model_quiesce import QuiesceReport
from torpor.model_volumes import VolumesMode
from torpor.sdk import forks
from torpor.sdk.checks_file import Checks
from torpor.sdk.client import Client, Connection, connection, quote_part, resolved
from torpor.sdk.drills import (
    AsyncDrill,
    DrillOptions,
    Progress,
    begin_drill,
    schedule_drills,
)
from torpor.sdk.dual import dual
from torpor.sdk.snapshot_results import LIFE_LIMIT_S, Verification, snapshot_info, verification

if TYPE_CHECKING:
    from torpor.sdk.diff import SnapshotDiff
    from torpor.sdk.family import FamilyNode, LayersReport
    from torpor.sdk.sandbox import AsyncSandbox

VERIFY_LIMIT_S = 3600.0
"""Seconds to read and hash all that a snapshot needs, which may be many GiB."""


class SnapshotFields(ABC):
    """The facts of a snapshot, which never change, as attributes."""

    @property
    @abstractmethod
    def info(self) -> SnapshotInfo:
        """All facts at once."""

    @property
    def label(self) -> str | None:
        """The name it was given; unique among its sandbox's snapshots."""
        return self.info.label

    @property
    def sandbox_id(self) -> SandboxId | None:
        """The sandbox it was taken of; None for a template's own."""
        return self.info.sandbox_id

    @property
    def parent(self) -> SnapshotId | None:
        """The snapshot that the sandbox was last at when this was taken."""
        return self.info.parent

    @property
    def reason(self) -> SnapshotReason:
        """Why it was taken: `snapshot`, `hibernate`, `fork`, `rollback` or `template`."""
        return self.info.reason

    @property
    def template(self) -> str:
        """The template that its sandbox was made from."""
        return self.info.template

    @property
    def created_at(self) -> datetime:
        """When it was taken."""
        return self.info.created_at

    @property
    def consistency(self) -> Consistency:
        """What was had, which may be less than what was asked for: `crash`, `filesystem`, `application`."""
        return self.info.consistency

    @property
    def quiesce(self) -> QuiesceReport | None:
        """What came of asking the machine's programs to hold still; None: they were not asked."""
        return self.info.quiesce

    @property
    def size_bytes(self) -> int:
        """Bytes written for this snapshot alone."""
        return self.info.size_bytes

    @property
    def size(self) -> int:
        """Alias of `size_bytes`."""
        return self.info.size_bytes

    @property
    def pause_ms(self) -> float:
        """How long the machine stood still for it."""
        return self.info.pause_ms

    @property
    def metadata(self) -> Mapping[str, str]:
        """What it was given when it was taken."""
        return self.info.metadata


class AsyncSnapshot(SnapshotFields):
    """One snapshot. Made by `AsyncSandbox.snapshot`, `get` or `list`; its methods also work on the class with an id."""

    def __init__(self, snapshot_id: str, info: SnapshotInfo | None, client: Client | None) -> None:
        self._id = SnapshotId(snapshot_id)
        self._info = info
        self._client = resolved(client)

    @classmethod
    def handle(cls, snapshot_id: str, *, client: Client | None = None) -> Self:
        """Return an object for an id without asking the daemon whether it exists."""
        return cls(snapshot_id, None, client)

    @override
    def __repr__(self) -> str:
        label = f" {self._info.label!r}" if self._info and self._info.label else ""
        return f"<{type(self).__name__} {self._id}{label}>"

    @property
    def id(self) -> SnapshotId:
        """The snapshot's id, `snap_…`."""
        return self._id

    @property
    @override
    def info(self) -> SnapshotInfo:
        """All facts at once."""
        if self._info is None:
            raise TorporError(
                f"nothing is known of {self._id} yet", hint="use get() instead of handle()"
            )
        return self._info

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/snapshots/{quote_part(self._id)}"

    @classmethod
    async def get(cls, snapshot_id: str, *, client: Client | None = None) -> Self:
        """Return the snapshot with that id. Raises `NotFound`."""
        made = connection(client)
        info = snapshot_info(await made.call("GET", f"/v1/snapshots/{quote_part(snapshot_id)}"))
        return cls(info.id, info, client)

    @classmethod
    async def list(
        cls, *, sandbox_id: str | None = None, client: Client | None = None
    ) -> builtins.list[Self]:
        """Return the snapshots, newest first: of one sandbox, which may be deleted, or all."""
        made = connection(client)
        query = [("sandbox_id", sandbox_id)] if sandbox_id is not None else []
        body = await made.call("GET", "/v1/snapshots", query=query)
        found = [snapshot_info(item) for item in body["snapshots"]]
        return [cls(info.id, info, client) for info in found]

    @classmethod
    async def layers(cls, *, client: Client | None = None) -> LayersReport:
        """Return the layers on disk: who needs which, what is shared, and what each deletion would free."""
        from torpor.sdk.family import report_of

        return report_of(await connection(client).call("GET", "/v1/layers"))

    @classmethod
    async def tree(
        cls, *, sandbox_id: str | None = None, client: Client | None = None
    ) -> builtins.list[FamilyNode]:
        """Return the family of all there is, or of one sandbox: parents before children, oldest first."""
        from torpor.sdk.family import nodes_of

        query = [("sandbox_id", sandbox_id)] if sandbox_id is not None else []
        return nodes_of(await connection(client).call("GET", "/v1/tree", query=query))

    @dual
    async def delete(self, *, force: bool = False) -> int:
        """Remove the snapshot; return the bytes that this freed. What others need of it stays.

        Raises:
            NotFound: there is none.
            Conflict: a sandbox sleeps at it.
            LastGoodSnapshot: it is the last of its sandbox that is known to be good, and `force` is off.
        """
        query = {"force": True} if force else {}
        body = await self._connection.call("DELETE", self._path, query=query, limit_s=LIFE_LIMIT_S)
        freed: int = body["freed_bytes"]
        return freed

    @dual
    async def verify(self) -> Verification:
        """Read all that the snapshot needs, compare it with its digests, and return what is damaged."""
        return verification(
            await self._connection.call("POST", f"{self._path}/verify", limit_s=VERIFY_LIMIT_S)
        )

    @dual
    async def drill(
        self,
        *,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        boots: Sequence[MemoryChoice] = ("ram", "cold"),
        limit_seconds: float = 3600.0,
        author: str | None = None,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> AsyncDrill:
        """Prove that this snapshot comes back, and return the drill; see `AsyncSandbox.drill`."""
        options = DrillOptions(
            checks=checks,
            profile=profile,
            boots=boots,
            limit_seconds=limit_seconds,
            author=author,
        )
        found = await begin_drill(self._path, options, client=self._client)
        return await found.wait(progress) if wait else found

    @dual
    async def schedule_drills(
        self,
        schedule: str,
        *,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        boots: Sequence[MemoryChoice] = ("ram", "cold"),
        limit_seconds: float = 3600.0,
        author: str | None = None,
    ) -> ScheduleInfo:
        """Prove this snapshot again and again; see `AsyncSandbox.schedule_drills`."""
        options = DrillOptions(
            checks=checks,
            profile=profile,
            boots=boots,
            limit_seconds=limit_seconds,
            author=author,
        )
        return await schedule_drills(self._path, schedule, options, client=self._client)

    @dual
    async def inventory(self) -> Inventory:
        """Return what the machine held when the snapshot was taken.

        Raises:
            NotFound: there is no such snapshot, or it has no inventory; the message says why.
            DataDamaged: the inventory is not what was written.
        """
        body = await self._connection.call("GET", f"{self._path}/inventory", limit_s=LIFE_LIMIT_S)
        return inventory_from_json(body, source="the daemon's answer")

    @dual
    async def restore(
        self,
        *,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        network: Network | None = None,
        ttl_seconds: int | None = None,
        on_timeout: OnTimeout = "delete",
        idle_seconds: int | None = None,
        allow_cold: bool = False,
        agent_memory: AgentMemory | None = None,
        volumes: VolumesMode | None = None,
    ) -> AsyncSandbox:
        """Do what `AsyncSandbox.restore` does."""
        from torpor.sdk.sandbox import AsyncSandbox

        return await AsyncSandbox.restore(
            self._id,
            env=env,
            secrets=secrets,
            metadata=metadata,
            network=network,
            ttl_seconds=ttl_seconds,
            on_timeout=on_timeout,
            idle_seconds=idle_seconds,
            allow_cold=allow_cold,
            agent_memory=agent_memory,
            volumes=volumes,
            client=self._client,
        )

    @dual
    async def diff(
        self, other_id: str, *, skip: Sequence[str] | None = None, allow_cold: bool = False
    ) -> SnapshotDiff:
        """Return the files and packages that differ between this snapshot and a later one.

        For what an agent is made of (skills, jobs, models), and without starting machines, compare their
        inventories: `before.inventory().diff(after.inventory())`.

        Both are restored as throw-away sandboxes without a network, looked at, and deleted, however this
        ends. Running programs go on in them meanwhile, so what they write by themselves shows too.

        Args:
            other_id: the snapshot to compare with.
            skip: absolute paths that are not looked at, with all below them; None: /proc, /sys, /dev,
                /run and /tmp.
            allow_cold: start them from the disk alone if their RAM cannot go on here.

        Raises:
            NotFound: one of them is not there.
            InsufficientResources: the host has no room for two more machines.
            TorporError: as `restore` and `exec`.
        """
        from torpor.sdk.diff import SKIP, diff

        return await diff(
            self._id,
            SnapshotId(other_id),
            self._client,
            skip=SKIP if skip is None else skip,
            allow_cold=allow_cold,
        )

    fork = forks.fork
