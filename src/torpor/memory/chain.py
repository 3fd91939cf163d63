"""The hash chain: every row of a transaction is covered by its hash, and every hash by the next.

A row's digest is salted with random bytes in the row itself, so that what an erasure leaves behind (the
digest, in a tombstone) tells nothing about a short text. Whoever keeps a `head` hash elsewhere can also
detect that the whole chain was written anew.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import defaultdict
from typing import Any

from torpor.memory.rows import CHAINED, TABLES, ErasureRow, TombstoneRow, Txn
from torpor.memory.store import Store
from torpor.model_memory import ChainReport

GENESIS = "0" * 64
_SHOWN = 20


def row_digest(row: tuple[Any, ...]) -> str:
    """Return the salted digest of a chained row; the salt is its last column."""
    body = json.dumps([TABLES[type(row)], *row[:-1]], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(row[-1] + body.encode()).hexdigest()


def root_of(digests: list[str]) -> str:
    """Return the hash over a transaction's rows, whatever their order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def reason_digest(reason: str, salt: bytes) -> str:
    """Return the salted digest of a transaction's reason."""
    return hashlib.sha256(salt + reason.encode()).hexdigest()


def txn_hash(txn: Txn) -> str:
    """Return the hash that a transaction must have."""
    parts = [
        txn.prev_hash,
        txn.tx,
        txn.at,
        txn.actor,
        txn.kind,
        txn.branch,
        txn.reason_digest,
        txn.root,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def id_digest(key: str, row_id: str) -> str:
    """Return the keyed digest under which an erased row's id is remembered."""
    return hmac.new(key.encode(), row_id.encode(), hashlib.sha256).hexdigest()[:32]


def verify(store: Store, expected_head: str | None = None) -> ChainReport:
    """Compare every row with the chain and every tombstone with its receipt."""
    problems: list[str] = []
    digests = _digests_by_tx(store, problems)
    previous, count, last = GENESIS, 0, 0
    known: set[int] = set()
    for txn in store.stream(Txn):
        known.add(txn.tx)
        if txn.tx <= last:
            problems.append(f"transaction {txn.tx} comes after {last}")
        last = txn.tx
        if txn.prev_hash != previous:
            problems.append(f"transaction {txn.tx} does not follow the one before it")
        if txn.root != root_of(digests.get(txn.tx, [])):
            problems.append(f"rows of transaction {txn.tx} are not those that were written")
        if txn_hash(txn) != txn.hash:
            problems.append(f"transaction {txn.tx} itself was changed")
        if not _reason_holds(txn):
            problems.append(f"the reason of transaction {txn.tx} was changed")
        previous = txn.hash
        count += 1
    problems += [f"rows without transaction {tx}" for tx in sorted(set(digests) - known)]
    if expected_head is not None and expected_head != previous:
        problems.append(f"the chain ends at {previous[:12]}…, not at {expected_head[:12]}…")
    return ChainReport(not problems, count, previous, tuple(problems[:_SHOWN]))


def _digests_by_tx(store: Store, problems: list[str]) -> dict[int, list[str]]:
    digests: defaultdict[int, list[str]] = defaultdict(list)
    erasures: set[int] = set()
    for table in CHAINED:
        for row in store.stream(table):
            tx: int = row[1]
            digests[tx].append(row_digest(row))
            if isinstance(row, ErasureRow):
                erasures.add(tx)
    for tomb in store.stream(TombstoneRow):
        digests[tomb.of_tx].append(tomb.digest)
        if tomb.tx not in erasures:
            problems.append(f"a row of transaction {tomb.of_tx} is gone without a receipt")
    return digests


def _reason_holds(txn: Txn) -> bool:
    if txn.reason is None or txn.salt is None:  # erased; its digest stays in the hash
        return txn.reason is None and txn.salt is None
    return reason_digest(txn.reason, txn.salt) == txn.reason_digest
