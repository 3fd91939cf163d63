"""`TokenBook`: makes, knows and revokes tokens.

A token is `torpor_` and 256 random bits. Kept of it are its first characters, to find it by and to know it
again, and its SHA-256; so whoever reads the database cannot come in. All tokens are in memory: the one daemon of
a home is the only one who changes them, and a token that is removed is refused from the next request on.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from dataclasses import replace
from datetime import datetime, timedelta

from torpor.access.principal import Principal
from torpor.base.clock import Clock
from torpor.base.ids import check_name, new_id
from torpor.db.tokens import TokenRow, TokenRows
from torpor.errors import Conflict, InvalidRequest, LimitExceeded, NotAuthenticated, NotFound
from torpor.model_access import NewToken, Scope, TokenId, TokenInfo

PREFIX = "torpor_"
"""How every token begins, so that scanners for secrets in texts know one."""
TOKENS_MOST = 10_000

_KNOWN_BY = len(PREFIX) + 8
_SECONDS_MOST = 10 * 365 * 86400
_USE_NOTED_EVERY = timedelta(minutes=1)


class TokenBook:
    """All tokens of a home."""

    def __init__(self, rows: TokenRows, clock: Clock) -> None:
        self._rows = rows
        self._clock = clock
        self._by_prefix = {row.info.prefix: row for row in rows.all()}
        self._changing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._by_prefix)

    def check(self, shown: str) -> Principal:
        """Return whom a token stands for.

        Raises:
            NotAuthenticated: it is not one of ours, was removed or has expired.
        """
        digest = _digest(shown)
        row = self._by_prefix.get(shown[:_KNOWN_BY])
        # an unknown prefix takes as long as a wrong token
        is_right = hmac.compare_digest(digest, row.digest if row is not None else bytes(32))
        if row is None or not is_right:
            raise NotAuthenticated(
                "the token is not valid",
                hint="it may have been removed; make another: torpor token create NAME --scope use",
            )
        if row.info.expires_at is not None and row.info.expires_at <= self._clock.now():
            raise NotAuthenticated(
                f"the token {row.info.prefix}… expired at {row.info.expires_at.isoformat()}",
                hint="make another: torpor token create NAME --scope use",
            )
        return Principal(row.info.scope, row.info.workspace, row.info)

    async def create(
        self, name: str, *, scope: Scope, workspace: str, expires_in_seconds: int | None = None
    ) -> NewToken:
        """Make a token; what is returned is the only copy of it.

        Raises:
            InvalidRequest: a value cannot be right.
            Conflict: the workspace has a token of that name.
            LimitExceeded: there are too many.
        """
        check_name(name, "token")
        check_name(workspace, "workspace")
        if expires_in_seconds is not None and not 1 <= expires_in_seconds <= _SECONDS_MOST:
            raise InvalidRequest(
                f"expires_in_seconds is {expires_in_seconds}; 1 to {_SECONDS_MOST} is wanted",
                hint="leave it out for a token that does not expire",
            )
        async with self._changing:
            if len(self._by_prefix) >= TOKENS_MOST:
                raise LimitExceeded(
                    f"there are {TOKENS_MOST} tokens", hint="remove some: torpor token rm NAME"
                )
            text = self._fresh()
            now = self._clock.now()
            info = TokenInfo(
                id=TokenId(new_id("tok")),
                name=name,
                prefix=text[:_KNOWN_BY],
                scope=scope,
                workspace=workspace,
                created_at=now,
                expires_at=None
                if expires_in_seconds is None
                else now + timedelta(seconds=expires_in_seconds),
                last_used_at=None,
            )
            row = TokenRow(info, _digest(text))
            await asyncio.to_thread(self._rows.insert, row)
            self._by_prefix[info.prefix] = row
        return NewToken(token=text, info=info)

    def all(self, workspace: str | None) -> list[TokenInfo]:
        """Return the tokens of a workspace, or (None) of all, the oldest first."""
        found = [row.info for row in self._by_prefix.values()]
        return [info for info in found if workspace in (None, info.workspace)]

    def find(self, which: str, workspace: str | None) -> TokenInfo:
        """Return a token by its id, prefix or name. Raises `NotFound`, or `Conflict` for a name that several have."""
        found = [i for i in self.all(workspace) if which in (i.id, i.prefix, i.name)]
        if not found:
            raise NotFound(f"there is no token {which!r}", hint="list them: torpor token ls")
        if len(found) > 1:
            raise Conflict(
                f"{len(found)} workspaces have a token {which!r}",
                hint="say which by its id: " + ", ".join(i.id for i in found),
            )
        return found[0]

    async def delete(self, which: str, workspace: str | None) -> TokenInfo:
        """Remove a token; it is refused from now on. Raises `NotFound`."""
        async with self._changing:
            info = self.find(which, workspace)
            await asyncio.to_thread(self._rows.delete, info.id)
            del self._by_prefix[info.prefix]
        return info

    async def note_use(self, token_id: TokenId, at: datetime) -> None:
        """Write down that a token was used, once a minute at most."""
        row = next((row for row in self._by_prefix.values() if row.info.id == token_id), None)
        if row is None:
            return
        before = row.info.last_used_at
        if before is not None and at - before < _USE_NOTED_EVERY:
            return
        self._by_prefix[row.info.prefix] = replace(row, info=replace(row.info, last_used_at=at))
        await asyncio.to_thread(self._rows.note_use, token_id, at)

    def is_use_due(self, info: TokenInfo, at: datetime) -> bool:
        """Return whether `note_use` would write something."""
        row = self._by_prefix.get(info.prefix)
        before = None if row is None else row.info.last_used_at
        return row is not None and (before is None or at - before >= _USE_NOTED_EVERY)

    def _fresh(self) -> str:
        while True:
            text = PREFIX + secrets.token_urlsafe(32)
            if text[:_KNOWN_BY] not in self._by_prefix:
                return text


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
