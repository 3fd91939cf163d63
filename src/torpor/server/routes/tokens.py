"""/v1/tokens and /v1/me: who may come in by TCP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from torpor.access.principal import Principal
from torpor.access.tokens import TokenBook
from torpor.errors import NotAllowed
from torpor.model_access import NewToken, Scope, TokenInfo
from torpor.server.guard import principal_of
from torpor.server.pages import page_of
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES
from torpor.server.wire import Wire

router = APIRouter(prefix="/v1", tags=["tokens"], responses=FAILURES)


class TokenRequest(Wire):
    """What POST /v1/tokens takes."""

    name: Annotated[str, Field(description="1 to 63 of a-z, 0-9, `.`, `_` and `-`.")]
    scope: Scope
    workspace: Annotated[str | None, Field(description="null: that of whoever asks.")] = None
    expires_in_seconds: Annotated[int | None, Field(description="null: never.")] = None


class TokenWire(Wire):
    """One token, without the token itself."""

    id: str
    name: str
    label: Annotated[str, Field(description="Alias of `name`.")]
    prefix: Annotated[str, Field(description="How the token begins.")]
    scope: Scope
    workspace: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: Annotated[datetime | None, Field(description="To the minute.")]

    @staticmethod
    def of(info: TokenInfo) -> TokenWire:
        """Return `info` as JSON has it."""
        return TokenWire(**_fields(info))


class NewTokenWire(TokenWire):
    """A token that was just made."""

    token: Annotated[str, Field(repr=False, description="The secret; it is never shown again.")]

    @staticmethod
    def made(found: NewToken) -> NewTokenWire:
        """Return `found` as JSON has it."""
        return NewTokenWire(token=found.token, **_fields(found.info))


class TokenListWire(Wire):
    """Tokens, the oldest first."""

    items: list[TokenWire]
    next_cursor: str | None


class MeWire(Wire):
    """Who asks."""

    scope: Scope
    workspace: str
    token: Annotated[TokenWire | None, Field(description="null: by the Unix socket.")]


def _fields(info: TokenInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "name": info.name,
        "label": info.name,
        "prefix": info.prefix,
        "scope": info.scope,
        "workspace": info.workspace,
        "created_at": info.created_at,
        "expires_at": info.expires_at,
        "last_used_at": info.last_used_at,
    }


def _tokens(request: Request) -> TokenBook:
    return cast(TokenBook, request.app.state.access.tokens)


Tokens = Annotated[TokenBook, Depends(_tokens)]
Me = Annotated[Principal, Depends(principal_of)]


def _own(me: Principal) -> str | None:
    return None if me.sees_all else me.workspace


@router.post("/tokens", status_code=201, response_model=NewTokenWire)
async def create_token(body: TokenRequest, tokens: Tokens, me: Me) -> Reply:
    """Make a token; the answer is the only place where it is shown."""
    workspace = body.workspace or me.workspace
    if not me.sees(workspace):
        raise NotAllowed(
            f"a token of the workspace {me.workspace!r} makes none for another",
            hint="on the daemon's host: torpor token create NAME --workspace W",
        )
    made = await tokens.create(
        body.name,
        scope=body.scope,
        workspace=workspace,
        expires_in_seconds=body.expires_in_seconds,
    )
    return Reply(NewTokenWire.made(made), 201, {"cache-control": "no-store"})


@router.get("/tokens", response_model=TokenListWire)
async def list_tokens(
    tokens: Tokens,
    me: Me,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    cursor: str | None = None,
) -> Reply:
    """List the workspace's tokens; by the Unix socket those of all."""
    found, after = page_of(tokens.all(_own(me)), lambda info: info.id, limit, cursor)
    return Reply(TokenListWire(items=[TokenWire.of(info) for info in found], next_cursor=after))


@router.delete("/tokens/{token}", status_code=204)
async def delete_token(token: str, tokens: Tokens, me: Me) -> Response:
    """Remove a token, by its id, name or prefix; it is refused from the next request on."""
    await tokens.delete(token, _own(me))
    return Response(status_code=204)


@router.get("/me", response_model=MeWire)
async def get_me(me: Me) -> Reply:
    """Return what the request's token may do, and where."""
    return Reply(
        MeWire(
            scope=me.scope,
            workspace=me.workspace,
            token=None if me.token is None else TokenWire.of(me.token),
        )
    )
