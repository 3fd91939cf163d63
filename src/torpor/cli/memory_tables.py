"""Answers of memory as tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from torpor.cli.output import print_facts, print_table, visible

if TYPE_CHECKING:
    from torpor.model_memory import (
        Change,
        ConflictSet,
        Diff,
        Done,
        Effect,
        Episode,
        Explanation,
        Fact,
        FactExplanation,
        Interval,
        Json,
        Plan,
        Recall,
        Receipt,
        WhyNot,
    )

_LONG = 100


def when(moment: datetime | None) -> str:
    """Return a moment as a day, with the time of day unless that is midnight; `-` for None."""
    if moment is None:
        return "-"
    if (moment.hour, moment.minute, moment.second) == (0, 0, 0):
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def value(found: Json) -> str:
    """Return a fact's value in few words."""
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return short(str(text))


def short(text: str) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _LONG else f"{line[: _LONG - 1]}…"


def _notes(text: str) -> None:
    print(visible(text), file=sys.stderr)


def facts(found: Sequence[Fact]) -> None:
    """Print facts."""
    print_table(
        (
            "ID",
            "SUBJECT",
            "ATTRIBUTE",
            "VALUE",
            "SCOPE",
            "SINCE",
            "UNTIL",
            "ON WHOSE WORD",
            "STATUS",
        ),
        [
            (
                f.id,
                f.subject,
                f.attribute,
                value(f.value),
                f.scope,
                when(f.valid_from),
                when(f.valid_to),
                f.authority,
                f"{f.status}{' ' + f.flag if f.flag else ''}{' pinned' if f.pinned else ''}",
            )
            for f in found
        ],
        empty="nothing is held to be true",
    )


def episodes(found: Sequence[Episode]) -> None:
    """Print episodes."""
    print_table(
        ("ID", "TX", "WHEN", "FROM", "SESSION", "CONTENT", "STATUS"),
        [
            (e.id, e.tx, when(e.occurred_at), e.source_kind, e.session or None, short(e.content), e.status)
            for e in found
        ],
        empty="nothing was recorded",
    )  # fmt: skip


def recall(found: Recall) -> None:
    """Print what was recalled, and on stderr what was held back."""
    print_table(
        ("TEXT", "KIND", "NOTE", "WHY", "SCORE", "ID"),
        [(short(i.text), i.kind, i.note, i.why, f"{i.score:.2f}", i.id) for i in found.items],
        empty="nothing",
    )
    held = ", ".join(f"{count} {why}" for why, count in found.suppressed.items() if count)
    if held:
        _notes(f"held back: {held}")
    if found.abstained:
        _notes(f"nothing about it: {found.abstained}")
    if found.words_only:
        _notes(f"only words were compared: {found.words_only}")
    if found.logged:
        _notes(f"why: torpor memory explain {found.id}")


def timeline(found: Sequence[Interval]) -> None:
    """Print what held from when to when."""
    print_table(
        ("FROM", "TO", "ATTRIBUTE", "VALUE", "", "FACT"),
        [
            (
                when(i.valid_from),
                "now" if i.valid_to is None else when(i.valid_to),
                i.fact.attribute,
                value(i.fact.value),
                "disputed" if i.disputed else "",
                i.fact.id,
            )
            for i in found
        ],
        empty="nothing held about it",
    )


def history(found: Sequence[Change]) -> None:
    """Print what happened, in the order in which it did."""
    print_table(
        ("TX", "WHEN", "WHO", "WHAT", "VALUE", "THEN", "REASON", "FACT"),
        [
            (c.tx, when(c.at), c.actor, c.kind, value(c.value), c.status, "; ".join(filter(None, (c.reason, c.detail))) or None, c.fact)
            for c in found
        ],
        empty="nothing happened to it",
    )  # fmt: skip


def diff(found: Diff) -> None:
    """Print what came to hold and what ceased."""
    rows = [("-", f.subject, f.attribute, value(f.value), f.id) for f in found.removed]
    rows += [("+", f.subject, f.attribute, value(f.value), f.id) for f in found.added]
    rows.sort(key=lambda row: (row[1], row[2], row[0] == "+"))
    print_table(("", "SUBJECT", "ATTRIBUTE", "VALUE", "FACT"), rows, empty="nothing changed")


