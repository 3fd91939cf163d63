"""Hard erase: the rows, what was made from them, their index, vectors and logs, on all branches; then proof.

What stays is a receipt without text and tombstones: keyed digests of ids and the salted digests that the
hash chain needs. The proof is a search for the erased bytes in every file of the store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torpor.base.ids import new_id
from torpor.errors import NotFound
from torpor.memory import checks
from torpor.memory.chain import id_digest, row_digest
from torpor.memory.corpus import GENERATION
from torpor.memory.doomed import Doomed, Selector, find_doomed
from torpor.memory.effects import BY_PARENT, erased_key
from torpor.memory.line import Line
from torpor.memory.proving import Unproven, check_exports, needles_of, verify
from torpor.memory.rows import (
    TABLES,
    ConflictRow,
    ConsolidatedRow,
    DerivationRow,
    ErasureRow,
    EvidenceRow,
    RecallItemRow,
    RecallRow,
    StateRow,
    SupersessionRow,
    TombstoneRow,
    Txn,
    VectorRow,
)
from torpor.memory.store import Store
from torpor.memory.unit import Unit
from torpor.model_memory import Receipt


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

    A name that nothing has gives a receipt that counts nothing: its bytes are pushed out and looked for all the same.

    Raises:
        NotFound: there is no such fact, episode, session or export.
        InvalidRequest: the selector does not name one thing.
    """
    kind, value = selector.named()
    check_exports(exports)
    said = checks.reason(reason)
    digest = id_digest(line.store.meta("id_key") or "", f"{kind}:{value}")
    if dry_run:
        doomed = _found(line, kind, value)
        return Receipt("", True, f"{kind}:{digest}", _counts(doomed), None, None, 0, 0, 0)
    if checks.fold(value) in checks.fold(said):
        said = ""  # it names what is to be forgotten
    with line.write("erase", said) as (work, _):
        doomed = _found(line, kind, value)
        needles = needles_of(line.store, doomed)
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
    if kind != "subject" and not doomed.episodes and not doomed.facts and not doomed.recalls:
        raise NotFound(f"memory has nothing of {kind} {value!r}")
    return doomed


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
    if doomed.effects:
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
    if doomed.says is not None:
        for txn in store.select(Txn, {"branch": doomed.branches}):
            if txn.reason and doomed.says(txn.reason):
                store.blank_reason(txn.tx)


def _keep_effects(line: Line, work: Unit, doomed: Doomed) -> None:
    """An effect stays done: a key with the name in it stays as a digest, so that it is not done again."""
    says = doomed.says
    assert says is not None, "only a name leads to effects"
    for row in doomed.effects.values():
        outcome = row.outcome
        if says(outcome):
            outcome = f"{BY_PARENT if outcome.startswith(BY_PARENT) else ''}erased"
        work.put(
            row._replace(
                id=new_id("ef"), tx=work.tx, branch=work.branch,
                key=erased_key(line, row.key) if says(row.key) else row.key,
                what="erased" if says(row.what) else row.what, outcome=outcome, salt=work.salt(),
            )
        )  # fmt: skip
