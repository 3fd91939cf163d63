"""Puts the HTTP face together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from torpor import __version__
from torpor.access.opening import Access
from torpor.databases.desk import DatabaseDesk
from torpor.errors import InvalidRequest, NotFound, TorporError
from torpor.recovery.desk import Recovery
from torpor.sandboxes.port import EnginePort
from torpor.server.compat.absent import not_there
from torpor.server.compat.builds import BuildDesk
from torpor.server.compat.dispatch import is_compat
from torpor.server.compat.provision import ProvisionDesk
from torpor.server.compat.routes import ROUTERS as COMPAT_ROUTERS
from torpor.server.compat.words import failure
from torpor.server.execs import ExecDesk
from torpor.server.guard import guard
from torpor.server.holds import HoldDesk
from torpor.server.metrics import Metrics
from torpor.server.previews.links import Listeners
from torpor.server.replays import Replays
from torpor.server.replies import Reply, as_torpor_error, error_reply
from torpor.server.routes import (
    changes,
    checks,
    contexts,
    drills,
    events,
    execs,
    family,
    files,
    holds,
    inventories,
    listeners,
    memory,
    moves,
    ports,
    sandboxes,
    snapshots,
    system,
    templates,
    terminals,
    tokens,
    volumes,
    watches,
)
from torpor.server.routes import databases as databases_routes
from torpor.server.routes import metrics as metrics_routes

HUNG_UP = 499
"""In the log and in figures: the client did not wait for its answer. Others use this number, too."""


@asynccontextmanager
async def serving_app(
    engine: EnginePort, access: Access, recovery: Recovery, databases: DatabaseDesk
) -> AsyncIterator[FastAPI]:
    """Enter with the app for all listeners of `engine`; what it holds is let go at the end."""
    app = create_app(engine, access, recovery, databases)
    try:
        await app.state.builds.start()
        yield app
    finally:
        await app.state.provisions.aclose()
        await app.state.builds.aclose()
        await app.state.desk.aclose()
        await app.state.holds.aclose()


def create_app(
    engine: EnginePort,
    access: Access | None = None,
    recovery: Recovery | None = None,
    databases: DatabaseDesk | None = None,
) -> FastAPI:
    """Return the app that serves `engine`. A gate before it must say who asks; see `Gate`.

    Args:
        engine: what is served.
        access: the home's tokens; None: only to describe the routes.
        recovery: changes to the sandboxes; None: as above.
        databases: the databases on it; None: as above.
    """
    app = FastAPI(
        title="Torpor",
        version=__version__,
        summary="A computer for every AI agent that can be put down and picked up.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
        dependencies=[Depends(guard)],
        exception_handlers={
            TorporError: _on_error,
            RequestValidationError: _on_error,
            HTTPException: _on_error,
            ClientDisconnect: _on_hang_up,
            Exception: _on_error,
        },
    )
    app.state.engine = engine
    app.state.metrics = Metrics()
    app.state.access_log = None
    app.state.desk = ExecDesk(engine, on_end=app.state.metrics.ran)
    app.state.holds = HoldDesk(engine)
    app.state.access = access
    app.state.recovery = recovery
    app.state.provisions = ProvisionDesk()
    app.state.builds = None if recovery is None else BuildDesk(recovery.home, engine)
    app.state.databases = databases
    app.state.open_tcp = None
    app.state.listeners = Listeners()
    if access is not None:
        app.add_middleware(Replays, ledger=access.ledger, engine=engine)
    for router in (
        sandboxes.router,
        moves.router,
        holds.router,
        snapshots.router,
        changes.router,
        drills.router,
        watches.router,
        volumes.router,
        databases_routes.router,
        inventories.router,
        family.router,
        checks.router,
        execs.router,
        contexts.router,
        files.router,
        terminals.router,
        ports.router,
        templates.router,
        memory.router,
        events.router,
        tokens.router,
        listeners.router,
        metrics_routes.router,
        system.router,
        *COMPAT_ROUTERS,
    ):
        app.include_router(router)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _on_hang_up(_request: Request, _error: Exception) -> Response:
    """Answer nobody: the client hung up, which is no failure of ours."""
    return Response(status_code=HUNG_UP)


async def _on_error(request: Request, error: Exception) -> Reply:
    """Answer every failure in the one flat shape."""
    if is_compat(request.scope):
        return _on_compat_error(request, error)
    if isinstance(error, RequestValidationError):
        return error_reply(_invalid(error, request))
    if isinstance(error, HTTPException):
        return _http_failure(error)
    return error_reply(as_torpor_error(error))


def _on_compat_error(request: Request, error: Exception) -> Reply:
    if isinstance(error, RequestValidationError):
        return failure(_invalid(error, request))
    if isinstance(error, HTTPException):
        absent = not_there(request.url.path)
        return failure(absent) if error.status_code in (404, 405) else _http_failure(error)
    return failure(as_torpor_error(error))


def _invalid(error: RequestValidationError, request: Request) -> InvalidRequest:
    """Return what is wrong in words; values are left out, they may be secrets."""
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()[:100]
    if "json" not in sent_as and any(
        tuple(fault["loc"]) == ("body",) and fault["type"] != "missing" for fault in error.errors()
    ):
        return InvalidRequest(
            f"the body is {sent_as or 'of no Content-Type'}, and JSON is wanted",
            hint="send the header Content-Type: application/json",
            content_type=sent_as,
        )
    faults = [
        f"{'.'.join(str(part) for part in fault['loc'] if part != 'body') or 'body'}: {fault['msg']}"
        for fault in error.errors()
    ]
    return InvalidRequest(
        f"the request is not valid: {'; '.join(faults)}",
        hint="GET /v1/openapi.json describes every request",
        faults=faults,
    )


def _http_failure(error: HTTPException) -> Reply:
    found: TorporError
    if error.status_code == 404:
        found = NotFound("there is no such route", hint="GET /v1/openapi.json lists them all")
    else:
        found = InvalidRequest(str(error.detail), status=error.status_code)
    reply = error_reply(found)
    reply.status_code = error.status_code
    reply.headers.update(error.headers or {})
    return reply