def conflicts(found: Sequence[ConflictSet]) -> None:
    """Print conflicts, a line for each fact of them."""
    print_table(
        ("CONFLICT", "SUBJECT", "ATTRIBUTE", "VALUE", "ON WHOSE WORD", "FACT", "STATUS"),
        [
            (c.id, c.subject, c.attribute, value(f.value), f.authority, f.id, c.status)
            for c in found
            for f in c.members
        ],
        empty="no conflict",
    )
    if found:
        _notes("decide: torpor memory resolve CONFLICT FACT|both")


def effects(found: Sequence[Effect]) -> None:
    """Print what was done to the outside world."""
    print_table(
        ("KEY", "WHAT", "OUTCOME", "WHEN", "BY"),
        [(e.key, short(e.what), e.outcome, when(e.at), e.by) for e in found],
        empty="no effect was noted",
    )


def plan(found: Plan) -> None:
    """Print what consolidation did or would do."""
    print_table(
        ("ACTION", "SUBJECT", "ATTRIBUTE", "VALUE", "QUOTE", "DETAIL"),
        [
            (i.action, i.subject, i.attribute, value(i.value), short(i.quote), i.detail or None)
            for i in found.items
        ],
        empty="nothing new in what was recorded",
    )
    read = f"{len(found.episodes)} episodes read by {found.extractor}"
    if found.tx is None:
        _notes(f"{read}; nothing was written")
    else:
        _notes(f"{read}; undo: torpor memory revert {found.tx}")


def done(found: Done) -> None:
    """Print what a change did."""
    facts_: dict[str, object] = {"transaction": found.tx, "changed": ", ".join(found.changed)}
    for name in ("suspended", "revived", "skipped"):
        ids = getattr(found, name)
        if ids:
            facts_[name] = ", ".join(ids)
    print_facts(facts_)


def receipt(found: Receipt) -> None:
    """Print the receipt of an erasure."""
    counts = ", ".join(f"{n} {table}" for table, n in found.counts.items() if n)
    if found.dry_run:
        print_facts({"would erase": counts or "nothing"})
        return
    facts_: dict[str, object] = {
        "receipt": found.id,
        "erased": counts or "nothing: memory has nothing of it",
        "bytes left": found.bytes_left,
        "verified at": when(found.verified_at),
        "scanned bytes": found.scanned_bytes,
    }
    if found.exports_left:
        facts_["left in exports"] = found.exports_left
    print_facts(facts_)


def why_not(found: WhyNot) -> None:
    """Print why a fact was not recalled."""
    print_facts(
        {
            "fact": found.fact,
            "reason": found.reason,
            "detail": found.detail or None,
            "rank": found.rank,
            "score": f"{found.score:.2f}",
            "replaced by": found.replaced_by,
        }
    )


def explain_fact(found: FactExplanation) -> None:
    """Print why a fact is held."""
    facts([found.fact])
    print()
    print_table(
        ("WORDS", "FROM", "WHEN", "RELATION", "READ BY", "EPISODE"),
        [
            (short(q.text), q.source_kind, when(q.occurred_at), q.relation + ("" if q.live else " (gone)"), q.extractor or None, q.episode)
            for q in found.evidence
        ],
        empty=f"it stands on the word of {found.actor}",
    )  # fmt: skip
    for link in found.chain:
        _notes(f"{link.new} took the place of {link.old} in {link.tx} ({link.rule}) {link.reason}")
    if found.derived_from:
        _notes(f"made from: {', '.join(found.derived_from)}")
    _notes(f"by {found.actor}{': ' + found.reason if found.reason else ''}")


def explain_recall(found: Explanation) -> None:
    """Print what a recall looked at, and what became of each."""
    print_facts(
        {
            "query": found.query,
            "at": when(found.at),
            "weights": ", ".join(f"{k} {v:g}" for k, v in found.weights.items()),
            "model": found.model or "none",
            "abstained": found.abstained,
        }
    )
    print()
    print_table(
        ("RANK", "GIVEN", "KIND", "SCORE", "BM25", "DENSE", "NEIGHBOUR", "ID"),
        [
            (c.rank, "yes" if c.injected else c.dropped_because, c.kind, f"{c.score:.2f}", f"{c.bm25:.2f}", f"{c.dense:.2f}", f"{c.neighbour:.2f}", c.id)
            for c in found.considered
        ],
        empty="it looked at nothing",
    )  # fmt: skip
    for told in found.facts:
        print()
        explain_fact(told)
