"""`EnginePort`: all that the server may ask. The engine implements it; tests of the server use a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol

from torpor.errors import TorporError
from torpor.guest.port import Guest
from torpor.layers.store import LayerUse
from torpor.layers.verify import Damage
from torpor.model import (
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
    SnapshotId,
    SnapshotInfo,
    TemplateInfo,
)
from torpor.model_events import StateEvent
from torpor.model_inventory import Inventory
from torpor.model_memory import Policy
from torpor.model_quiesce import QuiesceReport, QuiesceSpec
from torpor.model_usage import MachineUsage
from torpor.model_volumes import VolumesMode
from torpor.sandboxes.claims import Claim
from torpor.sandboxes.memories import AgentMemories
from torpor.sandboxes.volume_port import VolumesPort


class EnginePort(Protocol):
    """Owns all sandboxes of one host. Every method may be called at any time from the daemon's loop.

    A caller that goes away (a cancelled request) does not undo a create, pause, resume or delete that has
    begun: the sandbox's own task finishes it.
    """

    @property
    def volumes(self) -> VolumesPort:
        """All that may be asked about volumes."""
        ...

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox and return it `running`, its agent answering.

        Raises:
            InvalidRequest: a value of the spec cannot be right (sizes, names, TTL).
            NotFound: no such template; the hint says how to build it.
            InsufficientResources: no memory or disk on the host; nothing was made.
            HostNotReady: QEMU is missing or too old.
            VmmFailed, GuestUnreachable: it did not start; the sandbox is `failed` and can be looked at and deleted.
        """
        ...

    async def get(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Return a sandbox, also one that is `deleted` (for a day). Raises `NotFound`."""
        ...

    async def list(self, query: SandboxFilter) -> SandboxPage:
        """Return a page of sandboxes, newest first."""
        ...

    async def delete(self, sandbox_id: SandboxId) -> SandboxInfo:
        """End and remove a sandbox from any state; a deleted one is returned as it is. Raises `NotFound`."""
        ...

    async def pause(self, sandbox_id: SandboxId, *, holder: str | None = None) -> SandboxInfo:
        """Stop the vCPUs; RAM stays. Idempotent. Raises `WrongState`; after a failure it is running or `failed`.

        Raises `Conflict` when somebody else than `holder` holds a claim that forbids it.
        """
        ...

    async def resume(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Let a paused sandbox run on. Idempotent. Raises `WrongState`."""
        ...

    async def set_ttl(
        self, sandbox_id: SandboxId, ttl_seconds: int | None, *, on_timeout: OnTimeout | None = None
    ) -> SandboxInfo:
        """Let the sandbox end `ttl_seconds` from now (None: never)."""
        ...

    async def set_idle(self, sandbox_id: SandboxId, idle_seconds: int | None) -> SandboxInfo:
        """Let the sandbox hibernate by itself after so long without work (None: never).

        Work is: a caller that holds the guest (`guest`), and a command that runs in the machine.
        """
        ...

    async def restore(
        self,
        snapshot_id: SnapshotId,
        spec: RestoreSpec,
        *,
        reason: Literal["restore", "fork"] = "restore",
    ) -> SandboxInfo:
        """Make a new sandbox that goes on exactly at a snapshot, with an identity of its own.

        Raises:
            NotFound: no such snapshot.
            SnapshotUnusable: its RAM belongs to another driver, version or CPU, and `allow_cold` is off.
            DataDamaged: a layer is missing or damaged.
            InsufficientResources: no room; nothing was made.
            LimitExceeded: the volumes that it brings along are more than a quota allows; nothing was made.
        """
        ...

    async def fork(
        self,
        source: SandboxId | SnapshotId,
        spec: RestoreSpec,
        *,
        count: int = 1,
        snapshot_id: SnapshotId | None = None,
        ids: Sequence[SandboxId] = (),
    ) -> tuple[SandboxInfo | TorporError, ...]:
        """Make `count` (1 to 100) sandboxes from a sandbox, which is snapshot first and goes on, or a snapshot.

        With `ids`, one for each, they get these, and with `snapshot_id` so does the snapshot; all must be fresh.
        Each result is a sandbox or its own error. Raises what `snapshot` raises, and `LimitExceeded`
        when all their volumes together are more than a quota allows; then nothing was made.
        """
        ...

    async def hibernate(
        self,
        sandbox_id: SandboxId,
        *,
        consistency: Consistency = "filesystem",
        quiesce: QuiesceSpec | None = None,
    ) -> SnapshotInfo:
        """Put a running or paused sandbox to sleep: all CPU and RAM are given back. Idempotent.

        After a failure it is as it was. Being asleep uses up no TTL. Of a sandbox's sleeps the last is kept; an
        earlier one goes by itself some minutes after it was slept over, unless it has a label.
        """
        ...

    async def wake(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Let a hibernated sandbox go on at the exact instruction. Idempotent; after a failure it sleeps on."""
        ...

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
        """Put a sandbox back to a snapshot: same id, same identity; what it did since then is gone.

        Allowed from running, paused, hibernated, stopped and failed. What the outside world saw stays. Its volumes
        are put back too if they are part of the snapshot, and what was in them is kept as snapshots of them. What it
        attached since then is let go of.

        Args:
            sandbox_id: which sandbox.
            snapshot_id: where to.
            memory: `ram`: memory and processes as they were; `cold`: the disk alone, which then boots. For `cold`
                the snapshot's RAM need not fit this host.
            agent_memory: what the agent's memory does. Where it cannot now, the machine goes back all the same,
                `memory_note` says so, and memory follows before anyone uses it.
            volumes: what becomes of the volumes; None: as the snapshot was taken.
            holder: who asks, if it holds a claim on the sandbox.
            since_generation: do nothing if it was put back there after that generation: the same request again.

        Raises:
            Conflict: somebody's claim forbids it.
            VolumeHeld: another sandbox has a volume that would be put back or attached; nothing was changed.
            WrongState: the sandbox is in a state that has no way back, or the snapshot is of another template.
            SnapshotUnusable: the RAM belongs to another driver, version or CPU.
            InsufficientResources: no memory or disk; nothing was changed.
            LimitExceeded: it needs clones of volumes, and a quota has no room for them; nothing was changed.
            VmmFailed, GuestUnreachable: it did not come back; the sandbox is `failed`, and can be rolled back again.
        """
        ...

    async def check_room(self, sandbox_id: SandboxId) -> None:
        """Return if a snapshot of the sandbox can be taken, and there is room to work in it after that.

        Raises:
            NotFound: no such sandbox.
            LimitExceeded: it has as many snapshots, or as large ones, as it may have.
            InsufficientResources: the disk is too full.
        """
        ...

    async def claim(self, sandbox_id: SandboxId, claim: Claim | None, holder: str) -> None:
        """Claim a sandbox for `holder`, which forbids acts to others; None ends the holder's claim.

        A claim is gone when the daemon ends. Raises `Conflict` while another holder has one.
        """
        ...

    async def protect(self, snapshot_id: SnapshotId, holder: str, reason: str) -> None:
        """Keep a snapshot from being deleted, by anyone, until `holder` lets go; durable. Raises `NotFound`."""
        ...

    async def unprotect(self, snapshot_id: SnapshotId | None, holder: str) -> None:
        """End the holder's protection of a snapshot, or of all (None). What is not protected is no error."""
        ...

    async def mark_good(self, snapshot_id: SnapshotId, found_by: str, reason: str) -> None:
        """Note that a snapshot is known to be good, found by a change or drill; durable. Raises `NotFound`."""
        ...

    async def unmark_good(self, snapshot_id: SnapshotId) -> None:
        """Note that a snapshot is not known to be good any more. One that was not is no error."""
        ...

    async def last_good(self, sandbox_id: SandboxId) -> SnapshotInfo | None:
        """Return the newest snapshot of a sandbox that is known to be good; it is never removed by itself."""
        ...

    async def note_health(self, sandbox_id: SandboxId, note: str | None, state: str) -> None:
        """Show a note with the sandbox (None: no more) for as long as the daemon lives, and record an event `watch`.

        Args:
            sandbox_id: which sandbox.
            note: what is wrong, and what to do.
            state: the event's: `failing` or `passing`.

        Raises:
            NotFound: no such sandbox.
        """
        ...

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
        """Take a snapshot of a running, paused or hibernated sandbox, which goes on as it was.

        With `application`, `quiesce` says how its programs are brought to rest. `volumes` says whether its volumes
        are part of it, or are taken off while it is taken.

        Raises:
            InvalidRequest: a value cannot be right.
            Conflict: this sandbox has a snapshot with that label.
            QuiesceFailed: a required hook failed or did not hold; nothing was taken, and all is released.
            LimitExceeded: it has as many snapshots, or as large ones, as it may have.
            GuestFailed: its file systems could not be quieted; nothing was taken.
            InsufficientResources: the disk is full; nothing was taken.
        """
        ...

    async def test_quiesce(
        self, sandbox_id: SandboxId, quiesce: QuiesceSpec | None = None
    ) -> QuiesceReport:
        """Bring a running sandbox's programs to rest, confirm it, and release them, without a snapshot.

        The report says what came of each hook; a hook that failed is no error here.

        Raises:
            WrongState: it is not running.
            InvalidRequest, GuestFailed: a hook cannot be right, or the guest cannot do it; nothing was begun.
        """
        ...

    async def snapshots(self, sandbox_id: SandboxId | None = None) -> tuple[SnapshotInfo, ...]:
        """Return the snapshots of one sandbox (also a deleted one), or all, newest first."""
        ...

    async def get_snapshot(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Return one snapshot. Raises `NotFound`."""
        ...

    async def delete_snapshot(self, snapshot_id: SnapshotId, *, force: bool = False) -> int:
        """Remove a snapshot; return the bytes freed.

        Raises:
            Conflict: a sandbox sleeps at it, or it is protected.
            LastGoodSnapshot: it is the last of a living sandbox that is known to be good; `force` removes it all the same.
        """
        ...

    async def verify_snapshot(self, snapshot_id: SnapshotId) -> tuple[Damage, ...]:
        """Read all that a snapshot needs, compare it with its digests, and return what is damaged."""
        ...

    async def snapshot_inventory(self, snapshot_id: SnapshotId) -> Inventory:
        """Return what a snapshot's machine held when it was taken.

        Raises:
            NotFound: there is no such snapshot, or it has no inventory; the message says why.
            DataDamaged: the file is not what was written.
        """
        ...

    async def layers(self) -> tuple[LayerUse, ...]:
        """Return every layer with its size and who needs it."""
        ...

    def events(self, *, after: str | None = None) -> AsyncIterator[StateEvent]:
        """Yield changes of state behind the event `after` (None: from now on), for ever; a `gap` where some are missing."""
        ...

    async def usage(self, sandbox_id: SandboxId) -> MachineUsage:
        """Return what the sandbox's machine has used since its VMM was started; it wakes nothing.

        Raises:
            NotFound: no such sandbox.
            WrongState: it has no machine now: it sleeps, failed or stopped.
            VmmFailed: its VMM does not answer.
        """
        ...

    def console(self, sandbox_id: SandboxId, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the machine's console log from its beginning; with `follow` go on until the machine ends."""
        ...

    def guest(self, sandbox_id: SandboxId) -> AbstractAsyncContextManager[Guest]:
        """Enter with the sandbox's connected guest, marked as in use until the context is left.

        A hibernated sandbox is woken first.

        Raises:
            NotFound: no such sandbox.
            WrongState: it is not running.
            GuestUnreachable: its agent does not answer.
            GenerationChanged: it was rolled back or put to sleep while the context was held.
        """
        ...

    @property
    def memories(self) -> AgentMemories:
        """What the agents in the sandboxes know."""
        ...

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the built templates, by name."""
        ...

    async def template(self, name: str) -> TemplateInfo:
        """Return one built template. Raises `NotFound`."""
        ...

    def build_template(
        self, name_or_recipe: str | Path, *, force: bool = False
    ) -> AsyncIterator[BuildEvent]:
        """Build a shipped template by name, or one from a recipe file; yields steps, the template last.

        A template with the same digest is returned at once unless `force`. A second call for one that is
        being built follows that build. The build goes on when the caller goes away.

        Raises:
            NotFound: no shipped recipe has that name, or no such file.
            InvalidRequest: the recipe is malformed; the message names file, key and what was wanted.
            BuildFailed: a step failed; facts have the step and the end of the log.
            HostNotReady: a tool is missing.
        """
        ...

    async def delete_template(self, name: str) -> None:
        """Forget a template; refused with `Conflict` while a sandbox needs it."""
        ...

    async def doctor(self) -> dict[str, object]:
        """Return what `torpor doctor --json` prints."""
        ...
