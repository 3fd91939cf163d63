"""/pandastack/v1/me…: who asks, and tokens."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from torpor.errors import InvalidRequest
from torpor.model_access import Scope, TokenInfo
from torpor.server.compat.dispatch import PREFIX
from torpor.server.compat.wire import Asked
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES
from torpor.server.routes.tokens import Me, Tokens
from torpor.server.wire import Wire

router = APIRouter(prefix=f"{PREFIX}/v1/me", tags=["pandastack"], responses=FAILURES)

_DAY_S = 86400


class TokenAsked(Asked):
    """What POST /me/tokens takes."""

    label: Annotated[
        str, Field(description="Becomes the token's name, in a-z, 0-9, `.`, `_`, `-`.")
    ]
    expires_in_days: Annotated[int | None, Field(description="null: never.")] = None


class TokenTold(Wire):
    """One token, without the token itself."""

    prefix: str
    label: str
    name: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None


class NewTokenTold(TokenTold):
    """A token that was just made."""

    token: Annotated[str, Field(repr=False, description="The secret; it is never shown again.")]


class TokensTold(Wire):
    """Tokens, the oldest first."""

    items: list[TokenTold]


class MeTold(Wire):
    """Who asks."""

    workspace: str
    scope: Scope
    token: TokenTold | None


@router.get("", response_model=MeTold)
async def pandastack_get_me(me: Me) -> Reply:
    """Return what the request's token may do, and where."""
    token = None if me.token is None else _told(me.token)
    return Reply(MeTold(workspace=me.workspace, scope=me.scope, token=token))


@router.get("/tokens", response_model=TokensTold)
async def pandastack_list_tokens(tokens: Tokens, me: Me) -> Reply:
    """List the workspace's tokens."""
    found = tokens.all(None if me.sees_all else me.workspace)
    return Reply(TokensTold(items=[_told(info) for info in found]))


@router.post("/tokens", status_code=201, response_model=NewTokenTold)
async def pandastack_create_token(body: TokenAsked, tokens: Tokens, me: Me) -> Reply:
    """Make a token of scope `use`: all that is done with sandboxes, and nothing that acts on the host."""
    days = body.expires_in_days
    made = await tokens.create(
        name_for(body.label),
        scope=Scope.USE,
        workspace=me.workspace,
        expires_in_seconds=None if days is None else days * _DAY_S,
    )
    told = NewTokenTold(token=made.token, **_told(made.info).model_dump())
    return Reply(told, 201, {"cache-control": "no-store"})


@router.delete("/tokens/{token}", status_code=204)
async def pandastack_delete_token(token: str, tokens: Tokens, me: Me) -> Response:
    """Remove a token, by its prefix or name; it is refused from the next request on."""
    await tokens.delete(token, None if me.sees_all else me.workspace)
    return Response(status_code=204)


def name_for(label: str) -> str:
    """Return the name for a label, which may be any text. Raises `InvalidRequest` for one without a letter or digit."""
    found = re.sub(r"[^a-z0-9._-]+", "-", label.lower())[:63].strip("._-")
    if not found:
        raise InvalidRequest(
            f"the label {label[:80]!r} has no letter or digit", hint="label it, for example, ci"
        )
    return found


def _told(info: TokenInfo) -> TokenTold:
    return TokenTold(
        prefix=info.prefix,
        label=info.name,
        name=info.name,
        scope=info.scope,
        created_at=info.created_at,
        expires_at=info.expires_at,
    )
