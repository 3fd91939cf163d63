"""The plain values that every room speaks: what a sandbox is, what an exec is, what a file is.

All are frozen; units are in the names; times are aware and in UTC. Nothing here does any work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, NewType

from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_memory import Policy, Watermark
from torpor.model_quiesce import QuiesceReport
from torpor.model_terminals import TerminalSpec
from torpor.model_volumes import VolumeMount, VolumesMode

SandboxId = NewType("SandboxId", str)
ExecId = NewType("ExecId", str)
SnapshotId = NewType("SnapshotId", str)


class SandboxState(StrEnum):
    """Where a sandbox is in its life; the table of moves is `torpor.sandboxes.lifecycle`."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    WAKING = "waking"
    RESTORING = "restoring"
    """Being rolled back: the same sandbox, put back to a snapshot."""
    STOPPED = "stopped"
    FAILED = "failed"
    DELETING = "deleting"
    DELETED = "deleted"


Network = Literal["user", "none"]
AgentMemory = Literal["reconcile", "rewind", "keep"]
"""What an agent's memory does when its machine goes back: `model_memory.Policy`, as words."""
OnTimeout = Literal["delete", "hibernate"]
BootMode = Literal["cold", "restore", "resume"]
"""`cold`: booted from its disk; `restore`: from a snapshot's RAM; `resume`: woken where it slept."""
MemoryChoice = Literal["ram", "cold"]
"""How a rollback comes back: `ram`: memory and processes as they were; `cold`: the disk alone, then a boot."""
Consistency = Literal["crash", "filesystem", "application"]
"""`crash`: as after a power cut, but synced; `filesystem`: file systems frozen while captured; `application`: the
machine's programs held still as well, and said so before and after."""
SnapshotReason = Literal["snapshot", "hibernate", "fork", "rollback", "template"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a caller asks for; None means the template's default."""

    template: str
    vcpus: int | None = None
    ram_mib: int | None = None
    disk_gib: int | None = None
    network: Network = "user"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    ttl_seconds: int | None = None
    """Seconds of running after which `on_timeout` happens; None: never. Being paused uses up none."""
    on_timeout: OnTimeout = "delete"
    idle_seconds: int | None = None
    """Hibernate by itself after so many seconds without work; None: never."""
    workspace: str = DEFAULT_WORKSPACE
    sandbox_id: SandboxId | None = None
    """A fresh id that it is to have; None: any."""
    volumes: tuple[VolumeMount, ...] = ()


DRILL_MARK = "torpor.drill"
"""In a sandbox's metadata: the drill whose clone it is. Such a machine does not reach its agent's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stillness:
    """What must not act in a machine that is only looked at; held before anything else is done in it, for good.

    All timers of systemd are held beside that.
    """

    units: tuple[str, ...] = ()
    """Patterns of the names of services whose processes are frozen."""
    processes: tuple[str, ...] = ()
    """Regular expressions found in the command lines of processes that are stopped."""
    masks: tuple[str, ...] = ()
    """Units that a boot from the disk does not start, by their whole names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSpec:
    """What a sandbox that is made from a snapshot is given of its own; the rest is the snapshot's."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    network: Network | None = None
    """None: the snapshot's."""
    ttl_seconds: int | None = None
    on_timeout: OnTimeout = "delete"
    idle_seconds: int | None = None
    allow_cold: bool = False
    """Start cold from the disk, and say so, when the RAM cannot go on on this host."""
    workspace: str | None = None
    """None: the snapshot's."""
    sandbox_id: SandboxId | None = None
    """A fresh id that it is to have; None: any."""
    volumes: VolumesMode | None = None
    """What becomes of the volumes that the snapshot knows of; None: as it was taken."""
    mounts: tuple[VolumeMount, ...] = ()
    """Volumes to attach beside those."""
    agent_memory: Policy | None = None
    """How the memory of its agent goes on; None: `rewind` (as it was at the snapshot) for a fork, else `reconcile`."""
    memory: MemoryChoice = "ram"
    """`cold`: boot from the snapshot's disk, whether or not its RAM could go on here."""
    still: Stillness | None = None
    """Only to be looked at: what must not act in it. None: it goes on as it is."""


ELSEWHERE_MARK = "::"
"""In the name of an agent: what is before it is a workspace. No agent may be given a name with it."""


def agent_in(workspace: str, name: str) -> str:
    """Return the name under which the memory of a workspace's agent is kept: no workspace reaches another's."""
    return name if workspace == DEFAULT_WORKSPACE else f"{workspace}{ELSEWHERE_MARK}{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """What is so about one sandbox."""

    id: SandboxId
    state: SandboxState
    template: str
    template_digest: str
    vcpus: int
    ram_mib: int
    disk_gib: int
    network: Network
    env_names: tuple[str, ...]
    """Names of the environment given at create; the values live in the machine alone."""
    metadata: Mapping[str, str]
    ttl_seconds: int | None
    on_timeout: OnTimeout
    created_at: datetime
    expires_at: datetime | None
    """None: never, or not running down now (only running time counts)."""
    boot_mode: BootMode | None = None
    boot_ms: int | None = None
    driver: str = "qemu"
    accel: str | None = None
    error: str | None = None
    """Why it failed, with the last lines of its log; None unless `failed`."""
    idle_seconds: int | None = None
    """Hibernate by itself after so many seconds without work; None: never."""
    parent_snapshot: SnapshotId | None = None
    """The snapshot it last was at: made from, put back to, or taken of it."""
    memory_note: str | None = None
    """What is wrong with its agent's memory since the machine moved: not put back yet, or otherwise than asked for."""
    health_note: str | None = None
    """What its watch found wrong, and what to do; None: nothing, or nobody watches it."""
    generation: int = 1
    """Raised whenever the machine's past changes: at each restore, rollback, fork and wake."""
    ttl_left_seconds: float | None = None
    """What is left of its lease while that does not run down (paused, asleep); None: it runs down, or there is none."""

    @property
    def is_clone_of_drill(self) -> bool:
        """Whether it was made to prove a snapshot, and goes when that is done."""
        return DRILL_MARK in self.metadata

    @property
    def agent(self) -> str:
        """Whose memory it has: `agent` of its metadata, else its id; see `agent_in`."""
        return agent_in(self.workspace, self.metadata.get("agent") or self.id)

    workspace: str = DEFAULT_WORKSPACE
    """Who may see it: the tokens of that workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodness:
    """Why a snapshot is known to be good."""

    found_by: str
    """Id of the change that was kept, or of the drill that passed."""
    reason: str
    """One sentence."""
    found_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """A point of a sandbox: RAM, devices and disk at one instant. Immutable."""

    id: SnapshotId
    label: str | None
    sandbox_id: SandboxId | None
    """The sandbox it was taken of; None for a template's own."""
    parent: SnapshotId | None
    reason: SnapshotReason
    template: str
    template_digest: str
    created_at: datetime
    consistency: Consistency
    vcpus: int
    ram_mib: int
    disk_gib: int
    network: Network
    driver: str
    driver_version: str
    cpu: str
    """What the machine's CPU was; RAM can only be restored on the same."""
    accel: str
    size_bytes: int
    """Bytes written for this snapshot alone."""
    pause_ms: float
    """How long the machine stood still."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    machine: int = 1
    """Which machine its driver built; RAM can only be restored into the same."""
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Names of the volumes that the machine had, by path."""
    volumes_mode: VolumesMode | None = None
    """What was done with them; None: it had none."""
    env_names: tuple[str, ...] = ()
    """Names of the environment that its sandbox was given; the values are in its disk alone."""
    quiesce: QuiesceReport | None = None
    """What came of asking its programs to hold still; None: they were not asked."""
    protected: tuple[str, ...] = ()
    """Why it cannot be deleted now, a reason each; kept beside the snapshot, not in it."""
    good: Goodness | None = None
    """Why it is known to be good; kept beside the snapshot, not in it. The newest such one of a sandbox stays."""
    workspace: str = DEFAULT_WORKSPACE
    """That of its sandbox; a template's own snapshot may be used from all."""
    watermark: Watermark | None = None
    """Where the memory of its agent stood; None: a template's, which has no agent."""
    inventory: str = "not taken: by an earlier version"
    """`taken`, `incomplete: why` or `not taken: why`: whether there is an inventory of what the machine held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What a machine is told when it goes on from a snapshot."""

    reason: Literal["create", "wake", "rollback", "restore", "fork"]
    generation: int
    now: datetime
    entropy: bytes
    """Fresh randomness from the host, mixed into the guest kernel's before anything else happens."""
    hostname: str | None
    """None: the identity stays; else machine-id, host keys and boot_id are made anew, and this is the name."""
    still: Stillness | None = None
    """What must not act in it any more; None: all goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFilter:
    """Which sandboxes to list: all that match every condition given, newest first."""

    states: tuple[SandboxState, ...] = ()
    """Empty: all but `deleted`."""
    template: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    workspace: str | None = None
    """Only of this one; None: of all."""
    limit: int = 100
    """1 to 1000."""
    cursor: str | None = None
    """`next_cursor` of the page before."""


@dataclass(frozen=True, slots=True)
class SandboxPage:
    """One page of a listing."""

    items: tuple[SandboxInfo, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInfo:
    """A built template that sandboxes can be made from."""

    name: str
    digest: str
    """SHA-256 (hex) over the recipe, its files and the guest agent: equal digests are equal images."""
    created_at: datetime
    vcpus: int
    ram_mib: int
    disk_gib: int
    size_bytes: int
    """Bytes of disk that the image takes."""
    default_user: str
    default_cwd: str
    env: Mapping[str, str]
    description: str = ""
    command: tuple[str, ...] = ()
    """What a container of the image would run (ENTRYPOINT and CMD); a sandbox runs it only when asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEvent:
    """One step of a template build as it goes on."""

    step: str
    """A short word: `plan`, `packages` (or `unpack`), `files`, `run`, `image`, `boot`, `settle`, `publish`, `done`."""
    message: str
    """One line for people."""
    fraction: float
    """0.0 to 1.0 of the whole build, never going back."""
    template: TemplateInfo | None = None
    """Set in the last event only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSpec:
    """A command to run in a guest."""

    command: str | tuple[str, ...]
    """Text is run by `/bin/sh -c`; a tuple is run as it is."""
    cwd: str | None = None
    """None: the template's `default_cwd`."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Laid over the sandbox's environment, which lies over the image's."""
    user: str | None = None
    """Name or uid in the guest; None: the template's `default_user`."""
    timeout_seconds: float | None = None
    """After this the whole process tree is killed; None: no limit."""
    stdin: bool = False
    """True: stdin is a pipe that `exec_stdin` feeds; False: /dev/null."""
    background: bool = False
    """True: nobody waits for it; told apart in listings only."""
    terminal: TerminalSpec | None = None
    """Run it in a terminal; then an empty `command` is the user's login shell."""


ExecState = Literal["running", "exited", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecInfo:
    """What is so about one exec."""

    exec_id: ExecId
    command: str | tuple[str, ...]
    state: ExecState
    """`lost`: the agent that watched it is gone, so its end is not known."""
    pid: int | None
    user: str
    cwd: str
    background: bool
    started_at: datetime
    exit_code: int | None = None
    """0 to 255; 128 + n when signal n ended it; None while running and when lost."""
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    duration_ms: int | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_path: str = ""
    """File in the guest with the whole stdout, up to the agent's spool limit; empty while there is none."""
    stderr_path: str = ""
    terminal: bool = False
    """It runs in a terminal: all that it shows is `stdout`, and only the last of that is kept."""
    is_idle: bool = False
    """A terminal in which nothing but its shell runs, which waits for a line."""


@dataclass(frozen=True, slots=True)
class ExecStarted:
    """The command runs."""

    exec_id: ExecId
    pid: int | None


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """Bytes that the command wrote."""

    stream: Literal["stdout", "stderr"]
    offset: int
    """Where `data` begins in the whole stream."""
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecEnded:
    """The command's end, known for certain. Always the last event."""

    info: ExecInfo


ExecEvent = ExecStarted | ExecOutput | ExecEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One process in the guest."""

    pid: int
    ppid: int
    user: str
    state: str
    rss_bytes: int
    command: str
    exec_id: ExecId | None
    """The exec whose tree it belongs to."""


FileKind = Literal["file", "dir", "symlink", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One name in the guest's file system.

    Names that are not UTF-8 carry their raw bytes as lone surrogates (`os.fsdecode`).
    """

    name: str
    path: str
    kind: FileKind
    size_bytes: int
    mode: int
    """Permission bits, such as 0o644."""
    user: str
    group: str
    modified_at: datetime
    target: str | None = None
    """Where a symlink points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestInfo:
    """What the guest agent said of itself when it was connected."""

    agent_version: str
    protocol_version: int
    capabilities: frozenset[str]
    instance: str
    """Drawn by the agent when it starts, so another after each boot; the same in all that go on from one snapshot."""
    agent_pid: int
