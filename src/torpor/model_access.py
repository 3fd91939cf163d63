"""Who may do what over the API: scopes, workspaces and tokens, as the server and the SDK speak of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NewType

TokenId = NewType("TokenId", str)

DEFAULT_WORKSPACE = "default"
"""Where things are that nobody put elsewhere; its tokens may also read figures of the whole host."""
LINK_SECONDS_MOST: Final = 30 * 86400
"""How long a link to a preview may live."""


class Scope(StrEnum):
    """How much a token may do; each may do what those before it may."""

    READ = "read"
    """Look at things, without seeing into machines and without waking one."""
    USE = "use"
    """Do everything with sandboxes and snapshots."""
    ADMIN = "admin"
    """Also tokens, templates and the daemon; as powerful as a user of the host."""

    def covers(self, needed: Scope) -> bool:
        """Return whether a token of this scope may do what needs `needed`."""
        order = list(Scope)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """What is so about one token; the token itself is shown once, when it is made, and kept nowhere."""

    id: TokenId
    name: str
    """Unique among the workspace's tokens."""
    prefix: str
    """How the token begins, to know it again; no secret."""
    scope: Scope
    workspace: str
    created_at: datetime
    expires_at: datetime | None
    """None: never."""
    last_used_at: datetime | None
    """To the minute; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token that was just made."""

    token: str = field(repr=False)
    """The secret. It cannot be asked for again."""
    info: TokenInfo
