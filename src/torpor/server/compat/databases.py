"""/pandastack/v1/databases: managed PostgreSQL. A database's id is its name here; its label becomes that name."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from fastapi import APIRouter, Response
from pydantic import Field

from torpor.databases.branches import CloneSpec
from torpor.errors import Conflict, InvalidRequest, NotOffered
from torpor.model_databases import DatabaseInfo, DatabaseSpec, DatabaseState
from torpor.server.compat.deps import Provisions
from torpor.server.compat.dispatch import PREFIX
from torpor.server.compat.provision import Provision
from torpor.server.compat.tokens import name_for
from torpor.server.compat.wire import Asked
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Databases
from torpor.server.routes.tokens import Me
from torpor.server.view_databases import DatabasesView
from torpor.server.wire import Wire

router = APIRouter(prefix=f"{PREFIX}/v1/databases", tags=["pandastack"], responses=FAILURES)

IDLE_S = 300
"""Seconds without a connection after which a database sleeps that is not `always_on`."""
_SIZES_MIB = {"1g": 1024, "4g": 4096, "16g": 16384}
_STATUS = {
    DatabaseState.CREATING: "provisioning",
    DatabaseState.PAUSED: "running",
    DatabaseState.DOWN: "hibernated",
    DatabaseState.DELETING: "deleting",
}

Size = Literal["1g", "4g", "16g"]


class DatabaseAsked(Asked):
    """What POST /databases takes; nothing is needed."""

    label: str | None = None
    size: Annotated[Size | None, Field(description="RAM; null: the template's.")] = None
    cpu: int | None = None
    memory_mb: int | None = None
    always_on: Annotated[
        bool | None, Field(description=f"Else it sleeps after {IDLE_S} s without a connection.")
    ] = None


class CloneAsked(Asked):
    """What POST …/clone takes; nothing is needed."""

    label: str | None = None
    target_time: Annotated[datetime | None, Field(description="null: as it is now.")] = None
    size: Size | None = None


class UpdateAsked(Asked):
    """What PATCH /databases/{db} takes."""

    always_on: bool


class DatabaseTold(Wire):
    """One database. Who connects to one that sleeps wakes it."""

    id: str
    status: Annotated[str, Field(description="`provisioning running hibernated failed deleting`")]
    label: str
    error: str | None = None
    created_at: int | None = None
    template: str = "postgres"
    host: str | None = None
    port: int | None = None
    database: str | None = None
    username: str | None = None
    password: Annotated[str | None, Field(repr=False)] = None
    connection_url: Annotated[str | None, Field(repr=False)] = None
    broker_url: None = None
    broker_token: None = None
    failover_available: bool = False
    failover_reason: str = "this daemon serves one host"
    size: str | None = None
    always_on: bool = False
    sandbox_id: str | None = None
    cloned_from: str | None = None

    @staticmethod
    def of(info: DatabaseInfo, url: str | None = None) -> DatabaseTold:
        """Return `info` as JSON has it, with what is needed to connect if `url` is given."""
        password = None if url is None else urlsplit(url).password
        return DatabaseTold(
            id=info.name,
            status=_STATUS.get(info.state, info.state.value),
            label=info.name,
            created_at=int(info.created_at.timestamp()),
            host=info.host,
            port=info.port,
            database=info.database,
            username=info.username,
            password=None if password is None else unquote(password),
            connection_url=url,
            size=next((k for k, v in _SIZES_MIB.items() if v == info.ram_mib), None),
            always_on=info.idle_seconds is None,
            sandbox_id=info.sandbox_id,
            cloned_from=info.parent,
        )

    @staticmethod
    def begun(provision: Provision) -> DatabaseTold:
        """Return one that is being made, or could not be."""
        status = "provisioning" if provision.error is None else "failed"
        return DatabaseTold(
            id=provision.name, label=provision.name, status=status, error=provision.error
        )


class DatabasesTold(Wire):
    """The databases, by name, without what is needed to connect."""

    items: list[DatabaseTold]
    count: int


class BegunTold(Wire):
    """Something that goes on; ask for the database until it is `running`."""

    id: str
    status: str
    cloned_from: str | None = None


class ConnectionTold(Wire):
    """What is needed to connect, from the daemon's host."""

    connection_url: Annotated[str, Field(repr=False)]
    broker_url: None = None
    broker_token: None = None


@router.post("", status_code=202, response_model=BegunTold)
async def pandastack_create_database(
    body: DatabaseAsked, databases: Databases, provisions: Provisions, me: Me
) -> Reply:
    """Begin to make a database, and answer at once."""
    spec = DatabaseSpec(
        name=await _free_name(databases, provisions, me.workspace, body.label or "db"),
        ram_mib=_SIZES_MIB[body.size] if body.size else body.memory_mb,
        vcpus=body.cpu,
        idle_seconds=None if body.always_on else IDLE_S,
    )
    provisions.begin(me.workspace, spec.name, lambda tell: databases.create(spec, tell))
    return Reply(BegunTold(id=spec.name, status="provisioning"), 202)


