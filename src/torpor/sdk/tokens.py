"""Tokens: who may come in by TCP, how far, and for how long."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from torpor.model_access import NewToken, Scope, TokenId, TokenInfo
from torpor.sdk.client import Client, connection, quote_part
from torpor.sdk.loop import loop_thread


class AsyncTokens:
    """All calls are on the class. They need the Unix socket, or a token of scope `admin`."""

    @staticmethod
    async def create(
        name: str,
        *,
        scope: Scope | str,
        expires_in_seconds: int | None = None,
        workspace: str | None = None,
        client: Client | None = None,
    ) -> NewToken:
        """Make a token and return it; it cannot be asked for again.

        Args:
            name: 1 to 63 of a-z, 0-9, `.`, `_` and `-`; unique in the workspace.
            scope: `read`, `use` or `admin`.
            expires_in_seconds: from now on; None: never.
            workspace: what it sees and makes things in; None: that of whoever asks.
            client: which daemon; None: as the environment says.

        Raises:
            Conflict: the workspace has a token of that name.
            NotAllowed: whoever asks is not `admin`, or of another workspace.
        """
        body = {
            "name": name,
            "scope": str(scope),
            "expires_in_seconds": expires_in_seconds,
            "workspace": workspace,
        }
        made = await connection(client).call("POST", "/v1/tokens", body=body)
        return NewToken(token=made["token"], info=_info(made))

    @staticmethod
    async def list(*, client: Client | None = None) -> builtins.list[TokenInfo]:
        """Return the tokens of the workspace, the oldest first; by the Unix socket those of all."""
        found: builtins.list[TokenInfo] = []
        cursor: str | None = None
        while True:
            page = await connection(client).call("GET", "/v1/tokens", query={"cursor": cursor})
            found += map(_info, page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    @staticmethod
    async def delete(token: str, *, client: Client | None = None) -> None:
        """Remove a token, by its id, name or prefix; it is refused from then on. Raises `NotFound`."""
        await connection(client).call("DELETE", f"/v1/tokens/{quote_part(token)}")


class Tokens:
    """The same for synchronous code."""

    @staticmethod
    def create(
        name: str,
        *,
        scope: Scope | str,
        expires_in_seconds: int | None = None,
        workspace: str | None = None,
        client: Client | None = None,
    ) -> NewToken:
        """Make a token and return it; `AsyncTokens.create` says more."""
        return loop_thread.run(
            AsyncTokens.create(
                name,
                scope=scope,
                expires_in_seconds=expires_in_seconds,
                workspace=workspace,
                client=client,
            )
        )

    @staticmethod
    def list(*, client: Client | None = None) -> builtins.list[TokenInfo]:
        """Return the tokens of the workspace, the oldest first; by the Unix socket those of all."""
        return loop_thread.run(AsyncTokens.list(client=client))

    @staticmethod
    def delete(token: str, *, client: Client | None = None) -> None:
        """Remove a token, by its id, name or prefix; it is refused from then on. Raises `NotFound`."""
        loop_thread.run(AsyncTokens.delete(token, client=client))


def _info(body: Mapping[str, Any]) -> TokenInfo:
    return TokenInfo(
        id=TokenId(body["id"]),
        name=body["name"],
        prefix=body["prefix"],
        scope=Scope(body["scope"]),
        workspace=body["workspace"],
        created_at=datetime.fromisoformat(body["created_at"]),
        expires_at=_time(body["expires_at"]),
        last_used_at=_time(body["last_used_at"]),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
