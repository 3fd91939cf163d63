"""`Ledger`: a request that comes twice with one key is carried out once.

A row is written before the act. It holds a seed from which the ids of all that the act makes are derived, so that
whoever finds the row without an answer (the daemon died meanwhile) knows what to look for: what is there already
is the result, what is not is made now, under the same ids. The body may hold secrets, so only a keyed hash of it
is kept, and the key for that is in a file of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torpor.base import fsio
from torpor.base.aio import finish
from torpor.base.clock import Clock
from torpor.base.ids import id_from
from torpor.db.keyed_requests import KeyedRequest, KeyedRequestRows
from torpor.errors import Busy, InvalidRequest, KeyReused, LimitExceeded
from torpor.model import SandboxId, SnapshotId

KEPT = timedelta(hours=24)
"""How long a key is remembered."""
KEYS_MOST = 100_000
"""In one workspace."""
ANSWER_MOST_BYTES = 1 << 20
WAIT_S = 30.0
"""How long a second request waits for the first with its key; clients wait 60 s for an answer."""

_KEY_MOST = 255
_WRITE_S = 30.0
_SWEPT_EVERY = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Plan:
    """The ids of what a request makes, known before it makes anything."""

    seed: bytes
    is_resumed: bool
    """An earlier daemon may have made some of it."""

    def sandbox(self, index: int = 0) -> SandboxId:
        """Return the id of the sandbox made at that place, counted from 0."""
        return SandboxId(id_from(self.seed, "sbx", index))

    @property
    def snapshot(self) -> SnapshotId:
        """The id of the snapshot."""
        return SnapshotId(id_from(self.seed, "snap", 0))

    @property
    def tree(self) -> str:
        """The id of a fork's tree."""
        return id_from(self.seed, "tree", 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered with."""

    status: int
    body: bytes


class Turn:
    """A keyed request's turn to be carried out, or the answer that it got before."""

    def __init__(self, plan: Plan, known: Answer | None = None) -> None:
        self.plan = plan
        self.known = known
        """The answer, when it was carried out already."""
        self.outcome: Answer | None = None
        """Set by whoever carries it out, and kept."""
        self.is_void = False
        """Set by whoever carried it out when nothing came of it: the key may be used again."""


class Ledger:
    """All keyed requests of a home, of the last 24 hours."""

    def __init__(self, rows: KeyedRequestRows, secret: bytes, clock: Clock) -> None:
        self._rows = rows
        self._secret = secret
        self._clock = clock
        self._under_way: dict[tuple[str, str], asyncio.Event] = {}
        self._counts: dict[str, int] = {}
        """How many keys each workspace has, about; counted anew at each sweep."""
        self._swept_at = clock.now() - _SWEPT_EVERY

    def fingerprint(self, *parts: bytes) -> bytes:
        """Return what tells one request from another without telling what is in it."""
        found = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            found.update(len(part).to_bytes(8, "big") + part)
        return found.digest()

    @contextlib.asynccontextmanager
    async def turn(self, workspace: str, key: str, fingerprint: bytes) -> AsyncIterator[Turn]:
        """Enter when nobody else carries out a request with that key.

        What `outcome` is at the end is kept. A turn that is left without one, and is not void, is taken up again
        when the request comes again.

        Raises:
            InvalidRequest: the key cannot be one.
            KeyReused: another request came with it.
            Busy: the first request with it is still not answered.
            LimitExceeded: the workspace used too many in 24 hours.
        """
        if not (0 < len(key) <= _KEY_MOST and key.isascii() and key.isprintable()):
            raise InvalidRequest(
                "the Idempotency-Key cannot be used", hint="1 to 255 printable ASCII characters"
            )
        place = (workspace, key)
        await self._until_free(place)
        mine = self._under_way[place] = asyncio.Event()
        try:
            turn = await self._begin(workspace, key, fingerprint)
            yield turn
            if turn.known is None:
                await finish(self._end(workspace, key, turn), within_s=_WRITE_S)
        finally:
            del self._under_way[place]
            mine.set()

    async def _until_free(self, place: tuple[str, str]) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while (other := self._under_way.get(place)) is not None:
                    await other.wait()
        except TimeoutError:
            raise Busy(
                "the first request with this Idempotency-Key is still being carried out",
                hint="send the same request again in a moment",
                retry_after_seconds=5,
            ) from None

    async def _begin(self, workspace: str, key: str, fingerprint: bytes) -> Turn:
        now = self._clock.now()
        row = await asyncio.to_thread(self._rows.get, workspace, key)
        if row is not None and row.created_at < now - KEPT:
            await asyncio.to_thread(self._rows.forget, workspace, key)
            row = None
        if row is None:
            await self._sweep(workspace)
            fresh = KeyedRequest(workspace, key, fingerprint, secrets.token_bytes(32), now)
            await asyncio.to_thread(self._rows.insert, fresh)
            return Turn(Plan(fresh.seed, is_resumed=False))
        if not hmac.compare_digest(row.fingerprint, fingerprint):
            raise KeyReused(
                "this Idempotency-Key came with another request before",
                hint="use a fresh key for each request, and the same body when you send one again",
            )
        plan = Plan(row.seed, is_resumed=True)
        if row.status is None or row.answer is None:
            return Turn(plan)
        return Turn(plan, Answer(row.status, row.answer))

    async def _end(self, workspace: str, key: str, turn: Turn) -> None:
        if turn.outcome is not None:
            await asyncio.to_thread(
                self._rows.answered, workspace, key, turn.outcome.status, turn.outcome.body
            )
        elif turn.is_void:
            await asyncio.to_thread(self._rows.forget, workspace, key)

    async def _sweep(self, workspace: str) -> None:
        now = self._clock.now()
        if now - self._swept_at >= _SWEPT_EVERY:
            self._swept_at = now
            self._counts.clear()
            await asyncio.to_thread(self._rows.forget_before, now - KEPT)
        if workspace not in self._counts:
            self._counts[workspace] = await asyncio.to_thread(self._rows.count, workspace)
        self._counts[workspace] += 1
        if self._counts[workspace] > KEYS_MOST:
            raise LimitExceeded(
                f"the workspace used {KEYS_MOST} idempotency keys in 24 hours",
                hint="send requests without keys, or wait",
            )


def read_secret(path: Path) -> bytes:
    """Return the key for fingerprints, which is made (mode 0600) if it is missing. Blocks."""
    with contextlib.suppress(FileNotFoundError):
        found = path.read_bytes()
        if len(found) == 32:
            return found
    fresh = secrets.token_bytes(32)
    fsio.write_atomic(path, fresh, mode=0o600)
    return fresh
