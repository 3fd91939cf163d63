"""`Snapshot`: the synchronous face of `AsyncSnapshot`, call for call."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from torpor.model import AgentMemory, MemoryChoice, Network, OnTimeout, SnapshotId, SnapshotInfo
from torpor.model_drills import ScheduleInfo
from torpor.model_inventory import Inventory
from torpor.model_volumes import VolumesMode
from torpor.sdk import sync_forks
from torpor.sdk.checks_file import Checks
from torpor.sdk.client import Client
from torpor.sdk.drills import Progress
from torpor.sdk.dual import dual
from torpor.sdk.loop import loop_thread
from torpor.sdk.snapshot_results import Verification
from torpor.sdk.snapshots import AsyncSnapshot, SnapshotFields
from torpor.sdk.sync_drills import Drill

if TYPE_CHECKING:
    from torpor.sdk.diff import SnapshotDiff
    from torpor.sdk.family import FamilyNode, LayersReport
    from torpor.sdk.sync_sandbox import Sandbox


class Snapshot(SnapshotFields):
    """One snapshot. Made by `Sandbox.snapshot`, `get` or `list`; its methods also work on the class with an id."""

    def __init__(self, snapshot: AsyncSnapshot) -> None:
        self._snapshot = snapshot

    @classmethod
    def handle(cls, snapshot_id: str, *, client: Client | None = None) -> Self:
        """Return an object for an id without asking the daemon whether it exists."""
        return cls(AsyncSnapshot.handle(snapshot_id, client=client))

    @override
    def __repr__(self) -> str:
        return repr(self._snapshot).replace("AsyncSnapshot", type(self).__name__)

    @property
    def id(self) -> SnapshotId:
        """The snapshot's id, `snap_…`."""
        return self._snapshot.id

    @property
    @override
    def info(self) -> SnapshotInfo:
        """All facts at once."""
        return self._snapshot.info

    @classmethod
    def get(cls, snapshot_id: str, *, client: Client | None = None) -> Self:
        """Return the snapshot with that id. Raises `NotFound`."""
        return cls(loop_thread.run(AsyncSnapshot.get(snapshot_id, client=client)))

    @classmethod
    def list(
        cls, *, sandbox_id: str | None = None, client: Client | None = None
    ) -> builtins.list[Self]:
        """Return the snapshots, newest first: of one sandbox, which may be deleted, or all."""
        found = loop_thread.run(AsyncSnapshot.list(sandbox_id=sandbox_id, client=client))
        return [cls(snapshot) for snapshot in found]

    @classmethod
    def layers(cls, *, client: Client | None = None) -> LayersReport:
        """Return the layers on disk: who needs which, what is shared, and what each deletion would free."""
        return loop_thread.run(AsyncSnapshot.layers(client=client))

    @classmethod
    def tree(
        cls, *, sandbox_id: str | None = None, client: Client | None = None
    ) -> builtins.list[FamilyNode]:
        """Return the family of all there is, or of one sandbox: parents before children, oldest first."""
        return loop_thread.run(AsyncSnapshot.tree(sandbox_id=sandbox_id, client=client))

    @dual
    def delete(self, *, force: bool = False) -> int:
        """Remove the snapshot; return the bytes that this freed. Raises `Conflict` if a sandbox sleeps at it.

        Raises `LastGoodSnapshot` for the last of its sandbox that is known to be good, unless `force` is on.
        """
        return loop_thread.run(self._snapshot.delete(force=force))

    @dual
    def verify(self) -> Verification:
        """Read all that the snapshot needs, compare it with its digests, and return what is damaged."""
        return loop_thread.run(self._snapshot.verify())

    @dual
    def drill(
        self,
        *,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        boots: Sequence[MemoryChoice] = ("ram", "cold"),
        limit_seconds: float = 3600.0,
        author: str | None = None,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> Drill:
        """Prove that this snapshot comes back, and return the drill; see `Sandbox.drill`."""
        begun = self._snapshot.drill(
            checks=checks,
            profile=profile,
            boots=boots,
            limit_seconds=limit_seconds,
            author=author,
            wait=wait,
            progress=progress,
        )
        return Drill(loop_thread.run(begun))

    @dual
    def schedule_drills(
        self,
        schedule: str,
        *,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        boots: Sequence[MemoryChoice] = ("ram", "cold"),
        limit_seconds: float = 3600.0,
        author: str | None = None,
    ) -> ScheduleInfo:
        """Prove this snapshot again and again; see `Sandbox.schedule_drills`."""
        return loop_thread.run(
            self._snapshot.schedule_drills(
                schedule,
                checks=checks,
                profile=profile,
                boots=boots,
                limit_seconds=limit_seconds,
                author=author,
            )
        )

    @dual
    def inventory(self) -> Inventory:
        """Return what the machine held when the snapshot was taken. Raises `NotFound`, which says why, if none was."""
        return loop_thread.run(self._snapshot.inventory())

    @dual
    def restore(
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
    ) -> Sandbox:
        """Do what `Sandbox.restore` does."""
        from torpor.sdk.sync_sandbox import Sandbox

        return Sandbox(
            loop_thread.run(
                self._snapshot.restore(
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
                )
            )
        )

    @dual
    def diff(
        self, other_id: str, *, skip: Sequence[str] | None = None, allow_cold: bool = False
    ) -> SnapshotDiff:
        """Return the files and packages that differ between this snapshot and a later one.

        Both are restored as throw-away sandboxes without a network, looked at, and deleted, however this
        ends. Running programs go on in them meanwhile, so what they write by themselves shows too.

        Raises:
            NotFound: one of them is not there.
            InsufficientResources: the host has no room for two more machines.
        """
        from torpor.sdk.temporary import CLEANUP_LIMIT_S

        return loop_thread.run(
            self._snapshot.diff(other_id, skip=skip, allow_cold=allow_cold),
            cleanup_limit_s=CLEANUP_LIMIT_S,
        )

    fork = sync_forks.fork
