"""The shapes of requests and replies about databases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from torpor.base.units import MIB, parse_size
from torpor.databases.branches import CloneSpec
from torpor.errors import InvalidRequest
from torpor.model_databases import (
    DatabaseInfo,
    DatabaseSnapshot,
    DatabaseSpec,
    DatabaseState,
    DatabaseStep,
)
from torpor.server.wire import Wire

_SIZE = "Such as `1g`, `512m` or `16g`; or bytes."


class DatabaseRequest(Wire):
    """What POST /v1/databases takes; only `name` is needed."""

    name: str
    size: Annotated[str | int, Field(description=_SIZE)] = "1g"
    ram_mib: Annotated[int | None, Field(ge=128, description="null: as the template.")] = None
    vcpus: Annotated[int | None, Field(ge=1)] = None
    idle_seconds: Annotated[
        int | None,
        Field(description="Hibernate after so many seconds without a connection; null: never."),
    ] = None

    def spec(self) -> DatabaseSpec:
        """Return it in the desk's words."""
        return DatabaseSpec(
            name=self.name,
            size_bytes=size_of(self.size),
            ram_mib=self.ram_mib,
            vcpus=self.vcpus,
            idle_seconds=self.idle_seconds,
        )


class DatabaseCloneRequest(Wire):
    """What POST …/clone of a database takes."""

    name: Annotated[str, Field(description="Of the new database.")]
    snapshot: Annotated[
        str | None, Field(description="Id or label of a snapshot of it; null: as it is now.")
    ] = None
    target_time: Annotated[
        datetime | None,
        Field(description="RFC 3339 with a zone: all that was committed by then, nothing later."),
    ] = None
    size: Annotated[str | int | None, Field(description=_SIZE + " null: as it is.")] = None

    def spec(self) -> CloneSpec:
        """Return it in the desk's words."""
        return CloneSpec(
            name=self.name,
            snapshot=self.snapshot,
            target_time=self.target_time,
            size_bytes=None if self.size is None else size_of(self.size),
        )


class DatabaseChangeRequest(Wire):
    """What PATCH /v1/databases/{database} takes."""

    idle_seconds: Annotated[
        int | None,
        Field(description="Hibernate after so many seconds without a connection; null: never."),
    ]


class DatabaseGrowRequest(Wire):
    """What POST …/grow of a database takes: the new size."""

    size: Annotated[str | int, Field(description=_SIZE)]


class DatabaseSnapshotRequest(Wire):
    """What POST …/snapshots of a database takes; nothing is needed."""

    label: Annotated[str | None, Field(max_length=128)] = None


class UpgradeRequest(Wire):
    """What POST …/upgrade takes; nothing is needed."""

    build: Annotated[
        bool, Field(description="Build the template anew; false: take the one that is there.")
    ] = True


class DatabaseAttachRequest(Wire):
    """What POST …/attachments takes."""

    sandbox_id: str
    port: Annotated[int, Field(description="Of the sandbox's own loopback.")] = 5432


class AttachmentWire(Wire):
    """A sandbox that reaches the database."""

    sandbox_id: str
    port: int


class DatabaseWire(Wire):
    """One database; its password is not in it."""

    id: str
    name: str
    state: DatabaseState
    created_at: datetime
    size_bytes: int
    ram_mib: int
    memory_mb: Annotated[int, Field(description="Alias of `ram_mib`.")]
    vcpus: int
    idle_seconds: int | None
    sandbox_id: Annotated[str | None, Field(description="Its machine now; null: it has none.")]
    volume_id: str | None
    host: str
    port: int | None
    database: str
    username: str
    server_version: str | None
    parent: Annotated[str | None, Field(description="The database it was cloned from.")]
    recoverable_from: Annotated[
        datetime | None, Field(description="The earliest `target_time` of a clone.")
    ]
    attachments: Sequence[AttachmentWire]

    @staticmethod
    def of(info: DatabaseInfo) -> DatabaseWire:
        """Return `info` as JSON has it."""
        return DatabaseWire(
            id=info.id,
            name=info.name,
            state=info.state,
            created_at=info.created_at,
            size_bytes=info.size_bytes,
            ram_mib=info.ram_mib,
            memory_mb=info.ram_mib,
            vcpus=info.vcpus,
            idle_seconds=info.idle_seconds,
            sandbox_id=info.sandbox_id,
            volume_id=info.volume_id,
            host=info.host,
            port=info.port,
            database=info.database,
            username=info.username,
            server_version=info.server_version,
            parent=info.parent,
            recoverable_from=info.recoverable_from,
            attachments=[
                AttachmentWire(sandbox_id=a.sandbox_id, port=a.port) for a in info.attachments
            ],
        )


class DatabaseListWire(Wire):
    """Databases, by name."""

    databases: list[DatabaseWire]


class DatabaseUrlWire(Wire):
    """How clients connect. The password is in it."""

    connection_url: str


class DatabaseStepWire(Wire):
    """A step of a create as it begins."""

    step: str
    message: str

    @staticmethod
    def of(found: DatabaseStep) -> DatabaseStepWire:
        """Return `found` as JSON has it."""
        return DatabaseStepWire(step=found.step, message=found.message)


class DatabaseSnapshotWire(Wire):
    """A point of a database."""

    id: str
    label: str | None
    at: datetime

    @staticmethod
    def of(found: DatabaseSnapshot) -> DatabaseSnapshotWire:
        """Return `found` as JSON has it."""
        return DatabaseSnapshotWire(id=found.id, label=found.label, at=found.at)


class DatabaseSnapshotListWire(Wire):
    """A database's snapshots, the newest first."""

    snapshots: list[DatabaseSnapshotWire]


def size_of(text: str | int) -> int:
    """Return a size in bytes, in whole MiB. Raises `InvalidRequest` for what is none."""
    try:
        found = text if isinstance(text, int) else parse_size(text)
    except ValueError as exc:
        raise InvalidRequest(f"{text!r} is not a size", hint="such as 1g, 512m or 16g") from exc
    if not 0 < found < 1 << 60:
        raise InvalidRequest(f"{text!r} is not a size", hint="such as 1g, 512m or 16g")
    return -(-found // MIB) * MIB
