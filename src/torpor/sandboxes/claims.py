"""Claims: somebody works on a sandbox for a while, and some acts of others would spoil it.

A claim forbids acts, and names itself to whoever tries one. It is not durable: its holder knows that it works, and
claims again in the next daemon before that serves anybody. Deleting a sandbox cannot be forbidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torpor.errors import Conflict
from torpor.model import SandboxId

Act = Literal["pause", "hibernate", "rollback"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Who works on a sandbox, and what nobody else may do meanwhile."""

    holder: str
    forbids: frozenset[Act]
    why: str
    """One line: what the holder does."""
    hint: str
    """What whoever is refused can do instead."""


class Claims:
    """The claims of all sandboxes, at most one each."""

    def __init__(self) -> None:
        self._by_sandbox: dict[SandboxId, Claim] = {}

    def put(self, sandbox_id: SandboxId, claim: Claim) -> None:
        """Claim a sandbox; the same holder replaces its claim. Raises `Conflict` when another holds one."""
        found = self._by_sandbox.get(sandbox_id)
        if found is not None and found.holder != claim.holder:
            raise Conflict(
                f"sandbox {sandbox_id} is taken: {found.why}", hint=found.hint, holder=found.holder
            )
        self._by_sandbox[sandbox_id] = claim

    def drop(self, sandbox_id: SandboxId, holder: str) -> None:
        """End a holder's claim; none is no error."""
        found = self._by_sandbox.get(sandbox_id)
        if found is not None and found.holder == holder:
            del self._by_sandbox[sandbox_id]

    def forbids(self, sandbox_id: SandboxId, act: Act) -> bool:
        """Return whether somebody forbids an act that a sandbox would do by itself."""
        found = self._by_sandbox.get(sandbox_id)
        return found is not None and act in found.forbids

    def check(self, sandbox_id: SandboxId, act: Act, holder: str | None = None) -> None:
        """Raise `Conflict` when somebody else than `holder` forbids an act."""
        found = self._by_sandbox.get(sandbox_id)
        if found is not None and found.holder != holder and act in found.forbids:
            raise Conflict(
                f"sandbox {sandbox_id} cannot {act} now: {found.why}",
                hint=found.hint,
                holder=found.holder,
            )
