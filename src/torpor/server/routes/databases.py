"""/v1/databases: PostgreSQL servers, each in a sandbox of its own with its data on a volume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query, Response

from torpor.base.aio import Supervisor
from torpor.model_databases import DATABASE, DatabaseInfo, DatabaseSpec, DatabaseStep
from torpor.server.replies import Reply, Streamed, event_stream, sse, streamed
from torpor.server.routes.deps import EVENTS, FAILURES, Databases, streams
from torpor.server.view_databases import DatabasesView
from torpor.server.wire_databases import (
    DatabaseAttachRequest,
    DatabaseChangeRequest,
    DatabaseCloneRequest,
    DatabaseGrowRequest,
    DatabaseListWire,
    DatabaseRequest,
    DatabaseSnapshotListWire,
    DatabaseSnapshotRequest,
    DatabaseSnapshotWire,
    DatabaseStepWire,
    DatabaseUrlWire,
    DatabaseWire,
    UpgradeRequest,
    size_of,
)

router = APIRouter(prefix="/v1/databases", tags=["databases"], responses=FAILURES)


def _silent(_step: DatabaseStep) -> None:
    pass


@router.post("", status_code=201, response_model=DatabaseWire)
async def create_database(body: DatabaseRequest, databases: Databases) -> Reply:
    """Make a database; the answer comes when a query through its URL was answered."""
    return Reply(DatabaseWire.of(await databases.create(body.spec(), _silent)), 201)


@router.post(
    "/stream",
    response_class=Response,
    responses=streams(EVENTS, "`progress`; `done` with the database or `error` last."),
)
async def create_database_stream(body: DatabaseRequest, databases: Databases) -> Streamed:
    """Make a database, and stream events: `progress`, and `done` (with the database) or `error` last."""
    return await event_stream(_created(databases, body.spec()), first_within_s=2.0)


async def _created(databases: DatabasesView, spec: DatabaseSpec) -> AsyncGenerator[bytes, None]:
    steps: asyncio.Queue[DatabaseStep | None] = asyncio.Queue()

    async def work() -> DatabaseInfo:
        try:
            return await databases.create(spec, steps.put_nowait)
        finally:
            steps.put_nowait(None)

    task = Supervisor(lambda _name, _error: None).spawn(work(), name=f"create {spec.name}")
    while (step := await steps.get()) is not None:
        yield sse("progress", DatabaseStepWire.of(step))
    yield sse("done", DatabaseWire.of(await task))


@router.get("", response_model=DatabaseListWire)
async def list_databases(databases: Databases) -> Reply:
    """List the databases, by name."""
    found = [DatabaseWire.of(info) for info in await databases.list()]
    return Reply(DatabaseListWire(databases=found))


@router.get("/{database}", response_model=DatabaseWire)
async def get_database(database: str, databases: Databases) -> Reply:
    """Return one database, by name or id; its password is not in it."""
    return Reply(DatabaseWire.of(await databases.get(database)))


@router.get("/{database}/connection", response_model=DatabaseUrlWire)
async def get_database_connection(database: str, databases: Databases) -> Reply:
    """Return the URL that clients on this host connect with; the password is in it."""
    return Reply(DatabaseUrlWire(connection_url=await databases.url(database)))


@router.patch("/{database}", response_model=DatabaseWire)
async def change_database(
    database: str, body: DatabaseChangeRequest, databases: Databases
) -> Reply:
    """Say after how long without a connection the database hibernates by itself."""
    return Reply(DatabaseWire.of(await databases.set_idle(database, body.idle_seconds)))


@router.delete("/{database}", status_code=204)
async def delete_database(
    database: str, databases: Databases, keep_volume: bool = False
) -> Response:
    """Delete a database with its machine and, unless it is kept, its volume; clones of it stay."""
    await databases.delete(database, keep_volume=keep_volume)
    return Response(status_code=204)


@router.post("/{database}/clone", status_code=201, response_model=DatabaseWire)
async def clone_database(database: str, body: DatabaseCloneRequest, databases: Databases) -> Reply:
    """Make a database that begins as this one is now, was at a snapshot, or was at a time; copy-on-write."""
    return Reply(DatabaseWire.of(await databases.clone(database, body.spec(), _silent)), 201)


@router.post("/{database}/wake", response_model=DatabaseWire)
async def wake_database(database: str, databases: Databases) -> Reply:
    """Answer when the database runs; one without a machine gets one."""
    return Reply(DatabaseWire.of(await databases.wake(database)))


@router.post("/{database}/hibernate", response_model=DatabaseWire)
async def hibernate_database(database: str, databases: Databases) -> Reply:
    """Put the database to sleep; the next connection wakes it."""
    return Reply(DatabaseWire.of(await databases.hibernate(database)))


@router.post("/{database}/grow", response_model=DatabaseWire)
async def grow_database(database: str, body: DatabaseGrowRequest, databases: Databases) -> Reply:
    """Make the database's volume larger, while it runs."""
    return Reply(DatabaseWire.of(await databases.grow(database, size_of(body.size))))


