"""The shapes of requests and replies in JSON; apart from the model, so that each can change alone.

Field names carry units. Fields marked "alias" repeat another under the name that clients of other
sandbox services read. Text that came from the guest may hold raw bytes as lone surrogates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from torpor.errors import InvalidRequest
from torpor.model import (
    BootMode,
    BuildEvent,
    Network,
    OnTimeout,
    RestoreSpec,
    SandboxInfo,
    SandboxPage,
    SandboxSpec,
    SandboxState,
    TemplateInfo,
)
from torpor.model_memory import Policy
from torpor.model_volumes import VolumeMount


class Wire(BaseModel):
    """Base of all: unknown fields of a request are refused, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def secrets_field() -> Any:
    """Return the field `secrets` of a request."""
    return Field(
        default_factory=dict,
        repr=False,
        description="As `env`, for every command. Never shown, logged or kept; they are in the machine's RAM.",
    )


def with_secrets(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return both as one environment.

    Raises:
        InvalidRequest: a name is in both.
    """
    both = sorted(env.keys() & secrets.keys())
    if both:
        raise InvalidRequest(
            f"{both[0]} is in env and in secrets", hint="give each name once", names=both
        )
    return {**env, **secrets}


class ErrorWire(Wire):
    """What every failure looks like, with the HTTP status of its class."""

    error: str
    code: str
    hint: str | None
    retryable: bool
    facts: dict[str, Any]


class VolumeWish(Wire):
    """A volume of a new sandbox, where more than its name is said."""

    volume: str
    read_only: bool = False


def mounts_of(volumes: Mapping[str, str | VolumeWish]) -> tuple[VolumeMount, ...]:
    """Return volumes by path in the engine's words."""
    return tuple(
        VolumeMount(volume=wish, path=path)
        if isinstance(wish, str)
        else VolumeMount(volume=wish.volume, path=path, read_only=wish.read_only)
        for path, wish in volumes.items()
    )


class CreateRequest(Wire):
    """What POST /v1/sandboxes takes; only `template` is needed, or `from_snapshot` instead of it."""

    template: Annotated[
        str | None, Field(description="Ignored with `from_snapshot`: the snapshot has its own.")
    ] = None
    from_snapshot: Annotated[
        str | None, Field(description="Restore this snapshot; its sizes are the sandbox's.")
    ] = None
    vcpus: int | None = None
    ram_mib: int | None = None
    disk_gib: int | None = None
    network: Annotated[Network | None, Field(description="null: `user`, or the snapshot's.")] = None
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    secrets: dict[str, str] = secrets_field()
    metadata: dict[str, str] | None = None
    ttl_seconds: int | None = None
    on_timeout: OnTimeout = "delete"
    idle_seconds: int | None = None
    agent_memory: Annotated[
        Policy | None,
        Field(description="With `from_snapshot`: how the agent's memory goes on; see restore."),
    ] = None
    volumes: Annotated[
        dict[str, str | VolumeWish],
        Field(description='By path: a name, or {"volume": name, "read_only": true}.'),
    ] = Field(default_factory=dict)

    def restore_spec(self) -> RestoreSpec:
        """Return a request that has `from_snapshot` in the engine's words.

        Raises:
            InvalidRequest: it wants sizes other than the snapshot's.
        """
        for name in ("vcpus", "ram_mib", "disk_gib"):
            if getattr(self, name) is not None:
                raise InvalidRequest(
                    f"{name} cannot be chosen with from_snapshot: the machine goes on as it was",
                    hint=f"leave {name} out, or create from a template",
                )
        return RestoreSpec(
            env=with_secrets(self.env, self.secrets),
            metadata=self.metadata or {},
            network=self.network,
            ttl_seconds=self.ttl_seconds,
            on_timeout=self.on_timeout,
            idle_seconds=self.idle_seconds,
            agent_memory=self.agent_memory,
            mounts=mounts_of(self.volumes),
        )

    def spec(self) -> SandboxSpec:
        """Return a request without `from_snapshot` in the engine's words.

        Raises:
            InvalidRequest: it has no template either.
        """
        if self.template is None:
            raise InvalidRequest(
                "a template is needed", hint='{"template": "base"}, or a from_snapshot'
            )
        return SandboxSpec(
            template=self.template,
            vcpus=self.vcpus,
            ram_mib=self.ram_mib,
            disk_gib=self.disk_gib,
            network=self.network or "user",
            env=with_secrets(self.env, self.secrets),
            metadata=self.metadata or {},
            ttl_seconds=self.ttl_seconds,
            on_timeout=self.on_timeout,
            idle_seconds=self.idle_seconds,
            volumes=mounts_of(self.volumes),
        )


class SandboxWire(Wire):
    """One sandbox."""

    id: str
    state: SandboxState
    status: Annotated[SandboxState, Field(description="Alias of `state`.")]
    template: str
    template_digest: str
    vcpus: int
    cpu: Annotated[int, Field(description="Alias of `vcpus`.")]
    ram_mib: int
    memory_mb: Annotated[int, Field(description="Alias of `ram_mib`.")]
    disk_gib: int
    network: Network
    env_names: Annotated[
        Sequence[str],
        Field(description="Names of the environment given at create, without the values."),
    ]
    metadata: Mapping[str, str]
    ttl_seconds: int | None
    on_timeout: OnTimeout
    created_at: datetime
    expires_at: datetime | None
    ttl_left_seconds: Annotated[
        float | None,
        Field(description="What is left of the TTL while it does not run down: paused, asleep."),
    ]
    boot_mode: BootMode | None
    boot_ms: int | None
    driver: str
    accel: str | None
    error: str | None
    idle_seconds: int | None
    parent_snapshot: str | None
    memory_note: Annotated[
        str | None,
        Field(description="What is wrong with its agent's memory since the machine moved."),
    ]
    health_note: Annotated[
        str | None, Field(description="What its watch found wrong, and what to do.")
    ]
    generation: int
    workspace: str

    @staticmethod
    def of(info: SandboxInfo) -> SandboxWire:
        """Return `info` as JSON has it."""
        return SandboxWire(
            id=info.id,
            state=info.state,
            status=info.state,
            template=info.template,
            template_digest=info.template_digest,
            vcpus=info.vcpus,
            cpu=info.vcpus,
            ram_mib=info.ram_mib,
            memory_mb=info.ram_mib,
            disk_gib=info.disk_gib,
            network=info.network,
            env_names=info.env_names,
            metadata=info.metadata,
            ttl_seconds=info.ttl_seconds,
            on_timeout=info.on_timeout,
            created_at=info.created_at,
            expires_at=info.expires_at,
            ttl_left_seconds=info.ttl_left_seconds,
            boot_mode=info.boot_mode,
            boot_ms=info.boot_ms,
            driver=info.driver,
            accel=info.accel,
            error=info.error,
            idle_seconds=info.idle_seconds,
            parent_snapshot=info.parent_snapshot,
            memory_note=info.memory_note,
            health_note=info.health_note,
            generation=info.generation,
            workspace=info.workspace,
        )


class SandboxPageWire(Wire):
    """One page of sandboxes, newest first."""

    items: list[SandboxWire]
    next_cursor: str | None

    @staticmethod
    def of(page: SandboxPage) -> SandboxPageWire:
        """Return `page` as JSON has it."""
        return SandboxPageWire(
            items=[SandboxWire.of(item) for item in page.items], next_cursor=page.next_cursor
        )


class LifecycleRequest(Wire):
    """What PATCH …/lifecycle takes: when the sandbox is to end or sleep; what is left out stays."""

    ttl_seconds: Annotated[int | None, Field(description="Seconds from now; null: never.")] = None
    on_timeout: Annotated[
        OnTimeout | None, Field(description="What happens then; only with `ttl_seconds`.")
    ] = None
    idle_seconds: Annotated[
        int | None, Field(description="Hibernate after so many seconds without work; null: never.")
    ] = None

    @model_validator(mode="after")
    def _says_something(self) -> LifecycleRequest:
        if not self.model_fields_set & {"ttl_seconds", "idle_seconds"}:
            raise ValueError("ttl_seconds or idle_seconds is needed")
        if "ttl_seconds" not in self.model_fields_set and self.on_timeout is not None:
            raise ValueError("on_timeout needs ttl_seconds beside it")
        return self


class LifecycleWire(Wire):
    """When a sandbox ends, and how; and when it sleeps by itself."""

    ttl_seconds: int | None
    on_timeout: OnTimeout
    expires_at: datetime | None
    idle_seconds: int | None
    persistent: Annotated[bool, Field(description="Alias: true when `ttl_seconds` is null.")]

    @staticmethod
    def of(info: SandboxInfo) -> LifecycleWire:
        """Return the lifecycle part of `info`."""
        return LifecycleWire(
            ttl_seconds=info.ttl_seconds,
            on_timeout=info.on_timeout,
            expires_at=info.expires_at,
            idle_seconds=info.idle_seconds,
            persistent=info.ttl_seconds is None,
        )


class TemplateWire(Wire):
    """One built template."""

    name: str
    digest: str
    created_at: datetime
    vcpus: int
    cpu: Annotated[int, Field(description="Alias of `vcpus`.")]
    ram_mib: int
    memory_mb: Annotated[int, Field(description="Alias of `ram_mib`.")]
    disk_gib: int
    size_bytes: int
    default_user: str
    default_cwd: str
    env: Mapping[str, str]
    description: str
    command: Annotated[
        tuple[str, ...],
        Field(description="What a container of the image would run; started only when asked."),
    ] = ()

    @staticmethod
    def of(info: TemplateInfo) -> TemplateWire:
        """Return `info` as JSON has it."""
        return TemplateWire(
            name=info.name,
            digest=info.digest,
            created_at=info.created_at,
            vcpus=info.vcpus,
            cpu=info.vcpus,
            ram_mib=info.ram_mib,
            memory_mb=info.ram_mib,
            disk_gib=info.disk_gib,
            size_bytes=info.size_bytes,
            default_user=info.default_user,
            default_cwd=info.default_cwd,
            env=info.env,
            description=info.description,
            command=info.command,
        )


class TemplateListWire(Wire):
    """All built templates, by name."""

    items: list[TemplateWire]
    next_cursor: str | None = None


class BuildRequest(Wire):
    """What POST /v1/templates/build takes: exactly one of `name`, `recipe_path` and `recipe`."""

    name: Annotated[
        str | None,
        Field(
            description="A shipped recipe; with `rootfs_path`, `image` or `dockerfile_path` the "
            "template's name."
        ),
    ] = None
    rootfs_path: Annotated[
        str | None,
        Field(
            description="Absolute path of a tar on the daemon's host: a root file system that the template "
            "`name` is made of."
        ),
    ] = None
    image: Annotated[
        str | None,
        Field(
            description="A container image that the template `name` is made of: the absolute path, on the daemon's "
            "host, of an OCI layout (folder or tar) or of what `docker save` writes; or a reference to one in a "
            "registry, asked for through skopeo."
        ),
    ] = None
    dockerfile_path: Annotated[
        str | None,
        Field(
            description="Absolute path of a Dockerfile on the daemon's host that makes the template `name`."
        ),
    ] = None
    context_path: Annotated[
        str | None,
        Field(
            description="Absolute path of the folder that its COPY takes from; only with `dockerfile_path`, null: "
            "the Dockerfile's own."
        ),
    ] = None
    disk_gib: Annotated[
        int | None,
        Field(
            ge=1,
            le=4096,
            description="Only with `rootfs_path`, `image` or `dockerfile_path`; null: 8, or as large as the disk "
            "of the template that the Dockerfile builds on.",
        ),
    ] = None
    recipe_path: Annotated[
        str | None, Field(description="Absolute path of a recipe file on the daemon's host.")
    ] = None
    recipe: Annotated[
        str | None, Field(description="The text of a recipe that needs no files beside it.")
    ] = None
    force: bool = False


class BuildEventWire(Wire):
    """Data of the events `progress` and `done`."""

    step: str
    message: str
    fraction: float
    template: TemplateWire | None

    @staticmethod
    def of(event: BuildEvent) -> BuildEventWire:
        """Return `event` as JSON has it."""
        return BuildEventWire(
            step=event.step,
            message=event.message,
            fraction=event.fraction,
            template=TemplateWire.of(event.template) if event.template else None,
        )


class HealthWire(Wire):
    """The daemon answers."""

    status: str
    version: str


class VersionWire(Wire):
    """Which daemon this is."""

    version: str
    api: str
    pid: int
    python: str
