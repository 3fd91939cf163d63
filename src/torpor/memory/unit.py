"""A write: one transaction of one space, hashed into the chain when it commits.

The clock decides nothing: the number does. `at` is the host's time, pushed forward by a microsecond when
the clock stood still or went back a little, so that two writes never share a moment by accident.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any, TypeVar

from torpor.base.clock import Clock
from torpor.base.ids import new_id
from torpor.memory.chain import GENESIS, reason_digest, root_of, row_digest, txn_hash
from torpor.memory.rows import StateRow, Txn
from torpor.memory.store import Store
from torpor.memory.times import to_us
from torpor.model_memory import Status

R = TypeVar("R", bound=tuple[Any, ...])

_NUDGE_US = 1_000_000
"""How far the clock may have gone back and still be pushed forward; more is taken as it is."""


class Unit:
    """The transaction being written."""

    def __init__(self, store: Store, tx: int, at: int, branch: str, actor: str) -> None:
        self.store = store
        self.tx = tx
        self.at = at
        self.branch = branch
        self.actor = actor
        self._digests: list[str] = []
        self.touched: list[str] = []
        """Facts whose standing may have changed; what is derived from them is looked at again."""

    def put(self, row: R) -> R:
        """Write a chained row."""
        self.store.insert(row)
        self._digests.append(row_digest(row))
        return row

    def salt(self) -> bytes:
        """Return fresh salt for a row."""
        return secrets.token_bytes(12)

    def set_state(
        self,
        object_id: str,
        kind: str,
        before: StateRow | None,
        *,
        status: str | None = None,
        **changes: Any,
    ) -> StateRow:
        """Write the next state of an object: `before` with `changes`."""
        base: dict[str, Any] = {
            "ended_at": None,
            "ended_by": None,
            "pinned": 0,
            "expires_at": None,
            "confirmed_at": self.at,
            "flag": "",
            "cause": "",
        }
        if before is not None:
            base |= {name: getattr(before, name) for name in base}
        base |= changes
        now = status or (before.status if before is not None else Status.ACTIVE)
        self.touched.append(object_id)
        return self.put(
            StateRow(
                id=new_id("st"),
                tx=self.tx,
                branch=self.branch,
                object=object_id,
                kind=kind,
                status=str(now),
                salt=self.salt(),
                **base,
            )
        )

    def seal(self, kind: str, reason: str) -> None:
        """Write the transaction itself; the last thing before the commit."""
        before = self.store.newest(Txn, {"tx": self.tx - 1}) if self.tx > 1 else None
        salt = self.salt()
        txn = Txn(
            tx=self.tx,
            at=self.at,
            actor=self.actor,
            kind=kind,
            branch=self.branch,
            reason=reason,
            salt=salt,
            reason_digest=reason_digest(reason, salt),
            root=root_of(self._digests),
            prev_hash=before.hash if before is not None else GENESIS,
            hash="",
        )
        self.store.insert(txn._replace(hash=txn_hash(txn)))


@contextlib.contextmanager
def unit(
    store: Store, clock: Clock, *, branch: str, actor: str, kind: str, reason: str
) -> Iterator[Unit]:
    """Open a write transaction; on an exception nothing of it remains."""
    with store.transaction():
        last = store.last_tx()
        at = to_us(clock.now())
        if last:
            before = store.newest(Txn, {"tx": last})
            assert before is not None
            if 0 <= before.at - at < _NUDGE_US:
                at = before.at + 1
        work = Unit(store, last + 1, at, branch, actor)
        yield work
        work.seal(kind, reason)
