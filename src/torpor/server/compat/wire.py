"""PandaStack's shapes in JSON. Requests may have fields that are not known here: its clients send some for later."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from torpor.errors import InvalidRequest
from torpor.model import (
    BootMode,
    OnTimeout,
    RestoreSpec,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SnapshotInfo,
    TemplateInfo,
)
from torpor.model_volumes import VolumeInfo, VolumeMount
from torpor.server.wire import Wire

DEFAULT_TEMPLATE = "code-interpreter"
MOUNTS = "/mnt"
"""A volume is at `/mnt/NAME`: these clients name no path."""

_STATUS = {
    SandboxState.PAUSING: "paused",
    SandboxState.RESUMING: "running",
    SandboxState.HIBERNATING: "hibernated",
    SandboxState.WAKING: "running",
    SandboxState.RESTORING: "running",
    SandboxState.DELETING: "stopping",
}
_BOOT_MODE: Mapping[BootMode, str] = {"cold": "cold", "restore": "snapshot", "resume": "snapshot"}


class Asked(BaseModel):
    """Base of requests."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class VolumeAsked(Asked):
    """A volume of a new sandbox."""

    name: str
    read_only: bool = False


class CreateAsked(Asked):
    """What POST /sandboxes takes."""

    template: Annotated[str | None, Field(description="Ignored with `from_snapshot`.")] = (
        DEFAULT_TEMPLATE
    )
    from_snapshot: str | None = None
    cpu: Annotated[int | None, Field(description="null: the template's.")] = None
    memory_mb: Annotated[int | None, Field(description="null: the template's.")] = None
    metadata: dict[str, str] | None = None
    ttl_seconds: int | None = None
    persistent: Annotated[
        bool, Field(description="At its end it is hibernated instead of deleted.")
    ] = False
    volumes: Annotated[list[VolumeAsked], Field(description=f"Each at `{MOUNTS}/NAME`.")] = []

    @property
    def _mounts(self) -> tuple[VolumeMount, ...]:
        return tuple(
            VolumeMount(volume=v.name, path=f"{MOUNTS}/{v.name}", read_only=v.read_only)
            for v in self.volumes
        )

    def spec(self) -> SandboxSpec:
        """Return a request without `from_snapshot` in the engine's words."""
        return SandboxSpec(
            template=self.template or DEFAULT_TEMPLATE,
            vcpus=self.cpu,
            ram_mib=self.memory_mb,
            metadata=self.metadata or {},
            ttl_seconds=self.ttl_seconds,
            on_timeout=end_of(self.persistent),
            volumes=self._mounts,
        )

    def restore_spec(self) -> RestoreSpec:
        """Return one with it. Raises `InvalidRequest` for sizes: the machine goes on as it was."""
        for name in ("cpu", "memory_mb"):
            if getattr(self, name) is not None:
                raise InvalidRequest(
                    f"{name} cannot be chosen with from_snapshot: the machine goes on as it was"
                )
        return RestoreSpec(
            metadata=self.metadata or {},
            ttl_seconds=self.ttl_seconds,
            on_timeout=end_of(self.persistent),
            mounts=self._mounts,
        )


def end_of(persistent: bool) -> OnTimeout:
    """Return what happens to a sandbox at the end of its time."""
    return "hibernate" if persistent else "delete"


class SandboxTold(Wire):
    """One sandbox. `cpu` and `memory_mb` are always numbers."""

    id: str
    template: str
    cpu: int
    memory_mb: int
    status: Annotated[
        str, Field(description="`creating running paused hibernated stopped failed stopping`")
    ]
    guest_ip: None = None
    created_at: datetime
    metadata: Mapping[str, str]
    from_snapshot: Annotated[
        str | None, Field(description="The snapshot it last was at: made from, or taken of it.")
    ]
    boot_ms: int | None
    boot_mode: Annotated[str | None, Field(description="`cold` or `snapshot`")]
    persistent: bool
    ttl_seconds: int | None
    workspace: str
    error: str | None

    @staticmethod
    def of(info: SandboxInfo) -> SandboxTold:
        """Return `info` as JSON has it."""
        return SandboxTold(
            id=info.id,
            template=info.template,
            cpu=info.vcpus,
            memory_mb=info.ram_mib,
            status=_STATUS.get(info.state, info.state.value),
            created_at=info.created_at,
            metadata=info.metadata,
            from_snapshot=info.parent_snapshot,
            boot_ms=info.boot_ms,
            boot_mode=None if info.boot_mode is None else _BOOT_MODE[info.boot_mode],
            persistent=info.on_timeout == "hibernate",
            ttl_seconds=info.ttl_seconds,
            workspace=info.workspace,
            error=info.error,
        )


