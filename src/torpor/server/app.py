"""Puts the HTTP face together."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from torpor import __version__
from torpor.errors import InvalidRequest, NotFound, TorporError
from torpor.sandboxes.port import EnginePort
from torpor.server.execs import ExecDesk
from torpor.server.gate import Gate
from torpor.server.holds import HoldDesk
from torpor.server.replies import Reply, as_torpor_error, error_reply
from torpor.server.routes import (
    execs,
    family,
    files,
    holds,
    memory,
    moves,
    sandboxes,
    snapshots,
    system,
    templates,
)


def create_app(engine: EnginePort, *, token: str | None) -> FastAPI:
    """Return the app that serves `engine`.

    Args:
        token: what `Authorization: Bearer` must show; None for a Unix socket, whose mode is its lock.
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
        exception_handlers={
            TorporError: _on_error,
            RequestValidationError: _on_error,
            HTTPException: _on_error,
            Exception: _on_error,
        },
    )
    app.state.engine = engine
    app.state.desk = ExecDesk(engine)
    app.state.holds = HoldDesk(engine)
    app.add_middleware(Gate, token=token)
    for router in (
        sandboxes.router,
        moves.router,
        holds.router,
        snapshots.router,
        family.router,
        execs.router,
        files.router,
        templates.router,
        memory.router,
        system.router,
    ):
        app.include_router(router)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _on_error(_request: Request, error: Exception) -> Reply:
    """Answer every failure in the one flat shape."""
    if isinstance(error, RequestValidationError):
        return error_reply(_invalid(error))
    if isinstance(error, HTTPException):
        return _http_failure(error)
    return error_reply(as_torpor_error(error))


def _invalid(error: RequestValidationError) -> InvalidRequest:
    """Return what is wrong in words; values are left out, they may be secrets."""
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
