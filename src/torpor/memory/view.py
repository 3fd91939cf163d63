"""A view: what one branch sees at one transaction. Everything read goes through it.

A row is visible when its branch is in the line of ancestors and its transaction is not after the point at
which the line left that branch. An object is in the view if it has a visible state; the newest one counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from torpor.errors import DataDamaged, NotFound
from torpor.memory.rows import Branch, StateRow
from torpor.memory.store import Scope, Store

LAST = "\U0010ffff"
"""Sorts after all text that begins the same."""

NOW = 1 << 62
"""A cutoff that nothing is after."""


class Placed(Protocol):
    """A row with a place in the history."""

    @property
    def branch(self) -> str:
        """The branch it was written on."""
        ...

    @property
    def tx(self) -> int:
        """The transaction that wrote it."""
        ...


P = TypeVar("P", bound=Placed)


class View:
    """One branch as known at one transaction; holds no data."""

    def __init__(self, store: Store, branch: Branch, known_at: int | None) -> None:
        self.store = store
        self.branch = branch
        self.known_at = known_at
        self._cutoffs: dict[str, int] = {}
        cutoff = NOW if known_at is None else known_at
        step: Branch | None = branch
        while step is not None:
            if step.id in self._cutoffs:
                raise DataDamaged(f"branch {step.id} is its own ancestor", branch=step.id)
            self._cutoffs[step.id] = cutoff
            cutoff = min(cutoff, step.fork_tx)
            step = None if step.parent is None else load_branch(store, step.parent)
        self.scopes = tuple(Scope(name, end) for name, end in self._cutoffs.items())

    def sees(self, row: Placed) -> bool:
        """Return whether a row is visible."""
        return row.tx <= self._cutoffs.get(row.branch, -1)

    def seen(self, rows: Iterable[P]) -> list[P]:
        """Return the visible rows among `rows`, in their order."""
        return [row for row in rows if row.tx <= self._cutoffs.get(row.branch, -1)]

    def states(self, objects: Iterable[str]) -> dict[str, StateRow]:
        """Return the current state of each object that is in the view."""
        newest: dict[str, StateRow] = {}
        for row in self.store.select(StateRow, {"object": list(dict.fromkeys(objects))}):
            if self.sees(row):
                known = newest.get(row.object)
                if known is None or row.tx >= known.tx:
                    newest[row.object] = row
        return newest

    def state(self, object_id: str) -> StateRow | None:
        """Return the current state of one object, None if it is not in the view."""
        return self.states([object_id]).get(object_id)


def load_branch(store: Store, branch_id: str) -> Branch:
    """Return a branch.

    Raises:
        NotFound: there is none of that id.
    """
    found = store.newest(Branch, {"id": branch_id})
    if found is None:
        raise NotFound(f"there is no branch {branch_id}", branch=branch_id)
    return found
