"""`Guest`: what the rest of Torpor may ask of a running machine. One real implementation, one fake for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol

from torpor.guest.inventories import ProfileFit, TakenSections
from torpor.guest.quiesce import Quiet
from torpor.model import (
    ExecEvent,
    ExecId,
    ExecInfo,
    ExecSpec,
    FileInfo,
    GuestInfo,
    ProcessInfo,
    Renewal,
    Stillness,
)
from torpor.model_file_events import FileEvent
from torpor.model_ports import PortInfo
from torpor.model_quiesce import QuiesceSpec
from torpor.model_volumes import VolumeUsage


class PortStream(Protocol):
    """A connection to a port in a guest, as TCP has it: each direction ends by itself.

    At most one task reads and one writes. All raise `PortClosed` when the program breaks the connection off, and
    `GuestUnreachable` when the channel is cut.
    """

    async def read(self) -> bytes:
        """Return the next bytes, at most 64 KiB; empty when the program sends no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes; waits, without limit, while the program does not take them."""
        ...

    async def end(self) -> None:
        """Say that no more is sent. Idempotent."""
        ...


class Guest(Protocol):
    """A connected guest agent.

    Every call has a limit in time. All raise `GuestUnreachable` when the channel is cut or the agent does
    not answer, `NotFound`, `InvalidRequest`, `Conflict` or `LimitExceeded` when the agent refuses, and
    `GuestFailed` when the guest's kernel refuses (full disk, read-only, no permission). Nothing that the
    guest sends is trusted: sizes, names and counts are bounded and checked.
    """

    @property
    def info(self) -> GuestInfo:
        """What the agent said when it was connected."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the channel is cut or was closed; then a new one must be connected."""
        ...

    async def ping(self, *, timeout_s: float = 5.0) -> None:
        """Return when the agent has answered."""
        ...

    async def exec_start(
        self, exec_id: ExecId, spec: ExecSpec, *, output_limit_bytes: int | None = None
    ) -> ExecInfo:
        """Start a command; with an `exec_id` that exists already, start nothing and return that exec.

        So a retry with the same id never starts a command twice. `output_limit_bytes` bounds what the
        guest keeps of each stream (None: the agent's own limit); the command runs on beyond it.

        Raises:
            InvalidRequest: no such user, cwd or program, or the spec is malformed.
            LimitExceeded: too many execs run already.
        """
        ...

    def exec_attach(
        self, exec_id: ExecId, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AbstractAsyncContextManager[AsyncIterator[ExecEvent]]:
        """Follow an exec from byte offsets on; leaving the context only detaches, the command runs on.

        Of a terminal the last mebibyte is kept: an offset before that goes on with what is there, one beyond its
        end with what comes next, and the offsets of what is yielded say so.

        Yields `ExecStarted` first, then output as it comes, `ExecEnded` last. A reader that stalls holds
        up nobody else, neither the command nor another reader. If the end cannot be known the iterator
        raises `CommandLost`, never a made-up end.

        Raises:
            NotFound: no such exec (never was, or forgotten).
            InvalidRequest: an offset beyond what was written.
        """
        ...

    def exec_run(
        self, exec_id: ExecId, spec: ExecSpec, *, output_limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ExecEvent]]:
        """`exec_start` and `exec_attach` from the first byte on, in one round trip.

        An `exec_id` that exists already is only attached to. If this is cancelled before the context is
        entered, the command may run all the same: `exec_get` tells.
        """
        ...

    async def exec_stdin(self, exec_id: ExecId, data: bytes, *, eof: bool = False) -> None:
        """Write to the command's stdin and return when the guest has taken all; `eof` closes it after."""
        ...

    async def exec_signal(self, exec_id: ExecId, signal: int) -> None:
        """Send `signal` to the command; 9 kills its whole process tree. No effect when it has ended."""
        ...

    async def exec_resize(self, exec_id: ExecId, columns: int, rows: int) -> None:
        """Say how large the window of a command's terminal is. No effect when it has ended.

        Raises:
            Conflict: it has no terminal.
            InvalidRequest: no window is so large.
            HostNotReady: the agent in the machine is too old.
        """
        ...

    async def exec_get(self, exec_id: ExecId) -> ExecInfo:
        """Return what is so about an exec."""
        ...

    async def exec_list(self) -> list[ExecInfo]:
        """Return the execs the agent knows, running and ended, oldest first."""
        ...

    async def exec_forget(self) -> int:
        """Have the agent keep nothing of execs that have ended and are not followed; return how many those were."""
        ...

    async def exec_drop(self, exec_id: ExecId) -> bool:
        """Have the agent keep nothing of one exec; False: it runs, somebody follows it, or there is none.

        Only for agents with the capability `exec.drop`. For commands of ours that nobody will ask after: the
        agent keeps the last few hundred, and they would push out a user's.
        """
        ...

    async def processes(self) -> list[ProcessInfo]:
        """Return the guest's processes, kernel threads left out."""
        ...

    async def ports(self) -> list[PortInfo]:
        """Return what listens for TCP connections in the guest, by port.

        Raises:
            HostNotReady: the agent in the machine is too old.
        """
        ...

    def open_port(
        self, port: int, *, address: str | None = None
    ) -> AbstractAsyncContextManager[PortStream]:
        """Enter with a connection to a port of the guest's loopback; it needs no network in the guest.

        Leaving the context after both directions have ended closes it; leaving it before resets it, so that the
        program does not take a part for the whole. What is under way is bounded by the channel's windows.

        Args:
            port: 1 to 65535.
            address: `127.0.0.1` or `::1`; None: whichever takes the connection, in this order.

        Raises:
            PortClosed: nothing listens there.
            OperationTimeout: what listens did not accept.
            LimitExceeded: too many are open already.
            InvalidRequest: no such port, or not on the loopback.
            HostNotReady: the agent in the machine is too old.
        """
        ...

    async def serve_inlet(
        self,
        port: int,
        serve: Callable[[PortStream], Awaitable[None]],
        *,
        listens: Callable[[], None] = ...,
    ) -> None:
        """Listen on a port of the guest's loopback and serve what its programs connect to it, until the channel is cut.

        At most 64 connections are served at once; more wait in the guest, and are closed there after 30 s.

        Args:
            port: 1 to 65535; nothing in the guest may listen there.
            serve: carries one connection; its failure ends that connection alone.
            listens: called when the port can be connected to.

        Raises:
            Conflict: something in the guest listens there.
            HostNotReady: the agent in the machine is too old.
            GuestUnreachable: the channel was cut or closed.
        """
        ...

    async def stat(self, path: str) -> FileInfo:
        """Return what `path` (absolute) is; a symlink is not followed."""
        ...

    async def list_dir(self, path: str) -> list[FileInfo]:
        """Return the names in a folder, sorted; at most 100,000."""
        ...

    def walk(self, path: str, *, max_depth: int | None = None) -> AsyncIterator[FileInfo]:
        """Yield everything below a folder, parents before children; symlinks are not followed."""
        ...

    def follow_dir(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileEvent]]:
        """Enter with what happens in a folder from now on, until it is removed or moved away.

        What is under way is bounded; where more happened than could be told, `MISSED` says so. A name may be told as
        made twice where a folder and what is in it come at once.

        Args:
            path: absolute, a folder.
            recursive: with all folders below it, also those that come later, 8192 at most.

        Raises:
            LimitExceeded: there are more folders, or 64 are followed already.
            HostNotReady: the agent in the machine is too old.
        """
        ...

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        """Make a folder; with `parents` an existing one is no error."""
        ...

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, symlink or folder; a folder that is not empty needs `recursive`."""
        ...

    async def rename(self, source: str, target: str) -> FileInfo:
        """Rename within one file system of the guest, replacing a file at `target`."""
        ...

    def read(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of a file in chunks of at most 64 KiB; host memory stays bounded."""
        ...

    async def write(
        self,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        append: bool = False,
        mode: int | None = None,
        user: str | None = None,
    ) -> FileInfo:
        """Write a file from `chunks`; missing parent folders are made.

        Without `append` the file is replaced at once when all has arrived: a reader sees the old content
        or the new. If the channel is cut, or `chunks` raises, the old content stays and no temporary file
        is left. Guest and host memory stay bounded. With `mode` None an existing file keeps its mode and
        owner; a new one gets 0644.
        """
        ...

    def pack(self, path: str) -> AsyncIterator[bytes]:
        """Yield a folder (or file) as an uncompressed tar stream; names in it are relative to `path`."""
        ...

    async def unpack(
        self, path: str, chunks: AsyncIterator[bytes], *, user: str | None = None
    ) -> int:
        """Unpack an uncompressed tar stream below folder `path` (made if missing); return the entries written.

        Entries that would land outside `path` are refused before anything of them is written.
        """
        ...

    async def set_clock(self, now: datetime) -> None:
        """Set the guest's time of day."""
        ...

    async def grow_disk(self) -> int:
        """Grow the root file system to its disk's size; return its size in bytes. Idempotent."""
        ...

    async def serve_memory(self, answer: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
        """Answer what programs in the machine ask of their memory, until the channel is cut.

        At most 8 requests are carried out at once; the guest's others wait there. Nothing of a request is
        trusted but that it is a verb and a JSON object within the frame limits. The stream that it takes is not
        watched: a silent guest is no failure of it.

        Args:
            answer: carries a verb out and returns its answer as JSON; a `TorporError` that it raises is an answer.

        Raises:
            GuestUnreachable: the channel was cut or closed; what was under way is not answered.
        """
        ...

    async def sync(self) -> None:
        """Write all dirty pages of the guest's file systems to their disks. Raises `GuestFailed` if one fails."""
        ...

    async def freeze(self, *, dead_man_seconds: float) -> None:
        """Sync and freeze all writable file systems; the guest thaws by itself after `dead_man_seconds`.

        The agent itself goes on answering. Raises `GuestFailed` when one cannot be frozen; then none is.
        """
        ...

    async def thaw(self) -> bool:
        """Thaw; return whether everything was frozen until now (False: the dead man let go before)."""
        ...

    async def quiesce(self, spec: QuiesceSpec) -> Quiet:
        """Bring the machine's programs to rest: all hooks prepare, then all hold.

        If a required one fails, everything is released again and the answer says that it is not held. So it is
        when this is cancelled or the channel is cut. The guest releases by itself when the first hook's time is
        over. Allowed when the file systems are not frozen.

        Raises:
            Conflict: it is quiesced already.
            InvalidRequest: a hook in the machine, or the spec, cannot be right; nothing was begun.
            GuestFailed: the agent is too old, or could not write down what it holds; nothing was begun.
        """
        ...

    async def quiesce_confirm(self, token: str) -> Quiet:
        """Return whether all required hooks hold now and did ever since; while it is frozen, no hook is asked.

        Raises:
            NotFound: that is not what is held, or was last.
        """
        ...

    async def quiesce_release(self, token: str | None, outcome: str) -> Quiet:
        """Release all, the last first, and tell each hook the outcome: `taken`, `failed` or `test`. Idempotent.

        Thaws first. None releases whatever is held, if anything is.

        Raises:
            NotFound: that is not what is held, or was last.
        """
        ...

    async def renew(self, renewal: Renewal) -> None:
        """Make a machine that goes on from a snapshot safe to hand out; returns when all of it is confirmed.

        In this order: hold what is to be still; mix `entropy` into the kernel and reseed it; set the clock; thaw what was frozen;
        release what was quiesced; with a new `hostname` also give it a new machine-id, boot_id and SSH host keys; write
        /run/torpor/generation; run the executables in /etc/torpor/on-restore.d/ with the reason.

        Raises:
            GuestFailed: the kernel could not be reseeded or the identity not renewed. Do not hand it out.
        """
        ...

    async def hold_still(self, still: Stillness) -> None:
        """Hold still what acts by itself, for good: services, processes, and all timers. May be asked again for more.

        Raises:
            GuestFailed: something is there and could not be held, or the agent is too old.
        """
        ...

    async def detect_profiles(
        self, signs: Mapping[str, Mapping[str, Any]], *, deadline_seconds: float
    ) -> ProfileFit:
        """Return which agent profiles fit the machine, and the words of its own.

        Args:
            signs: by name: `homes` and `detect`, lists of patterns as in a profile.
            deadline_seconds: how long the guest may look.

        Raises:
            HostNotReady: the agent in the machine is too old for inventories.
        """
        ...

    async def inventory(self, plan: Mapping[str, Any], *, deadline_seconds: float) -> TakenSections:
        """Return what the machine holds, as far as `plan` says where to look; see `recovery.inventory`.

        What is not finished at the deadline is cut off and said to be. While file systems are frozen this
        waits for the thaw.

        Raises:
            OperationTimeout: the guest did not end in time, though it was told to.
            HostNotReady: the agent in the machine is too old for inventories.
        """
        ...

    async def mount_volume(
        self, path: str, *, slot: int, serial: str, read_only: bool, repair: bool = False
    ) -> VolumeUsage:
        """Mount the disk in a place for volumes at `path` (absolute; made if missing); return its sizes.

        One that was made larger is used whole. It is never formatted; with `repair` it is checked and mended first.
        Idempotent.

        Raises:
            InvalidRequest: nothing can be mounted at that path.
            Conflict: something else is mounted there.
            GuestFailed: the disk did not come, or holds no file system that can be mounted; the hint says what to do.
        """
        ...

    async def unmount_volume(self, path: str, *, slot: int) -> VolumeUsage | None:
        """Unmount `path` and let go of the disk; return its sizes until then, None if it was not mounted. Idempotent.

        Sizes that cannot be are returned as 0.

        Raises:
            Conflict: processes use it; the message and the fact `holders` name them. It stays mounted.
        """
        ...

    async def grow_volume(
        self, path: str, *, slot: int, serial: str, size_bytes: int
    ) -> VolumeUsage:
        """Make the file system at `path` as large as its disk is, `size_bytes` or more; return its sizes."""
        ...

    async def volume_usage(self, path: str) -> VolumeUsage:
        """Return the sizes of the file system at `path`. Raises `NotFound` when no volume is mounted there."""
        ...

    async def settle(self, *, timeout_s: float) -> None:
        """Wait until the guest's start-up has finished, then sync, trim and drop caches (for templates)."""
        ...

    async def shutdown(self) -> None:
        """Ask the guest to sync and power off; returns when it has agreed."""
        ...

    async def aclose(self) -> None:
        """Close the channel; execs run on."""
        ...
