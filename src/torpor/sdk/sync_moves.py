"""The synchronous face of `AsyncMoves`; `torpor.sdk.moves` says more of each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torpor.model import AgentMemory, Consistency, MemoryChoice, Network, OnTimeout
from torpor.model_inventory import Inventory
from torpor.model_quiesce import OnQuiesceFailure, QuiesceReport
from torpor.model_volumes import VolumesMode
from torpor.sdk.checks_file import Checks
from torpor.sdk.client import Client
from torpor.sdk.dual import dual, dual_self
from torpor.sdk.hold import LEASE_SECONDS, Hold
from torpor.sdk.inventories import DetectedProfile
from torpor.sdk.loop import loop_thread
from torpor.sdk.sandbox import AsyncSandbox
from torpor.sdk.snapshot_results import Promotion, Quiesce
from torpor.sdk.sync_changes import Change
from torpor.sdk.sync_handle import Handle
from torpor.sdk.sync_snapshots import Snapshot

if TYPE_CHECKING:
    from torpor.sdk.explore import Exploration
    from torpor.sdk.process import Command
    from torpor.sdk.sync_sandbox import Sandbox


class Moves(Handle):
    """The part of `Sandbox` about snapshots. All of it also works on the class with an id."""

    @dual
    def snapshot(
        self,
        *,
        label: str | None = None,
        consistency: Consistency = "filesystem",
        metadata: Mapping[str, str] | None = None,
        quiesce: Quiesce = None,
        on_quiesce_failure: OnQuiesceFailure | None = None,
        volumes: VolumesMode = "include",
    ) -> Snapshot:
        """Take a snapshot of the whole machine, which goes on as it was: running, paused or asleep.

        With `consistency="application"` the machine's programs hold still as well, by hooks (`quiesce`), and
        the snapshot is called so only if they did; else `on_quiesce_failure` counts: `refuse` or `downgrade`.

        Raises:
            Conflict: this sandbox has a snapshot with that label.
            QuiesceFailed: a required hook failed or did not hold; nothing was taken, and all is released.
            GuestFailed: the file systems could not be quieted; nothing was taken.
            InsufficientResources: the disk is full; nothing was taken.
        """
        return Snapshot(
            loop_thread.run(
                self._sandbox.snapshot(
                    label=label,
                    consistency=consistency,
                    metadata=metadata,
                    quiesce=quiesce,
                    on_quiesce_failure=on_quiesce_failure,
                    volumes=volumes,
                )
            )
        )

    @dual
    def test_quiesce(self, *, quiesce: Quiesce = None) -> QuiesceReport:
        """Bring the machine's programs to rest and release them, without a snapshot: to try hooks.

        The report says what came of each hook; a hook that fails is no error here.

        Raises:
            WrongState: the sandbox is not running.
            InvalidRequest, GuestFailed: a hook cannot be right, or the guest cannot do it; nothing was begun.
        """
        return loop_thread.run(self._sandbox.test_quiesce(quiesce=quiesce))

    @dual
    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots that were taken of this sandbox, newest first."""
        return [Snapshot(found) for found in loop_thread.run(self._sandbox.snapshots())]

    @classmethod
    def restore(
        cls,
        snapshot_id: str,
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
        client: Client | None = None,
    ) -> Self:
        """Make a new sandbox that goes on exactly at a snapshot, with an identity of its own.

        What the machine did to the outside world before or after the snapshot is not undone.

        Raises:
            NotFound: there is no such snapshot.
            SnapshotUnusable: its RAM belongs to another driver, version or CPU, and `allow_cold` is off.
            DataDamaged: a layer of it is missing or damaged.
            InsufficientResources: the host has no room; nothing was made.
        """
        return cls(
            loop_thread.run(
                AsyncSandbox.restore(
                    snapshot_id,
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
                    client=client,
                )
            )
        )

    @dual
    def inventory(self, *, profile: str | Path | None = None, commands: bool = False) -> Inventory:
        """Return what the running machine holds now: packages, services, skills, jobs and so on.

        A sandbox that sleeps is woken. Values that may be secret never leave the machine.

        Raises:
            NotFound: there is no such profile or file.
            InvalidRequest: the profile is malformed; the message has line and column.
            HostNotReady: the agent in the machine is too old for inventories.
            OperationTimeout: the machine did not keep its deadline.
        """
        return loop_thread.run(self._sandbox.inventory(profile=profile, commands=commands))

    @dual
    def profile(self) -> DetectedProfile:
        """Return which agent profile the running machine has: its own file, a shipped one, or `machine`."""
        return loop_thread.run(self._sandbox.profile())

    @dual_self
    def rollback(
        self,
        snapshot_id: str,
        *,
        memory: MemoryChoice = "ram",
        agent_memory: AgentMemory = "reconcile",
        volumes: VolumesMode | None = None,
    ) -> Self:
        """Put the sandbox back to a snapshot, with the same id; what it did since then is gone.

        What reached the outside world since then is not undone. Whoever follows a command or stream of it
        gets `GenerationChanged`. With `memory="cold"` the disk is put back and the machine boots. Its agent's
        memory follows as `agent_memory` says; see `AsyncMoves.rollback`.
        """
        loop_thread.run(
            self._sandbox.rollback(
                snapshot_id, memory=memory, agent_memory=agent_memory, volumes=volumes
            )
        )
        return self

    @dual
    def hibernate(
        self,
        *,
        consistency: Consistency = "filesystem",
        quiesce: Quiesce = None,
        on_quiesce_failure: OnQuiesceFailure | None = None,
    ) -> Snapshot:
        """Put the sandbox to sleep, which frees all its CPU and RAM; return where it sleeps. Idempotent."""
        sleeping = self._sandbox.hibernate(
            consistency=consistency, quiesce=quiesce, on_quiesce_failure=on_quiesce_failure
        )
        return Snapshot(loop_thread.run(sleeping))

    @dual_self
    def wake(self) -> Self:
        """Let a hibernated sandbox go on at the exact instruction, and return it. Idempotent."""
        loop_thread.run(self._sandbox.wake())
        return self

    @dual
    def set_idle(self, idle_seconds: int | None) -> None:
        """Let the sandbox hibernate by itself after so many seconds without work; None: never."""
        loop_thread.run(self._sandbox.set_idle(idle_seconds))

    @dual
    def hold(self, *, lease_seconds: int = LEASE_SECONDS) -> Hold:
        """Return a context that keeps the sandbox from falling asleep by itself while its block runs.

        The sandbox is woken when the block is entered. `hibernate` and the TTL act all the same.
        """
        return Hold(self._sandbox.hold(lease_seconds=lease_seconds))

    @dual
    def change(
        self,
        reason: str,
        *,
        run: str | None = None,
        checks: Checks | None = None,
        profile: str | Path | None = None,
        kind: str | None = None,
        allow: Sequence[str] = (),
        inventory: bool = True,
        target: str | None = None,
        probation_seconds: float = 0.0,
        require_confirm: bool = True,
        interval_seconds: float | None = None,
        consistency: Consistency | None = None,
        memory: MemoryChoice = "cold",
        reboot: bool = False,
        force: bool = False,
        author: str | None = None,
        user: str | None = None,
        cwd: str | None = None,
        run_timeout_seconds: float = 3600.0,
        lease_seconds: float = 60.0,
    ) -> Change:
        """Return a change of this sandbox: snapshot, change, verify, then keep it or put the whole machine back.

        Without `run` it is a context manager: what happens in its block is the change. An exception in the block,
        also Ctrl-C, undoes it and is raised on; so does a process that dies, after `lease_seconds`. With `run` the
        command is the change: call `wait()`, which begins it.

        What reaches the outside world meanwhile is not undone. With a probation the block ends when it begins:
        `confirm()` keeps the change, silence rolls it back.

        `AsyncMoves.change` describes the arguments.
        """
        made = self._sandbox.change(
            reason,
            run=run,
            checks=checks,
            profile=profile,
            kind=kind,
            allow=allow,
            inventory=inventory,
            target=target,
            probation_seconds=probation_seconds,
            require_confirm=require_confirm,
            interval_seconds=interval_seconds,
            consistency=consistency,
            memory=memory,
            reboot=reboot,
            force=force,
            author=author,
            user=user,
            cwd=cwd,
            run_timeout_seconds=run_timeout_seconds,
            lease_seconds=lease_seconds,
        )
        return Change(made)

    @dual
    def changes(self) -> list[Change]:
        """Return the changes of this sandbox, newest first."""
        return [Change(found) for found in loop_thread.run(self._sandbox.changes())]

    @dual
    def promote(self, *, cleanup_siblings: bool = False, tree_id: str | None = None) -> Promotion:
        """Keep this fork, which needs nothing of its siblings, and delete those if asked.

        Raises:
            InvalidRequest: it is no fork, or of another tree; nothing was deleted.
        """
        return loop_thread.run(
            self._sandbox.promote(cleanup_siblings=cleanup_siblings, tree_id=tree_id)
        )

    @dual
    def explore(
        self,
        candidates: Sequence[Command | Callable[[Sandbox], object]],
        score: Callable[[Sandbox, Any], float] | None = None,
        *,
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        network: Network | None = None,
        ttl_seconds: int | None = None,
        on_timeout: OnTimeout = "delete",
        idle_seconds: int | None = None,
    ) -> Exploration[Sandbox]:
        """Try each candidate in a fork of its own, all at once; keep the best one's fork, delete the others.

        Callables and `score` are called in threads of their own, with the fork; candidates run side by
        side. The forks that lost are deleted however this ends, after Ctrl-C too.

        Raises:
            InvalidRequest: there is no candidate, or there are more than 100.
            TorporError: as `fork`, if no fork could be begun.
        """
        from torpor.sdk.explore import Plan
        from torpor.sdk.sync_explore import explore

        plan = Plan(
            source_id=self.id,
            client=self._sandbox._client,
            candidates=candidates,
            score=score,
            timeout_seconds=timeout_seconds,
            env=env,
            secrets=secrets,
            metadata=metadata,
            network=network,
            ttl_seconds=ttl_seconds,
            on_timeout=on_timeout,
            idle_seconds=idle_seconds,
        )
        return explore(plan)