class SandboxesTold(Wire):
    """All sandboxes, the newest first; those that sleep are among them."""

    items: list[SandboxTold]


class LifecycleAsked(Asked):
    """What PATCH …/lifecycle takes; what is left out stays."""

    ttl_seconds: int | None = None
    persistent: bool | None = None


class LifecycleTold(Wire):
    """When a sandbox ends, and how."""

    ttl_seconds: int | None
    persistent: bool
    idle_seconds: Annotated[
        int | None, Field(description="Seconds without work after which it sleeps; null: never.")
    ]
    expires_at: datetime | None

    @staticmethod
    def of(info: SandboxInfo) -> LifecycleTold:
        """Return the lifecycle part of `info`."""
        return LifecycleTold(
            ttl_seconds=info.ttl_seconds,
            persistent=info.on_timeout == "hibernate",
            idle_seconds=info.idle_seconds,
            expires_at=info.expires_at,
        )


class SnapshotTold(Wire):
    """One snapshot."""

    id: str
    snapshot_id: str
    sandbox_id: str | None
    template: str
    size_bytes: int
    created_at: datetime

    @staticmethod
    def of(info: SnapshotInfo) -> SnapshotTold:
        """Return `info` as JSON has it."""
        return SnapshotTold(
            id=info.id,
            snapshot_id=info.id,
            sandbox_id=info.sandbox_id,
            template=info.template,
            size_bytes=info.size_bytes,
            created_at=info.created_at,
        )


class SnapshotsTold(Wire):
    """Snapshots that somebody took, the newest first."""

    snapshots: list[SnapshotTold]


class SnapshotGoneTold(Wire):
    """A snapshot that was deleted."""

    deleted: str


class VolumeAskedNew(Asked):
    """What POST /volumes takes."""

    name: str
    size_mb: int


class VolumeTold(Wire):
    """One volume."""

    name: str
    id: str
    size_mb: int
    size_bytes: int
    created_at: datetime
    attached_to: list[str]

    @staticmethod
    def of(info: VolumeInfo) -> VolumeTold:
        """Return `info` as JSON has it."""
        return VolumeTold(
            name=info.name,
            id=info.id,
            size_mb=info.size_bytes >> 20,
            size_bytes=info.size_bytes,
            created_at=info.created_at,
            attached_to=[holder.sandbox_id for holder in info.holders],
        )


class VolumesTold(Wire):
    """The volumes, by name."""

    items: list[VolumeTold]


class TemplateTold(Wire):
    """One template."""

    name: str
    rootfs_path: None = None
    size_bytes: int
    cpu: int
    memory_mb: int
    is_global: Annotated[bool, Field(description="It comes with the daemon.")]
    workspace: None = None
    label: str
    description: str
    category: None = None
    base: None = None
    tools: tuple[str, ...] = ()
    meta: dict[str, Any]

    @staticmethod
    def of(info: TemplateInfo, *, is_shipped: bool) -> TemplateTold:
        """Return `info` as JSON has it."""
        return TemplateTold(
            name=info.name,
            size_bytes=info.size_bytes,
            cpu=info.vcpus,
            memory_mb=info.ram_mib,
            is_global=is_shipped,
            label=info.name,
            description=info.description,
            meta={
                "digest": info.digest,
                "created_at": info.created_at.isoformat(),
                "disk_gib": info.disk_gib,
                "default_user": info.default_user,
                "default_cwd": info.default_cwd,
            },
        )


class TemplatesTold(Wire):
    """The templates, by name."""

    items: list[TemplateTold]