@router.post("/{database}/reset-password", response_model=DatabaseUrlWire)
async def reset_database_password(database: str, databases: Databases) -> Reply:
    """Give the database a new password, end all sessions, and return the new URL."""
    return Reply(DatabaseUrlWire(connection_url=await databases.reset_password(database)))


@router.post("/{database}/upgrade", response_model=DatabaseWire)
async def upgrade_database(
    database: str, databases: Databases, body: UpgradeRequest | None = None
) -> Reply:
    """Stop the server cleanly and go on in a new machine with PostgreSQL's newest minor version."""
    wish = body or UpgradeRequest()
    return Reply(DatabaseWire.of(await databases.upgrade(database, build=wish.build)))


@router.post("/{database}/snapshots", status_code=201, response_model=DatabaseSnapshotWire)
async def take_database_snapshot(
    database: str, databases: Databases, body: DatabaseSnapshotRequest | None = None
) -> Reply:
    """Take a snapshot of the database while it runs."""
    wish = body or DatabaseSnapshotRequest()
    made = await databases.snapshot(database, label=wish.label)
    return Reply(DatabaseSnapshotWire.of(made), 201)


@router.get("/{database}/snapshots", response_model=DatabaseSnapshotListWire)
async def list_database_snapshots(database: str, databases: Databases) -> Reply:
    """List the database's snapshots, the newest first."""
    found = [DatabaseSnapshotWire.of(s) for s in await databases.snapshots(database)]
    return Reply(DatabaseSnapshotListWire(snapshots=found))


@router.delete("/{database}/snapshots/{snapshot}", status_code=204)
async def delete_database_snapshot(database: str, snapshot: str, databases: Databases) -> Response:
    """Delete a snapshot of the database, by id or label."""
    await databases.delete_snapshot(database, snapshot)
    return Response(status_code=204)


@router.post("/{database}/attachments", status_code=201, response_model=DatabaseUrlWire)
async def attach_database(
    database: str, body: DatabaseAttachRequest, databases: Databases
) -> Reply:
    """Let a sandbox's programs reach the database on their own loopback; the answer has the URL for them."""
    url = await databases.attach(database, body.sandbox_id, body.port)
    return Reply(DatabaseUrlWire(connection_url=url), 201)


@router.delete("/{database}/attachments/{sandbox_id}", status_code=204)
async def detach_database(database: str, sandbox_id: str, databases: Databases) -> Response:
    """Let a sandbox reach the database no more."""
    await databases.detach(database, sandbox_id)
    return Response(status_code=204)


@router.get(
    "/{database}/dump",
    response_class=Response,
    responses=streams("application/octet-stream", "What `pg_dump -Fc` wrote."),
)
async def dump_database(
    database: str,
    databases: Databases,
    of: Annotated[str, Query(min_length=1, max_length=63, description="Which of the server's.")] = (
        DATABASE
    ),
) -> Streamed:
    """Stream a consistent dump, for `pg_restore`; if it cannot be had to the end, the connection is cut."""
    return await streamed(databases.dump(database, of), media_type="application/octet-stream")