async def _free_name(
    databases: DatabasesView, provisions: Provisions, workspace: str, label: str
) -> str:
    """Return a name made of a label, which several databases may have."""
    name = name_for(label)[:56].rstrip("._-")
    taken = {info.name for info in await databases.list()}
    if name in taken or provisions.find(workspace, name) is not None:
        name = f"{name}-{secrets.token_hex(3)}"
    return name


@router.get("", response_model=DatabasesTold)
async def pandastack_list_databases(databases: Databases) -> Reply:
    """List the databases."""
    items = [DatabaseTold.of(info) for info in await databases.list()]
    return Reply(DatabasesTold(items=items, count=len(items)))


@router.get("/{db}", response_model=DatabaseTold)
async def pandastack_get_database(
    db: str, databases: Databases, provisions: Provisions, me: Me
) -> Reply:
    """Return one database, with its password when it can be connected to."""
    provision = provisions.find(me.workspace, db)
    if provision is not None:
        return Reply(DatabaseTold.begun(provision))
    info = await databases.get(db)
    url = None if info.state is DatabaseState.CREATING else await databases.url(db)
    return Reply(DatabaseTold.of(info, url), headers={"cache-control": "no-store"})


@router.get("/{db}/connection", response_model=ConnectionTold)
async def pandastack_get_database_connection(db: str, databases: Databases) -> Reply:
    """Return what is needed to connect."""
    told = ConnectionTold(connection_url=await databases.url(db))
    return Reply(told, headers={"cache-control": "no-store"})


@router.delete("/{db}", status_code=204)
async def pandastack_delete_database(
    db: str, databases: Databases, provisions: Provisions, me: Me
) -> Response:
    """Delete a database with its data."""
    provision = provisions.find(me.workspace, db)
    if provision is not None and provision.error is None:
        raise Conflict(f"database {db} is still being made", hint="wait until it runs")
    if provision is not None:
        provisions.forget(me.workspace, db)
    else:
        await databases.delete(db)
    return Response(status_code=204)


@router.post("/{db}/wake", status_code=202, response_model=BegunTold)
async def pandastack_wake_database(db: str, databases: Databases) -> Reply:
    """Let a database run, and answer when it does."""
    info = await databases.wake(db)
    return Reply(BegunTold(id=info.name, status=_STATUS.get(info.state, info.state.value)), 202)


@router.post("/{db}/clone", status_code=202, response_model=BegunTold)
async def pandastack_clone_database(
    db: str,
    databases: Databases,
    provisions: Provisions,
    me: Me,
    body: CloneAsked | None = None,
) -> Reply:
    """Begin to make a database that begins as this one is, or was at a time."""
    wish = body or CloneAsked()
    source = await databases.get(db)
    if wish.size is not None and _SIZES_MIB[wish.size] != source.ram_mib:
        raise NotOffered("this daemon does not offer clones of another size than their source's")
    if wish.target_time is not None and wish.target_time.tzinfo is None:
        raise InvalidRequest(
            "target_time has no time zone", hint="for example 2026-08-06T09:30:00Z"
        )
    label = wish.label or f"{source.name}-clone"
    name = await _free_name(databases, provisions, me.workspace, label)
    spec = CloneSpec(name=name, target_time=wish.target_time)
    provisions.begin(me.workspace, name, lambda tell: databases.clone(source.id, spec, tell))
    return Reply(BegunTold(id=name, status="provisioning", cloned_from=source.name), 202)


@router.post("/{db}/reset-credentials", response_model=DatabaseTold)
async def pandastack_reset_database_credentials(db: str, databases: Databases) -> Reply:
    """Give the database a new password; sessions with the old one end."""
    url = await databases.reset_password(db)
    told = DatabaseTold.of(await databases.get(db), url)
    return Reply(told, headers={"cache-control": "no-store"})


@router.post("/{db}/failover", response_model=DatabaseTold)
async def pandastack_fail_database_over(db: str, databases: Databases) -> Reply:
    """Not offered: there is one host."""
    await databases.get(db)
    raise NotOffered("this daemon does not offer a failover: it serves one host")


@router.patch("/{db}", response_model=DatabaseTold)
async def pandastack_update_database(db: str, body: UpdateAsked, databases: Databases) -> Reply:
    """Let a database run on without connections (`always_on`), or sleep."""
    idle_seconds = None if body.always_on else IDLE_S
    info = await databases.set_idle(db, idle_seconds)
    told = DatabaseTold.of(info, await databases.url(db))
    return Reply(told, headers={"cache-control": "no-store"})
