"""What every route asks before it does anything: is this scope enough, and are these ids of this workspace.

The app runs it for all its routes, so that a new router cannot forget it. What a path names must be known here:
either whose it is can be asked, or it is listed as naming nothing that belongs to a workspace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from starlette.requests import HTTPConnection

from torpor.access.principal import Principal
from torpor.databases.desk import DatabaseDesk
from torpor.errors import NotAllowed, NotFound
from torpor.model import SandboxId, SnapshotId
from torpor.model_drills import DrillId
from torpor.recovery.changes.acts import no_change
from torpor.recovery.desk import Recovery
from torpor.recovery.drills.acts import no_drill
from torpor.recovery.drills.desk import no_schedule
from torpor.server.compat.lookup import check_sandbox, check_snapshot
from torpor.server.compat.provision import ProvisionDesk
from torpor.server.scopes import HOST, scope_of
from torpor.server.view import EngineView
from torpor.server.view_databases import DatabasesView

Check = Callable[[HTTPConnection, EngineView, str], Awaitable[object]]


async def _owns_change(connection: HTTPConnection, view: EngineView, change_id: str) -> None:
    """Raise `NotFound` for a change of a sandbox that the request does not see."""
    recovery = cast(Recovery, connection.app.state.recovery)
    info = await recovery.changes.get(change_id)
    try:
        await view.get(info.sandbox_id)
    except NotFound as exc:
        raise no_change(change_id) from exc


async def _owns_or_begins_database(connection: HTTPConnection, view: EngineView, name: str) -> None:
    """Raise `NotFound` for a database that the request does not see, not even as one that is being made."""
    provisions = cast(ProvisionDesk, connection.app.state.provisions)
    if provisions.find(principal_of(connection).workspace, name) is None:
        await _owns_database(connection, view, name)


async def _owns_database(connection: HTTPConnection, _view: EngineView, name: str) -> None:
    """Raise `NotFound` for a database that the request does not see."""
    await databases_of(connection).id_of(name)


async def _owns_drill(connection: HTTPConnection, _view: EngineView, drill_id: str) -> None:
    """Raise `NotFound` for a drill of another workspace."""
    recovery = cast(Recovery, connection.app.state.recovery)
    info = await recovery.drills.get(drill_id)
    if not principal_of(connection).sees(info.workspace):
        raise no_drill(DrillId(drill_id))


async def _owns_schedule(connection: HTTPConnection, _view: EngineView, schedule_id: str) -> None:
    """Raise `NotFound` for a schedule of another workspace."""
    recovery = cast(Recovery, connection.app.state.recovery)
    info = await recovery.drills.get_schedule(schedule_id)
    if not principal_of(connection).sees(info.workspace):
        raise no_schedule(schedule_id)


OWNED: Mapping[str, Check] = {
    "change_id": _owns_change,
    "sandbox": check_sandbox,
    "database": _owns_database,
    "db": _owns_or_begins_database,
    "drill_id": _owns_drill,
    "schedule_id": _owns_schedule,
    "sandbox_id": lambda _, view, found: view.get(SandboxId(found)),
    "snap": check_snapshot,
    "snapshot_id": lambda _, view, found: view.get_snapshot(SnapshotId(found)),
    "volume": lambda _, view, found: view.volumes.id_of(found),
}
"""Names in paths, and how to ask for what they name; asking for what is elsewhere raises `NotFound`."""

UNOWNED = frozenset(
    {"build_id", "context_id", "exec_id", "hold_id", "name", "port", "session", "snapshot", "token"}
)
"""Names in paths of what is inside something that is asked for, shared by all, or looked up in the workspace."""


def principal_of(connection: HTTPConnection) -> Principal:
    """Return on whose behalf a request is carried out; the gate has let them in."""
    return cast(Principal, connection.state.principal)


def view_of(connection: HTTPConnection) -> EngineView:
    """Return the engine as the request sees it."""
    return EngineView(
        connection.app.state.engine,
        principal_of(connection),
        connection.app.state.metrics,
        getattr(connection.state, "plan", None),
    )


def databases_of(connection: HTTPConnection) -> DatabasesView:
    """Return the databases as the request sees them."""
    desk = cast(DatabaseDesk, connection.app.state.databases)
    return DatabasesView(desk, principal_of(connection), view_of(connection).get)


async def guard(connection: HTTPConnection) -> None:
    """Let the request go on to its route.

    Raises:
        NotAllowed: its scope is not enough.
        NotFound: the path names what is not there, or not in its workspace.
    """
    principal = principal_of(connection)
    route = connection.scope["route"]
    needed = scope_of(route.name)
    if not principal.scope.covers(needed):
        raise NotAllowed(
            f"this needs a token of scope `{needed}`; this one has `{principal.scope}`",
            hint="make one: torpor token create NAME --scope " + needed,
            needed=str(needed),
        )
    if route.name in HOST and not principal.sees_host:
        raise NotAllowed(
            f"this shows the whole host; a token of the workspace {principal.workspace!r} may not see it",
            hint="use a token of the workspace `default`",
        )
    if not principal.sees_all:
        view = view_of(connection)
        for name, value in connection.path_params.items():
            if name in OWNED:
                await OWNED[name](connection, view, value)
            elif name not in UNOWNED:
                raise NotAllowed(f"nobody said whose a {name} is", hint="report this as a bug")
