"""`Database`: the synchronous face of `AsyncDatabase`, call for call."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self

from typing_extensions import override

from torpor.model_databases import (
    DATABASE,
    DatabaseId,
    DatabaseInfo,
    DatabaseSnapshot,
    DatabaseStep,
)
from torpor.sdk.client import Client
from torpor.sdk.databases import PORT, AsyncDatabase
from torpor.sdk.loop import loop_thread


class Database:
    """One database. Made by `create`, `get` or `list`; `torpor.sdk.databases.AsyncDatabase` says more of each call."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    @classmethod
    def create(
        cls,
        name: str,
        size: str | int = "1g",
        *,
        ram_mib: int | None = None,
        vcpus: int | None = None,
        idle_seconds: int | None = None,
        progress: Callable[[DatabaseStep], object] | None = None,
        client: Client | None = None,
    ) -> Self:
        """Make a database, and return when a query through its `connection_url` was answered.

        Raises:
            Conflict: the name is taken.
            InvalidRequest: the name cannot be one, or the size is too small.
            LimitExceeded: a quota of the daemon is full.
            InsufficientResources: the host has no memory or disk for it. In all cases nothing is left.
        """
        made = AsyncDatabase.create(
            name,
            size,
            ram_mib=ram_mib,
            vcpus=vcpus,
            idle_seconds=idle_seconds,
            progress=progress,
            client=client,
        )
        return cls(loop_thread.run(made))

    @classmethod
    def get(cls, name: str, *, client: Client | None = None) -> Self:
        """Return the database with that name or id. Raises `NotFound`."""
        return cls(loop_thread.run(AsyncDatabase.get(name, client=client)))

    @classmethod
    def list(cls, *, client: Client | None = None) -> builtins.list[Self]:
        """Return all databases, by name."""
        return [cls(found) for found in loop_thread.run(AsyncDatabase.list(client=client))]

    @classmethod
    def handle(cls, name: str, *, client: Client | None = None) -> Self:
        """Return an object for a name or id without asking the daemon whether it exists."""
        return cls(AsyncDatabase.handle(name, client=client))

    @override
    def __repr__(self) -> str:
        return repr(self._database).replace("AsyncDatabase", type(self).__name__)

    @property
    def name(self) -> str:
        """Its name."""
        return self._database.name

    @property
    def id(self) -> DatabaseId:
        """Its id, `db_…`."""
        return self._database.id

    @property
    def info(self) -> DatabaseInfo:
        """What was so when the daemon was last asked; `refresh` asks again."""
        return self._database.info

    @property
    def connection_url(self) -> str:
        """`postgresql://…` with the password, on 127.0.0.1 of the daemon's host. Known after `create`, `get` or `url`."""
        return self._database.connection_url

    @property
    def client(self) -> Client:
        """The daemon that has it."""
        return self._database.client

    def refresh(self) -> DatabaseInfo:
        """Ask what is so about the database."""
        return loop_thread.run(self._database.refresh())

    def url(self) -> str:
        """Ask for the URL that clients connect with; it has the password."""
        return loop_thread.run(self._database.url())

    def delete(self, *, keep_volume: bool = False) -> None:
        """Delete the database with its machine, and its volume too unless that is kept. Clones of it stay."""
        loop_thread.run(self._database.delete(keep_volume=keep_volume))

    def wake(self) -> DatabaseInfo:
        """Return when it runs: one that sleeps is woken, one that lost its machine gets a new one. Idempotent."""
        return loop_thread.run(self._database.wake())

    def hibernate(self) -> DatabaseInfo:
        """Put it to sleep: open connections break, and the next one wakes it. Idempotent."""
        return loop_thread.run(self._database.hibernate())

    def set_idle(self, idle_seconds: int | None) -> DatabaseInfo:
        """Let it hibernate by itself after so long without a connection; None: never."""
        return loop_thread.run(self._database.set_idle(idle_seconds))

    def grow(self, size: str | int) -> DatabaseInfo:
        """Make its volume larger, while it runs. Can be repeated. Raises `InvalidRequest` if it would become smaller."""
        return loop_thread.run(self._database.grow(size))

    def upgrade(self, *, build: bool = True) -> DatabaseInfo:
        """Stop it cleanly and let it go on in a new machine with PostgreSQL's newest minor version."""
        return loop_thread.run(self._database.upgrade(build=build))

    def reset_password(self) -> str:
        """Give it a new password and end all sessions; return the new `connection_url`."""
        return loop_thread.run(self._database.reset_password())

    def snapshot(self, *, label: str | None = None) -> DatabaseSnapshot:
        """Take a snapshot while it runs. Raises `Conflict` when it has one with that label."""
        return loop_thread.run(self._database.snapshot(label=label))

    def snapshots(self) -> builtins.list[DatabaseSnapshot]:
        """Return its snapshots, the newest first."""
        return loop_thread.run(self._database.snapshots())

    def delete_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot of it, by id or label; clones stay. Raises `NotFound`."""
        loop_thread.run(self._database.delete_snapshot(snapshot))

    def clone(
        self,
        name: str | None = None,
        *,
        snapshot: str | None = None,
        target_time: datetime | str | None = None,
        size: str | int | None = None,
    ) -> Self:
        """Make a database that begins as this one is now, was at a snapshot, or was at a time; copy-on-write.

        Raises:
            OutsideArchive: its snapshots and archived log do not reach that time; facts say from when on they do.
            Conflict: the name is taken.
        """
        made = self._database.clone(name, snapshot=snapshot, target_time=target_time, size=size)
        return type(self)(loop_thread.run(made))

    def attach(self, sandbox_id: str, *, port: int = PORT) -> str:
        """Let a sandbox's programs reach the database on their own loopback, without a network; return their URL."""
        return loop_thread.run(self._database.attach(sandbox_id, port=port))

    def detach(self, sandbox_id: str) -> None:
        """Let a sandbox reach the database no more. Raises `NotFound` when it is not attached."""
        loop_thread.run(self._database.detach(sandbox_id))

    def dump(self, path: str | Path, *, database: str = DATABASE) -> int:
        """Write a consistent dump in `pg_dump`'s custom format to a file here; return its bytes."""
        return loop_thread.run(self._database.dump(path, database=database))
