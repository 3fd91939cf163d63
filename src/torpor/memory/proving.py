"""The proof of an erasure: its bytes are pushed out of the files, and then looked for in all of them.

What to look for is kept in the memory of the process alone, and only until nothing is found. When a process dies
in between, the next one pushes the bytes out all the same; it cannot look for what it does not know.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from torpor import model_memory
from torpor.base.ids import new_id
from torpor.errors import Busy, InsufficientResources, NotFound
from torpor.memory.doomed import Doomed, all_text
from torpor.memory.line import Line
from torpor.memory.rows import (
    Branch,
    CheckRow,
    EffectRow,
    EpisodeRow,
    ErasureRow,
    FactRow,
    RecallRow,
    Txn,
    VectorRow,
    WatermarkRow,
)
from torpor.memory.sqlite import scan_files
from torpor.memory.sqlite_schema import MIGRATIONS
from torpor.memory.store import Scan, Store
from torpor.memory.times import to_time
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


def check_exports(exports: Sequence[Path]) -> None:
    """Raise `NotFound` for an export that is not there: nothing would be found in it."""
    for path in exports:
        if not path.is_file():
            raise NotFound(f"{path} does not exist", path=str(path))


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
            hint="what to look for is known only to the process that erased; erase the subject again "
            "and its name is looked for",
        )
    check_exports(exports)
    left, needles = _push_out(line.store, unproven[receipt_id])
    in_exports = scan_files(exports, needles)
    at = _note_check(line, receipt, left.hits)
    if at is not None and left.hits == 0:
        del unproven[receipt_id]
    return Receipt(
        id=receipt.id,
        dry_run=False,
        selector=receipt.selector,
        counts=json.loads(receipt.counts),
        tx=receipt.tx,
        verified_at=to_time(at) if at is not None and left.hits == 0 else None,
        bytes_left=left.hits,
        exports_left=in_exports.hits,
        scanned_bytes=left.scanned_bytes + in_exports.scanned_bytes,
    )


def _note_check(line: Line, receipt: ErasureRow, hits: int) -> int | None:
    """Write down what was found and return when; None if the disk is full: the erasure is done, its proof waits."""
    try:
        with line.write("erase_check", "") as (work, _):
            work.put(
                CheckRow(new_id("ec"), work.tx, work.branch, receipt.id, work.at, hits, work.salt())
            )
            return work.at
    except InsufficientResources:
        return None


def finish(store: Store) -> None:
    """Push out the bytes of erasures whose process died before it did: what to look for is not known any more."""
    proven = {c.erasure for c in store.select(CheckRow, {"bytes_left": 0})}
    left = [e.id for e in store.select(ErasureRow, {}) if e.id not in proven]
    if not left or store.meta(_PUSHED) == left[-1]:
        return
    try:
        store.scrub()
        with store.transaction():
            store.set_meta(_PUSHED, left[-1])
    except (Busy, InsufficientResources):
        return  # the next one who opens it tries again


_PUSHED = "pushed_out"
"""The setting that names the last erasure without a check whose bytes were pushed out."""


def _push_out(store: Store, needles: list[bytes]) -> tuple[Scan, list[bytes]]:
    """Return what is left of the needles, and the needles without those that live on by right."""
    try:
        store.scrub()
    except (Busy, InsufficientResources):
        return store.scan(
            needles
        ), needles  # a reader holds the log, or there is no room: say what is left
    found = store.scan(needles)
    if found.hits:
        alive = _living(store, found.found)
        needles = [n for n in needles if n not in alive]
        found = store.scan(needles)
    if found.hits:
        with contextlib.suppress(Busy, InsufficientResources):
            store.rebuild()
        found = store.scan(needles)
    return found, needles


def needles_of(store: Store, doomed: Doomed) -> list[bytes]:
    """Return pieces of all that is to be erased, to be looked for afterwards."""
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
    """Return the needles that a row which stays has of its own right: other texts, and names of agents and writers."""
    texts = {n: n.decode("utf-8", "ignore") for n in needles}
    wanted = {n: t for n, t in texts.items() if len(t.encode()) == len(n)}
    alive: set[bytes] = set()
    bodies = (
        *(f"{r.content}\n{r.subjects}\n{r.session}" for r in store.stream(EpisodeRow)),
        *(f"{all_text(f)}\n{f.key}" for f in store.stream(FactRow)),
        *(f"{e.key}\n{e.what}\n{e.outcome}" for e in store.stream(EffectRow)),
        *(r.query for r in store.stream(RecallRow)),
        *(f"{t.actor}\n{t.kind}\n{t.reason or ''}" for t in store.stream(Txn)),
        *(f"{b.agent}\n{b.snapshot or ''}\n{b.reason}" for b in store.stream(Branch)),
        *(w.snapshot for w in store.stream(WatermarkRow)),
        _own_words(),
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


_SQLITES_WORDS = "table index view trigger block segid term pgno docsize config rowid origin rules"


def _own_words() -> str:
    """Return the words that every memory has in its files, such as those of its schema."""
    kinds = [
        k for k in vars(model_memory).values() if isinstance(k, type) and issubclass(k, StrEnum)
    ]
    said = [str(member) for kind in kinds for member in kind]
    return "\n".join(
        [_SQLITES_WORDS, *said, *(statement for step in MIGRATIONS for statement in step)]
    )
