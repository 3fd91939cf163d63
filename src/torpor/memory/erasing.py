"""Hard erase: the rows, what was made from them, their index, vectors and logs, on all branches; then proof.

What stays is a receipt without text and tombstones: keyed digests of ids and the salted digests that the
hash chain needs. The proof is a search for the erased bytes in every file of the store.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torpor.base.ids import new_id
from torpor.errors import Busy, NotFound
from torpor.memory import checks
from torpor.memory.chain import id_digest, row_digest
from torpor.memory.corpus import GENERATION
from torpor.memory.doomed import Doomed, Selector, all_text, find_doomed
from torpor.memory.effects import erased_key
from torpor.memory.line import Line
from torpor.memory.rows import (
    TABLES,
    CheckRow,
    ConflictRow,
    ConsolidatedRow,
    DerivationRow,
    EffectRow,
    EpisodeRow,
    ErasureRow,
    EvidenceRow,
    FactRow,
    RecallItemRow,
    RecallRow,
    StateRow,
    SupersessionRow,
    TombstoneRow,
    Txn,
    VectorRow,
)
from torpor.memory.sqlite import scan_files
from torpor.memory.store import Scan, Store
from torpor.memory.times import to_time
from torpor.memory.unit import Unit
from torpor.model_memory import Receipt

_NEEDLE = 32


_NEEDLES_PER_TEXT = 12


_MOST_NEEDLES, _FEWEST_NEEDLES = 64, 12
_READ_BYTES = 6 << 30
"""Pieces looked for: a spread sample, as each costs a pass over the files (about a second for 4 GiB)."""
_MIN_NEEDLE = 12
"""Shorter pieces are found by chance in any file; the text around them is looked for instead."""


Unproven = dict[str, list[bytes]]
"""What to look for, by receipt, for erasures whose bytes could not all be pushed out yet."""


def erase(
    line: Line,
    selector: Selector,
    *,
    dry_run: bool,
    reason: str,
    exports: Sequence[Path],
    unproven: Unproven,
) -> Receipt:
    """Erase, and verify; a dry run only counts.

    Raises:
        NotFound: nothing matches.
        InvalidRequest: the selector does not name one thing.
    """
    kind, value = selector.named()
    said = checks.reason(reason)
    digest = id_digest(line.store.meta("id_key") or "", f"{kind}:{value}")
    if dry_run:
        doomed = _found(line, kind, value)
        return Receipt("", True, f"{kind}:{digest}", _counts(doomed), None, None, 0, 0, 0)
    if checks.fold(value) in checks.fold(said):
        said = ""  # it names what is to be forgotten
    with line.write("erase", said) as (work, _):
        doomed = _found(line, kind, value)
        needles = _needles(line.store, doomed)
        counts = _remove(line, work, doomed)
        receipt = work.put(
            ErasureRow(
                new_id("era"), work.tx, work.branch, f"{kind}:{digest}", json.dumps(counts),
                work.at, work.salt(),
            )
        )  # fmt: skip
        line.store.set_meta(GENERATION, receipt.id)
    unproven[receipt.id] = needles
    return verify(line, receipt.id, exports, unproven)


def _found(line: Line, kind: str, value: str) -> Doomed:
    doomed = find_doomed(line, kind, value)
    if not doomed.episodes and not doomed.facts and not doomed.recalls:
        raise NotFound(f"memory has nothing of {kind} {value!r}")
    return doomed


def verify(line: Line, receipt_id: str, exports: Sequence[Path], unproven: Unproven) -> Receipt:
    """Push the bytes of an erasure out of the files and look for them; what lives elsewhere is no trace.

    Raises:
        NotFound: there is no such erasure, or it is proven, or it was made by another process: what to
            look for is kept in memory alone and only until nothing is found.
    """
    receipt = line.store.newest(ErasureRow, {"id": receipt_id})
    if receipt is None or receipt_id not in unproven:
        raise NotFound(
            f"there is no erasure {receipt_id} that waits for its proof",
            hint="the bytes to look for are known only to the process that erased them",
        )
    left, needles = _push_out(line.store, unproven[receipt_id])
    in_exports = scan_files(exports, needles)
    if left.hits == 0:
        del unproven[receipt_id]
    with line.write("erase_check", "") as (work, _):
        check = work.put(
            CheckRow(
                new_id("ec"), work.tx, work.branch, receipt.id, work.at, left.hits, work.salt()
            )
        )
    return Receipt(
        id=receipt.id,
        dry_run=False,
        selector=receipt.selector,
        counts=json.loads(receipt.counts),
        tx=receipt.tx,
        verified_at=to_time(check.at) if left.hits == 0 else None,
        bytes_left=left.hits,
        exports_left=in_exports.hits,
        scanned_bytes=left.scanned_bytes + in_exports.scanned_bytes,
    )


def _push_out(store: Store, needles: list[bytes]) -> tuple[Scan, list[bytes]]:
    """Return what is left of the needles, and the needles without those that live on by right."""
    try:
        store.scrub()
    except Busy:
        return store.scan(needles), needles  # a reader elsewhere holds the log: say what is left
    found = store.scan(needles)
    if found.hits:
        alive = _living(store, found.found)
        needles = [n for n in needles if n not in alive]
        found = store.scan(needles)
    if found.hits:
        store.rebuild()
        found = store.scan(needles)
    return found, needles


def _counts(doomed: Doomed) -> dict[str, int]:
    return {
        "episode": len(doomed.episodes),
        "fact": len(doomed.facts),
        "effect_ledger": len(doomed.effects),
        "recall_log": len(doomed.recalls),
    }


def _remove(line: Line, work: Unit, doomed: Doomed) -> dict[str, int]:
    store = line.store
    ids = doomed.ids()
    rows = list(_chained_rows(store, doomed))
    key = store.meta("id_key") or ""
    for row in rows:
        work.put(
            TombstoneRow(
                new_id("tomb"), work.tx, work.branch, row[1], TABLES[type(row)], row_digest(row),
                id_digest(key, row[0]), work.salt(),
            )
        )  # fmt: skip
    for table in {type(row) for row in rows}:
        store.delete(table, "id", [r[0] for r in rows if type(r) is table])
    counts = Counter(TABLES[type(row)] for row in rows)
    counts["doc"] = sum(store.unindex(e.id, e.content) for e in doomed.episodes.values())
    counts["doc"] += sum(store.unindex(f.id, f.text) for f in doomed.facts.values())
    counts["embedding"] = store.delete(VectorRow, "owner", ids)
    counts["recall_item"] = store.delete(RecallItemRow, "owner", ids)
    counts["recall_item"] += store.delete(RecallItemRow, "recall", list(doomed.recalls))
    counts["recall_log"] = store.delete(RecallRow, "id", list(doomed.recalls))
    _blank_reasons(store, rows, doomed)
    _keep_effects(line, work, doomed)
    work.touched.extend(_orphans(store, rows, doomed))
    return dict(counts)


def _orphans(store: Store, rows: Sequence[tuple[Any, ...]], doomed: Doomed) -> list[str]:
    """Facts that stay but lost some of their words: their support is looked at again."""
    cited = [r.fact for r in rows if isinstance(r, EvidenceRow) and r.fact not in doomed.facts]
    return list(dict.fromkeys(cited))


def _chained_rows(store: Store, doomed: Doomed) -> Iterator[tuple[Any, ...]]:
    ids = doomed.ids()
    facts, episodes = list(doomed.facts), list(doomed.episodes)
    yield from doomed.episodes.values()
    yield from doomed.facts.values()
    yield from doomed.effects.values()
    evidence = {
        e.id: e
        for e in (
            *store.select(EvidenceRow, {"fact": facts}),
            *store.select(EvidenceRow, {"episode": episodes}),
        )
    }
    yield from evidence.values()
    yield from {
        r.id: r
        for r in (
            *store.select(DerivationRow, {"child": facts}),
            *store.select(DerivationRow, {"parent": facts}),
        )
    }.values()
    yield from {
        r.id: r
        for r in (
            *store.select(SupersessionRow, {"old": facts}),
            *store.select(SupersessionRow, {"new": facts}),
        )
    }.values()
    yield from store.select(ConsolidatedRow, {"episode": episodes})
    conflicts = [c for c in store.select(ConflictRow, {}) if set(c.members.split()) & set(facts)]
    yield from conflicts
    yield from store.select(StateRow, {"object": [*ids, *evidence, *(c.id for c in conflicts)]})


def _blank_reasons(store: Store, rows: Sequence[tuple[Any, ...]], doomed: Doomed) -> None:
    """A reason was written about what is erased now; its digest is enough for the chain."""
    for tx in {row[1] for row in rows}:
        store.blank_reason(tx)
    if doomed.word is not None:
        says = re.compile(rf"(?<!\w){re.escape(doomed.word)}(?!\w)", re.IGNORECASE)
        for txn in store.select(Txn, {"branch": doomed.branches}):
            if txn.reason and says.search(txn.reason):
                store.blank_reason(txn.tx)


def _keep_effects(line: Line, work: Unit, doomed: Doomed) -> None:
    """An effect stays done: its key stays as a digest, so that it is not done again."""
    for row in doomed.effects.values():
        work.put(
            row._replace(
                id=new_id("ef"), tx=work.tx, branch=work.branch, key=erased_key(line, row.key),
                what="erased", salt=work.salt(),
            )
        )  # fmt: skip


def _needles(store: Store, doomed: Doomed) -> list[bytes]:
    texts = [e.content for e in doomed.episodes.values()]
    texts += [t for f in doomed.facts.values() for t in (f.text, f.value, f.subject)]
    recalls = list(doomed.recalls)
    texts += [r.query for r in store.select(RecallRow, {"id": recalls})]
    blobs = [t.encode() for t in texts]
    blobs += [row.blob for row in store.select(VectorRow, {"owner": doomed.ids()})]
    found: dict[bytes, None] = {}
    for blob in blobs:
        for needle in _pieces(blob):
            found[needle] = None
    if doomed.word is not None and len(doomed.word) >= _MIN_NEEDLE // 3:
        found.update((w.encode(), None) for w in {doomed.word, doomed.word.title()})
    every = list(found)
    return every[:: max(1, len(every) // _affordable(store))]


def _affordable(store: Store) -> int:
    return max(_FEWEST_NEEDLES, min(_MOST_NEEDLES, _READ_BYTES // max(1, store.size_bytes())))


def _pieces(blob: bytes) -> Iterator[bytes]:
    """Yield pieces spread over a text: a database splits long ones over pages."""
    if len(blob) <= _NEEDLE:
        if len(blob) >= _MIN_NEEDLE:
            yield blob
        return
    step = max(_NEEDLE, (len(blob) - _NEEDLE) // _NEEDLES_PER_TEXT)
    for start in range(0, len(blob) - _NEEDLE + 1, step):
        yield blob[start : start + _NEEDLE]


def _living(store: Store, needles: Iterable[bytes]) -> set[bytes]:
    """Return the needles that a row which stays has of its own right."""
    texts = {n: n.decode("utf-8", "ignore") for n in needles}
    wanted = {n: t for n, t in texts.items() if len(t.encode()) == len(n)}
    alive: set[bytes] = set()
    bodies = (
        *(f"{r.content}\n{r.subjects}\n{r.session}" for r in store.stream(EpisodeRow)),
        *(f"{all_text(f)}\n{f.key}" for f in store.stream(FactRow)),
        *(f"{e.key}\n{e.what}" for e in store.stream(EffectRow)),
        *(r.query for r in store.stream(RecallRow)),
    )
    for body in bodies:
        alive.update(n for n, text in wanted.items() if n not in alive and text in body)
        if len(alive) == len(wanted):
            break
    rest = texts.keys() - alive
    if rest:
        for row in store.stream(VectorRow):
            alive.update(n for n in rest if n in row.blob)
    return alive
