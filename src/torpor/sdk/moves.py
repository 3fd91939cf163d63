"""What an asynchronous sandbox can do about its own past and future: snapshot, roll back, sleep, wake, fork."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torpor.model import AgentMemory, Consistency, MemoryChoice, Network, OnTimeout
from torpor.model_inventory import Inventory
from torpor.model_quiesce import OnQuiesceFailure, QuiesceReport, report_from_json
from torpor.model_volumes import VolumesMode
from torpor.sdk.change_results import ChangeOptions
from torpor.sdk.changes import AsyncChange
from torpor.sdk.checks_file import Checks
from torpor.sdk.client import Client, connection, quote_part
from torpor.sdk.dual import dual, dual_async_self
from torpor.sdk.handle import AsyncHandle
from torpor.sdk.hold import LEASE_SECONDS, AsyncHold
from torpor.sdk.inventories import DetectedProfile, detected_profile, live_inventory
from torpor.sdk.parse import sandbox_info
from torpor.sdk.snapshot_results import (
    LIFE_LIMIT_S,
    Promotion,
    Quiesce,
    promotion,
    quiesce_body,
    restore_body,
    snapshot_info,
)
from torpor.sdk.snapshots import AsyncSnapshot

if TYPE_CHECKING:
    from torpor.sdk.explore import Exploration
    from torpor.sdk.process import Command
    from torpor.sdk.sandbox import AsyncSandbox


class AsyncMoves(AsyncHandle):
    """The part of `AsyncSandbox` about snapshots. All of it also works on the class with an id."""

    @dual
    async def snapshot(
        self,
        *,
        label: str | None = None,
        consistency: Consistency = "filesystem",
        metadata: Mapping[str, str] | None = None,
        quiesce: Quiesce = None,
        on_quiesce_failure: OnQuiesceFailure | None = None,
        volumes: VolumesMode = "include",
    ) -> AsyncSnapshot:
        """Take a snapshot of the whole machine, which goes on as it was: running, paused or asleep.

        Args:
            label: a name, unique among this sandbox's snapshots.
            consistency: `filesystem` (frozen while captured), `crash` (synced), or `application`: the machine's
                programs hold still as well, by hooks, and the snapshot is called so only if they did.
            metadata: your own labels.
            quiesce: for `application`: the hooks; None: databases that are found, and /etc/torpor/quiesce.d.
            on_quiesce_failure: `refuse` (the default) or `downgrade`: a lesser snapshot, whose `consistency` and
                `quiesce` say so.
            volumes: `include` what is in them; or `detach` them before, or `keep-current`: the same, and who goes
                back to the snapshot has them as they are then.

        Raises:
            Conflict: the label is taken.
            Busy: a volume that is to be taken off is in use; the message names by whom.
            QuiesceFailed: a required hook failed or did not hold; nothing was taken, and all is released.
            GuestFailed: the file systems could not be quieted; nothing was taken.
            InsufficientResources: the disk is full; nothing was taken.
            WrongState: the sandbox is not running, paused or hibernated.
        """
        body = {
            "label": label,
            "consistency": consistency,
            "metadata": dict(metadata or {}),
            "volumes": volumes,
        }
        more, more_s = quiesce_body(quiesce, on_quiesce_failure)
        info = snapshot_info(
            await self._connection.call_once(
                f"{self._path}/snapshots", body=body | more, limit_s=LIFE_LIMIT_S + more_s
            )
        )
        return AsyncSnapshot(info.id, info, self._client)

    @dual
    async def test_quiesce(self, *, quiesce: Quiesce = None) -> QuiesceReport:
        """Bring the machine's programs to rest and release them, without a snapshot: to try hooks.

        The report says what came of each hook; a hook that fails is no error here.

        Raises:
            WrongState: the sandbox is not running.
            InvalidRequest, GuestFailed: a hook cannot be right, or the guest cannot do it; nothing was begun.
        """
        more, more_s = quiesce_body(quiesce, None)
        body = await self._connection.call(
            "POST", f"{self._path}/quiesce/test", body=more, limit_s=LIFE_LIMIT_S + more_s
        )
        return report_from_json(body)

    @dual
    async def snapshots(self) -> list[AsyncSnapshot]:
        """Return the snapshots that were taken of this sandbox, newest first."""
        return await AsyncSnapshot.list(sandbox_id=self._id, client=self._client)

    @classmethod
    async def restore(
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

        Args:
            snapshot_id: which one.
            env: laid over the snapshot's environment.
            secrets: the same; for values that are secret. They are in the sandbox, and so in its snapshots.
            metadata: labels of the new sandbox; it inherits none.
            network: `user` or `none`; None: the snapshot's.
            ttl_seconds: seconds until `on_timeout` happens; None: never.
            on_timeout: `delete` or `hibernate`.
            idle_seconds: hibernate by itself after so long without work; None: never.
            allow_cold: start from the disk alone if the RAM cannot go on here; `info.boot_mode` says so.
            agent_memory: how its agent's memory goes on (`reconcile`, `rewind`, `keep`); None: of a fork as it was
                there, else `reconcile`.
            volumes: what becomes of the snapshot's volumes: `include` (clones), `detach` or `keep-current`;
                None: as it was taken.
            client: which daemon; None: as the environment says.

        Raises:
            NotFound: there is no such snapshot.
            SnapshotUnusable: its RAM belongs to another driver, version or CPU.
            DataDamaged: a layer of it is missing or damaged.
            InsufficientResources: the host has no room; nothing was made.
        """
        body = restore_body(
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
        path = f"/v1/snapshots/{quote_part(snapshot_id)}/restore"
        info = sandbox_info(
            await connection(client).call_once(path, body=body, limit_s=LIFE_LIMIT_S)
        )
        return cls(info.id, info, client)

    @dual
    async def inventory(
        self, *, profile: str | Path | None = None, commands: bool = False
    ) -> Inventory:
        """Return what the running machine holds now: packages, services, skills, jobs and so on.

        A sandbox that sleeps is woken. Values that may be secret never leave the machine.

        Args:
            profile: a shipped agent profile's name, a file (a `Path`, or text with `/` or `.yaml`), or YAML;
                None: the machine's own, or the shipped one that fits.
            commands: also run the commands that the profile names to learn versions by; they may be slow.

        Raises:
            NotFound: there is no such profile or file.
            InvalidRequest: the profile is malformed; the message has line and column.
            HostNotReady: the agent in the machine is too old for inventories.
            OperationTimeout: the machine did not keep its deadline.
        """
        return await live_inventory(self._connection, self._path, profile, commands=commands)

    @dual
    async def profile(self) -> DetectedProfile:
        """Return which agent profile the running machine has: its own file, a shipped one, or `machine`."""
        return detected_profile(await self._connection.call("GET", f"{self._path}/profile"))

    @dual_async_self
    async def rollback(
        self,
        snapshot_id: str,
        *,
        memory: MemoryChoice = "ram",
        agent_memory: AgentMemory = "reconcile",
        volumes: VolumesMode | None = None,
    ) -> Self:
        """Put the sandbox back to a snapshot, with the same id; what it did since then is gone.

        What reached the outside world since then is not undone. Whoever follows a command or stream of it
        gets `GenerationChanged`. Works from running, paused, hibernated, stopped and failed.

        Args:
            snapshot_id: where to.
            memory: `ram`: memory and processes go on as they were. `cold`: the disk is put back and the machine
                boots, so that no program goes on with keys, clocks and connections of the past.
            agent_memory: what the memory of its agent does: `reconcile`: what concerns the machine and its
                tasks goes back, what concerns the world stays; `rewind`: all goes back, to a new branch;
                `keep`: nothing goes back, what concerns the machine is flagged. If memory cannot be used now,
                the machine goes back all the same: `info.memory_note` says so, and memory follows later.

        Raises:
            NotFound: there is no such sandbox or snapshot.
            SnapshotUnusable: the snapshot's RAM cannot go on on this host (`cold` needs none); nothing was changed.
            DataDamaged: a layer of it is missing or damaged.
            Conflict: a change runs in the sandbox; the hint says how to end it.
        """
        body = {
            "snapshot_id": snapshot_id,
            "memory": memory,
            "agent_memory": agent_memory,
            "volumes": volumes,
        }
        return await self._moved("rollback", body)

    @dual
    async def hibernate(
        self,
        *,
        consistency: Consistency = "filesystem",
        quiesce: Quiesce = None,
        on_quiesce_failure: OnQuiesceFailure | None = None,
    ) -> AsyncSnapshot:
        """Put the sandbox to sleep, which frees all its CPU and RAM; return where it sleeps. Idempotent.

        Any command, file or other request that needs the guest wakes it. Being asleep uses up no TTL.
        `consistency`, `quiesce` and `on_quiesce_failure` are as of `snapshot`.
        """
        more, more_s = quiesce_body(quiesce, on_quiesce_failure)
        info = snapshot_info(
            await self._connection.call(
                "POST",
                f"{self._path}/hibernate",
                body={"consistency": consistency} | more,
                limit_s=LIFE_LIMIT_S + more_s,
            )
        )
        return AsyncSnapshot(info.id, info, self._client)

    @dual_async_self
    async def wake(self) -> Self:
        """Let a hibernated sandbox go on at the exact instruction, and return it. Idempotent."""
        return await self._moved("wake", None)

    async def _moved(self, action: str, body: dict[str, str | None] | None) -> Self:
        self._info = sandbox_info(
            await self._connection.call(
                "POST", f"{self._path}/{action}", body=body, limit_s=LIFE_LIMIT_S
            )
        )
        return self

    @dual
    async def set_idle(self, idle_seconds: int | None) -> None:
        """Let the sandbox hibernate by itself after so many seconds without work; None: never.

        Work is a command that runs, an open stream, a transfer, or a `hold`.
        """
        await self._connection.call(
            "PATCH", f"{self._path}/lifecycle", body={"idle_seconds": idle_seconds}
        )

    @dual
    def hold(self, *, lease_seconds: int = LEASE_SECONDS) -> AsyncHold:
        """Return a context that keeps the sandbox from falling asleep by itself while its block runs.

        The sandbox is woken when the block is entered. `hibernate` and the TTL act all the same.

        Args:
            lease_seconds: how long the hold outlives this process if it dies (1 to 3600); it is renewed
                three times as often.
        """
        return AsyncHold(self._client, self._id, lease_seconds=lease_seconds)

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
    ) -> AsyncChange:
        """Return a change of this sandbox: snapshot, change, verify, then keep it or put the whole machine back.

        Without `run` it is a context manager: what happens in its block is the change. An exception in the block,
        also Ctrl-C, undoes it and is raised on; so does a process that dies, after `lease_seconds`. With `run` the
        command is the change: call `wait()`, which begins it.

        What reaches the outside world meanwhile is not undone. With a probation the block ends when it begins:
        `confirm()` keeps the change, silence rolls it back.

        Args:
            reason: why, in one line; it stands in every listing.
            run: a command for `/bin/sh -c` in the machine; it is run once, whatever dies meanwhile.
            checks: a checks file: its path, its text, or its content as a mapping.
            profile: an agent profile, by name, path or text; None: the one that fits the machine.
            kind: what sort of change the profile is to expect, such as `update`.
            allow: kinds of inventory entries that may differ, such as `jobs` or `ports`.
            inventory: compare what the machine holds before and after; what the agent lost rolls back.
            target: what it leads to, such as `hermes 0.19`. If it is rolled back, the same is refused next time.
            probation_seconds: look at it again for so long after it was verified.
            require_confirm: with a probation: silence at its end rolls back. False: keeps, if all is well.
            interval_seconds: between two looks in probation; None: a tenth of it, 10 s to 5 min.
            consistency: of the snapshot to go back to; None: `application` where it can be had, else what can be
                had, which the report says.
            memory: how a rollback comes back: `cold` boots the disk, `ram` goes on with memory and processes.
            reboot: boot the machine from its disk before it is verified.
            force: also a target that was rolled back before.
            author: who; None: the user of this process.
            user: who the command runs as; None: the template's default user.
            cwd: where the command runs.
            run_timeout_seconds: then the command is killed, and the change undone.
            lease_seconds: how long a block outlives this process if it dies (5 or more).
        """
        options = ChangeOptions(
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
        return AsyncChange(self._id, reason, options, self._client)

    @dual
    async def changes(self) -> list[AsyncChange]:
        """Return the changes of this sandbox, newest first."""
        return await AsyncChange.list(sandbox_id=self._id, client=self._client)

    @dual
    async def promote(
        self, *, cleanup_siblings: bool = False, tree_id: str | None = None
    ) -> Promotion:
        """Keep this fork, which needs nothing of its siblings, and delete those if asked.

        Siblings are what was forked from the same snapshot, or from a sandbox in the same call: they have
        the same `fork_tree_id` in their metadata.

        Args:
            cleanup_siblings: delete them.
            tree_id: refuse unless the fork is of this tree.

        Raises:
            InvalidRequest: it is no fork, or of another tree; nothing was deleted.
        """
        body = {"cleanup_siblings": cleanup_siblings, "tree_id": tree_id}
        return promotion(
            await self._connection.call(
                "POST", f"{self._path}/promote", body=body, limit_s=LIFE_LIMIT_S
            )
        )

    @dual
    async def explore(
        self,
        candidates: Sequence[Command | Callable[[AsyncSandbox], object]],
        score: Callable[[AsyncSandbox, Any], float | Awaitable[float]] | None = None,
        *,
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        network: Network | None = None,
        ttl_seconds: int | None = None,
        on_timeout: OnTimeout = "delete",
        idle_seconds: int | None = None,
    ) -> Exploration[AsyncSandbox]:
        """Try each candidate in a fork of its own, all at once; keep the best one's fork, delete the others.

        On the class it takes the id of a sandbox or of a snapshot. The source goes on as it is. The forks
        that lost are deleted however this ends; what they did to the outside world stays.

        Args:
            candidates: commands, as for `exec`, or callables (also asynchronous) that are given the fork.
            score: called with a fork and its result (an `ExecResult`, or what the callable returned), may
                be asynchronous; the highest wins, the shortest time among equals. None: exit code 0, or
                returning at all, is better than another exit code.
            timeout_seconds: for each candidate; one that takes longer cannot win.
            env: laid over the source's environment.
            secrets: the same; for values that are secret. They are in the forks, and so in their snapshots.
            metadata: labels of the forks.
            network: `user` or `none`; None: the source's.
            ttl_seconds: of the winner, from its victory on; None: never.
            on_timeout: of the winner: `delete` or `hibernate`.
            idle_seconds: of the winner; None: never.

        Returns:
            The winner and what became of every candidate. One whose fork could not be made, or that
            raised, has its error there; if all have, there is no winner.

        Raises:
            InvalidRequest: there is no candidate, or there are more than 100.
            TorporError: as `fork`, if no fork could be begun.
        """
        from torpor.sdk.explore import Explorer, Plan

        plan = Plan(
            source_id=self._id,
            client=self._client,
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
        return await Explorer(plan).run()
