"""A report as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_WIDTH = 100
_LISTED_MOST = 20


def text(report: Mapping[str, Any]) -> str:
    """Return a report as text of up to 100 columns; what came from the machine is indented."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    change = report["change"]
    yield from textwrap.wrap(visible(report["headline"]), _WIDTH)
    yield ""
    for name, value in _facts(report):
        if value:
            yield from _field(name, value)
    yield from _section("Why", report["verdict_reasons"])
    yield from _section("What was seen", report["evidence"])
    yield from _probes(report["probes"])
    yield from _section("Checks that pass", _first(report["passing"]))
    yield from _section("What differs in the machine", _differences(report))
    yield from _section("Warnings", report["warnings"])
    yield from _section("The last lines", report["log_lines"])
    yield from _steps(report["steps"])
    yield from _section(
        "Not undone" if change["state"] == "rolled_back" else "Cannot be undone",
        report["not_undone"],
    )
    if report["next"]:
        yield from ("", "What to do next:")
        for step in report["next"]:
            yield f"  {step['words']}:"
            yield f"      {step['command']}"


def _facts(report: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    change, snapshot = report["change"], report["snapshot"] or {}
    yield "sandbox", change["sandbox_id"]
    yield "by", change["author"]
    yield "target", change["target"]
    yield "command", change["command"]
    for name, time in (("begun", change["created_at"]), ("ended", change["ended_at"])):
        yield name, time and f"{time[:19].replace('T', ' ')} UTC"
    yield "before", f"{snapshot['id']}, {snapshot['consistency']}-consistent" if snapshot else None
    yield "cursor", report["cursor"]
    yield "left as", report["failed_state"]
    yield "now", report["put_back"]


def _field(name: str, value: str) -> Iterator[str]:
    first, *rest = textwrap.wrap(visible(value), _WIDTH - 10) or [""]
    yield f"{name:<10}{first}"
    for line in rest:
        yield f"{'':<10}{line}"


def _section(title: str, items: list[str]) -> Iterator[str]:
    if not items:
        return
    yield from ("", f"{title}:")
    for item in items:
        yield from textwrap.wrap(
            visible(item), _WIDTH, initial_indent="  - ", subsequent_indent="    "
        ) or ["  -"]


def _first(items: list[str]) -> list[str]:
    more = len(items) - _LISTED_MOST
    return [*items[:_LISTED_MOST], f"and {more} more"] if more > 0 else items


def _probes(probes: list[Mapping[str, Any]]) -> Iterator[str]:
    if not probes:
        return
    yield from ("", "Checks, before and after:")
    for probe in probes:
        yield f"  {visible(probe['name'])}"
        for when in ("before", "after"):
            side = probe[when]
            said = "not there" if side is None else f"{side['outcome']}: {side['reason']}"
            yield from textwrap.wrap(
                visible(said), _WIDTH, initial_indent=f"    {when:<7} ", subsequent_indent=" " * 12
            )


def _differences(report: Mapping[str, Any]) -> list[str]:
    inventory = report["inventory"] or {}
    return [*inventory.get("forbidden", []), *inventory.get("sentences", [])]


def _steps(steps: list[Mapping[str, Any]]) -> Iterator[str]:
    if not steps:
        return
    yield from ("", "Steps:")
    for step in steps:
        said = f"  {step['duration_ms'] / 1000:8.1f} s  {step['name']:<22} {step['outcome']}"
        yield from (
            textwrap.wrap(visible(said), _WIDTH, subsequent_indent=" " * 37, drop_whitespace=True)
            if len(said) > _WIDTH
            else [visible(said)]
        )


def visible(value: str) -> str:
    """Return text with control characters spelled out: what a machine says must not steer a terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in value
    )
