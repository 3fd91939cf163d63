"""`AsyncDatabase`: a PostgreSQL of one's own, as an object."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from torpor.base.aio import closing
from torpor.errors import InvalidRequest, TorporError, error_from_wire
from torpor.model_databases import (
    DATABASE,
    DatabaseId,
    DatabaseInfo,
    DatabaseSnapshot,
    DatabaseState,
    DatabaseStep,
)
from torpor.sdk.client import Client, Connection, connection, quote_part, raw_bytes, resolved
from torpor.sdk.database_results import (
    LIFE_LIMIT_S,
    database_info,
    database_snapshot,
    database_step,
)
from torpor.sdk.sse import sse_events

PORT = 5432
"""Where a sandbox finds a database that it is attached to, unless another is asked for."""


class AsyncDatabase:
    """One database. Made by `create`, `get` or `list`; `handle` makes one of a name without asking."""

    def __init__(self, name: str, info: DatabaseInfo | None, client: Client | None) -> None:
        self._name = name
        self._info = info
        self._url: str | None = None
        self._client = resolved(client)

    @classmethod
    async def create(
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

        The first on a host builds the template and sets a first PostgreSQL up, which takes minutes; the next have it.

        Args:
            name: 1 to 55 of a-z, 0-9, '.', '_' and '-'; unique.
            size: what its volume may grow to hold: `1g`, `16g`, or bytes; 1 GiB or more. It takes what is written.
            ram_mib: memory of its machine in MiB; None: as the template says. The server's settings follow it.
            vcpus: CPUs of its machine; None: as the template says.
            idle_seconds: hibernate after so long without a connection; None: never by itself.
            progress: called with each step as it begins.
            client: which daemon; None: as the environment says.

        Raises:
            Conflict: the name is taken.
            InvalidRequest: the name cannot be one, or the size is too small.
            LimitExceeded: a quota of the daemon is full.
            InsufficientResources: the host has no memory or disk for it.
            BuildFailed, HostNotReady: the template could not be built. In all cases nothing is left.
        """
        body = {
            "name": name,
            "size": size,
            "ram_mib": ram_mib,
            "vcpus": vcpus,
            "idle_seconds": idle_seconds,
        }
        async with (
            connection(client).stream("POST", "/v1/databases/stream", body=body) as reply,
            closing(sse_events(raw_bytes(reply))) as events,
        ):
            async for event in events:
                if event.name == "error":
                    raise error_from_wire(event.data)
                if event.name == "progress" and progress is not None:
                    progress(database_step(event.data))
                if event.name == "done":
                    return await cls._made(event.data, client)
        raise TorporError("the create ended without a database", hint="see the daemon's log")

    @classmethod
    async def _made(cls, body: Any, client: Client | None) -> Self:
        info = database_info(body)
        found = cls(info.name, info, client)
        await found.url()
        return found

    @classmethod
    async def get(cls, name: str, *, client: Client | None = None) -> Self:
        """Return the database with that name or id. Raises `NotFound`."""
        found = cls.handle(name, client=client)
        found._name = (await found.refresh()).name
        if found.info.state is not DatabaseState.CREATING:
            await found.url()
        return found

    @classmethod
    async def list(cls, *, client: Client | None = None) -> builtins.list[Self]:
        """Return all databases, by name."""
        body = await connection(client).call("GET", "/v1/databases")
        found = [database_info(item) for item in body["databases"]]
        return [cls(info.name, info, client) for info in found]

    @classmethod
    def handle(cls, name: str, *, client: Client | None = None) -> Self:
        """Return an object for a name or id without asking the daemon whether it exists."""
        return cls(name, None, client)

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def id(self) -> DatabaseId:
        """Its id, `db_…`."""
        return self.info.id

    @property
    def info(self) -> DatabaseInfo:
        """What was so when the daemon was last asked; `refresh` asks again."""
        if self._info is None:
            raise TorporError(
                f"nothing is known of database {self._name} yet", hint="call refresh()"
            )
        return self._info

    @property
    def connection_url(self) -> str:
        """`postgresql://…` with the password, on 127.0.0.1 of the daemon's host. Known after `create`, `get` or `url`."""
        if self._url is None:
            raise TorporError(
                f"the URL of database {self._name} was not asked for yet", hint="call url()"
            )
        return self._url

    @property
    def client(self) -> Client:
        """The daemon that has it."""
        return self._client

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/databases/{quote_part(self._name)}"

    async def refresh(self) -> DatabaseInfo:
        """Ask what is so about the database."""
        self._info = database_info(await self._connection.call("GET", self._path))
        return self._info

    async def url(self) -> str:
        """Ask for the URL that clients connect with; it has the password."""
        body = await self._connection.call("GET", f"{self._path}/connection")
        self._url = str(body["connection_url"])
        return self._url

    async def delete(self, *, keep_volume: bool = False) -> None:
        """Delete the database with its machine, and its volume too unless that is kept. Clones of it stay.

        Args:
            keep_volume: leave the volume, `db-NAME`, with all data; the server is stopped cleanly before.

        Raises:
            Conflict: snapshots of its machine are kept, which need the volume; nothing was deleted.
        """
        await self._connection.call(
            "DELETE", self._path, query={"keep_volume": keep_volume}, limit_s=LIFE_LIMIT_S
        )

    async def wake(self) -> DatabaseInfo:
        """Return when it runs: one that sleeps is woken, one that lost its machine gets a new one. Idempotent."""
        return await self._changed("wake", None)

    async def hibernate(self) -> DatabaseInfo:
        """Put it to sleep: open connections break, and the next one wakes it. Idempotent."""
        return await self._changed("hibernate", None)

    async def set_idle(self, idle_seconds: int | None) -> DatabaseInfo:
        """Let it hibernate by itself after so long without a connection; None: never."""
        self._info = database_info(
            await self._connection.call("PATCH", self._path, body={"idle_seconds": idle_seconds})
        )
        return self._info

    async def grow(self, size: str | int) -> DatabaseInfo:
        """Make its volume larger, while it runs. Can be repeated.

        Raises:
            InvalidRequest: it would become smaller.
            LimitExceeded, InsufficientResources: no quota or no disk; nothing was changed.
        """
        return await self._changed("grow", {"size": size})

    async def upgrade(self, *, build: bool = True) -> DatabaseInfo:
        """Stop it cleanly and let it go on in a new machine with PostgreSQL's newest minor version.

        A snapshot is taken before. After a failure the data is as it was, and the next connection gets a machine.

        Args:
            build: build the template anew, with the packages that Debian has now; False: take the one that is there.
        """
        return await self._changed("upgrade", {"build": build})

    async def _changed(self, action: str, body: dict[str, Any] | None) -> DatabaseInfo:
        self._info = database_info(
            await self._connection.call(
                "POST", f"{self._path}/{action}", body=body, limit_s=LIFE_LIMIT_S
            )
        )
        return self._info

    async def reset_password(self) -> str:
        """Give it a new password and end all sessions; return the new `connection_url`.

        After a failure the new password is kept, and set before anyone connects.
        """
        body = await self._connection.call(
            "POST", f"{self._path}/reset-password", limit_s=LIFE_LIMIT_S
        )
        self._url = str(body["connection_url"])
        return self._url

    async def snapshot(self, *, label: str | None = None) -> DatabaseSnapshot:
        """Take a snapshot while it runs; it costs what is written from here on.

        Raises:
            Conflict: it has a snapshot with that label.
        """
        return database_snapshot(
            await self._connection.call(
                "POST", f"{self._path}/snapshots", body={"label": label}, limit_s=LIFE_LIMIT_S
            )
        )

    async def snapshots(self) -> builtins.list[DatabaseSnapshot]:
        """Return its snapshots, the newest first."""
        body = await self._connection.call("GET", f"{self._path}/snapshots")
        return [database_snapshot(item) for item in body["snapshots"]]

    async def delete_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot of it, by id or label; clones stay. Raises `NotFound`."""
        path = f"{self._path}/snapshots/{quote_part(snapshot)}"
        await self._connection.call("DELETE", path, limit_s=LIFE_LIMIT_S)

    async def clone(
        self,
        name: str | None = None,
        *,
        snapshot: str | None = None,
        target_time: datetime | str | None = None,
        size: str | int | None = None,
    ) -> Self:
        """Make a database that begins as this one and goes its own way, copy-on-write, with a password of its own.

        Args:
            name: of the new database; None: this one's with `-clone` behind it.
            snapshot: id or label of a snapshot to begin at; None: as it is now.
            target_time: begin as it was at that time: all that was committed by then, nothing later. With a time zone
                (a `datetime`, or RFC 3339 text).
            size: of its volume, not less than this one's; None: the same.

        Raises:
            OutsideArchive: its snapshots and archived log do not reach that time; facts say from when on they do.
            Conflict: the name is taken.
            TorporError: as `create`. In all cases nothing is left, and this database is as it was.
        """
        body = {
            "name": name or f"{self._name}-clone",
            "snapshot": snapshot,
            "target_time": _text(target_time),
            "size": size,
        }
        made = await self._connection.call(
            "POST", f"{self._path}/clone", body=body, limit_s=LIFE_LIMIT_S
        )
        return await self._made(made, self._client)

    async def attach(self, sandbox_id: str, *, port: int = PORT) -> str:
        """Let a sandbox's programs reach the database on their own loopback, without a network; return their URL.

        It lasts until `detach`, also when the sandbox sleeps or is rolled back. A fork of the sandbox does not have it.
        Idempotent.

        Args:
            sandbox_id: which sandbox; one that sleeps is woken.
            port: of 127.0.0.1 in that sandbox.

        Raises:
            NotFound: there is no such sandbox.
            WrongState: it has failed or ended.
            Conflict: something in it listens on that port.
        """
        body = {"sandbox_id": sandbox_id, "port": port}
        found = await self._connection.call(
            "POST", f"{self._path}/attachments", body=body, limit_s=LIFE_LIMIT_S
        )
        return str(found["connection_url"])

    async def detach(self, sandbox_id: str) -> None:
        """Let a sandbox reach the database no more. Raises `NotFound` when it is not attached."""
        path = f"{self._path}/attachments/{quote_part(sandbox_id)}"
        await self._connection.call("DELETE", path, limit_s=LIFE_LIMIT_S)

    async def dump(self, path: str | Path, *, database: str = DATABASE) -> int:
        """Write a consistent dump in `pg_dump`'s custom format to a file here, for `pg_restore`; return its bytes.

        The file is there whole or not at all, with mode 0600.

        Args:
            path: of the file; one that is there is replaced.
            database: which of the server's.

        Raises:
            InvalidRequest: no file can be written there.
        """
        from torpor.sdk.database_dump import check_place, write_dump

        await check_place(Path(path))  # before a large database is dumped for nothing
        async with self._connection.stream(
            "GET", f"{self._path}/dump", query={"of": database}, limit_s=LIFE_LIMIT_S
        ) as reply:
            return await write_dump(raw_bytes(reply, limit_s=LIFE_LIMIT_S), Path(path))


def _text(target_time: datetime | str | None) -> str | None:
    if isinstance(target_time, str):
        try:
            target_time = datetime.fromisoformat(target_time)
        except ValueError as exc:
            raise InvalidRequest(
                f"target_time {target_time!r} is no time",
                hint="such as 2026-01-31T12:00:00Z, with a time zone",
            ) from exc
    if target_time is None:
        return None
    if target_time.tzinfo is None:
        raise InvalidRequest(
            f"target_time {target_time.isoformat()} has no time zone",
            hint="say which: 2026-01-31T12:00:00Z, datetime.now(UTC), or …astimezone()",
        )
    return target_time.isoformat()
