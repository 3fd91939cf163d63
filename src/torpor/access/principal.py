"""`Principal`: on whose behalf a request is carried out."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.model_access import DEFAULT_WORKSPACE, Scope, TokenId, TokenInfo


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone who was let in: a token's holder, or a user of the host who may open the Unix socket."""

    scope: Scope
    workspace: str
    """Where what they make is."""
    token: TokenInfo | None = None
    """None: they came by the Unix socket, and see every workspace."""

    @property
    def token_id(self) -> TokenId | None:
        """The token's id, which is no secret."""
        return None if self.token is None else self.token.id

    @property
    def sees_all(self) -> bool:
        """Whether they see every workspace."""
        return self.token is None

    @property
    def sees_host(self) -> bool:
        """Whether they may see figures of the whole host."""
        return self.sees_all or self.workspace == DEFAULT_WORKSPACE

    def sees(self, workspace: str) -> bool:
        """Return whether what is in `workspace` exists for them."""
        return self.sees_all or self.workspace == workspace


HOST = Principal(Scope.ADMIN, DEFAULT_WORKSPACE)
"""Whoever may open the Unix socket: its mode is the lock."""
