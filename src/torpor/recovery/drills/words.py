"""The evidence of a drill as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from torpor.recovery.changes.words import visible

_WIDTH = 100
_HOW = {"ram": "with its memory", "cold": "from its disk alone"}
_SAID = {"pass": "pass", "fail": "FAIL", "inconclusive": "unclear", "nothing": "-"}


def text(evidence: Mapping[str, Any]) -> str:
    """Return evidence as text of up to 100 columns."""
    return "\n".join(_lines(evidence)) + "\n"


def _lines(evidence: Mapping[str, Any]) -> Iterator[str]:
    snapshot = evidence["snapshot"]
    yield from _wrapped(evidence["sentence"], "")
    yield ""
    yield f"drill     {evidence['id']}"
    yield f"snapshot  {snapshot.get('id', '')}  {visible(str(snapshot.get('label') or ''))}".rstrip()
    if evidence["sandbox_id"]:
        yield f"sandbox   {evidence['sandbox_id']} ({snapshot['choice']})"
    age = evidence["data_age_seconds"]
    if age is not None:
        yield f"age       {_age(age)}: what it has done since would be lost"
    yield f"begun     {evidence['started_at'][:19].replace('T', ' ')} UTC"
    yield f"ended     {evidence['ended_at'][:19].replace('T', ' ')} UTC"
    if evidence["checks"]:
        yield f"checks    {visible(evidence['checks']['source'])}"
    for boot in evidence["boots"]:
        yield from _boot(boot)
    for title, found in (
        ("Damaged", evidence["files"]["damaged"]),
        ("Interrupted", evidence["interrupted"]),
        ("Left behind", evidence["left_behind"]),
    ):
        if found:
            yield from ("", f"{title}:")
            for item in found:
                yield from _wrapped(str(item), "  ")


def _boot(boot: Mapping[str, Any]) -> Iterator[str]:
    took = boot.get("recovery_ms")  # there is none when it was not tried any more
    yield ""
    if not took or not took["machine"]:
        yield f"Restored {_HOW[boot['memory']]}: it was not looked at"
    else:
        what = "looking at it was broken off" if boot["boot_mode"] is None else "all was looked at"
        yield (
            f"Restored {_HOW[boot['memory']]}: it answered after {took['machine'] / 1000:.1f} s, "
            f"and {what} after {took['checked'] / 1000:.1f} s"
        )
    for point in boot["points"]:
        said = f"  {_SAID[point['outcome']]:<8} {point['title']}: {point['why']}"
        yield from _wrapped(said, " " * 11, first="")
    if boot["let_go_for_checks"]:
        names = ", ".join(boot["let_go_for_checks"])
        yield from _wrapped(f"           ({names} ran for the checks, after all else)", " " * 11)
    for note in boot["notes"]:
        yield from _wrapped(f"  note     {note}", " " * 11, first="")


def _wrapped(words: str, indent: str, *, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        visible(words),
        _WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        drop_whitespace=True,
    ) or [""]


def _age(seconds: int) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"
