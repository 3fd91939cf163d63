"""The plain values of databases: a PostgreSQL in a sandbox of its own, its data on a volume. See `torpor.model`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

from torpor.model_access import DEFAULT_WORKSPACE

DatabaseId = NewType("DatabaseId", str)

DATABASE = "postgres"
"""The database that a URL names; it is there from the beginning, and others may be made."""
USERNAME = "postgres"
LOOPBACK = "127.0.0.1"
LEAST_BYTES = 1 << 30
"""A smaller volume has no room for the log and its archive."""


class DatabaseState(StrEnum):
    """What a database can be."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    HIBERNATED = "hibernated"
    """Its machine sleeps; who connects wakes it."""
    DOWN = "down"
    """It has no machine; who connects gets one made, with the same data."""
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSpec:
    """What a database is to be."""

    name: str
    size_bytes: int = LEAST_BYTES
    ram_mib: int | None = None
    """None: as the template says. The server's memory settings follow it."""
    vcpus: int | None = None
    idle_seconds: int | None = None
    """After how long without a connection it hibernates; None: never by itself."""
    workspace: str = DEFAULT_WORKSPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAttachment:
    """A sandbox whose programs reach the database on their own loopback."""

    sandbox_id: str
    port: int
    """In that sandbox, on 127.0.0.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSnapshot:
    """A point of a database's volume. The log that was archived since leads from it to any later time."""

    id: str
    """Of the volume's snapshot, `vsnap_…`."""
    label: str | None
    at: datetime
    wal_file: str
    """The oldest segment of the log that is needed from there on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseInfo:
    """What is so about one database; no secret is in it."""

    id: DatabaseId
    name: str
    state: DatabaseState
    created_at: datetime
    size_bytes: int
    """Of its volume."""
    ram_mib: int
    vcpus: int
    idle_seconds: int | None
    sandbox_id: str | None
    """Its machine now; None: it has none."""
    volume_id: str | None
    """Where its data is; None: not made yet."""
    port: int | None
    """Of this host, on 127.0.0.1."""
    server_version: str | None
    parent: str | None
    """The database that it was cloned from."""
    recoverable_from: datetime | None
    """The earliest time that it can be cloned at; the latest is now."""
    attachments: tuple[DatabaseAttachment, ...] = ()
    database: str = DATABASE
    username: str = USERNAME
    host: str = LOOPBACK
    workspace: str = DEFAULT_WORKSPACE


@dataclass(frozen=True, slots=True)
class DatabaseStep:
    """How far a create is."""

    step: str
    message: str


Progress = Callable[[DatabaseStep], object]
"""Is told each step as it begins."""
