"""Reads a checks file. Every complaint begins with `source:line:column` and says what was wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from torpor.errors import LimitExceeded
from torpor.model_checks import Group
from torpor.model_inventory_rules import RULES
from torpor.recovery.checks.kinds import COMMON, KINDS, TIMINGS, Kind
from torpor.recovery.checks.matcher_file import parse_matcher
from torpor.recovery.checks.matchers import Matcher
from torpor.recovery.checks.plan import CHECKS_MOST, Check, CheckPlan, Timing
from torpor.recovery.checks.special import SPECIAL, choice, inventory_kind, nothing_special
from torpor.recovery.checks.yamltree import Node, read_tree

_GROUPS: tuple[Group, ...] = ("required", "wanted")
_TOP = (*_GROUPS, "defaults", "folders")
_TIMING_BOUNDS = {
    "initialDelaySeconds": (0, 3600),
    "periodSeconds": (0, 3600),
    "timeoutSeconds": (0.1, 3600),
    "failureThreshold": (1, 100),
    "successThreshold": (1, 100),
}
_SLOW = {"turn": 120.0, "inventory": 60.0}
"""Seconds for one attempt of kinds that take long, whatever `defaults` says."""
_PATHS = ("file", "sqlite")


def parse_checks(text: str, *, source: str) -> CheckPlan:
    """Read a checks file.

    Args:
        text: YAML (JSON is YAML too).
        source: the file's name, for messages and for the report.

    Raises:
        InvalidRequest: it is malformed, or has a key or value that is not known; the message begins with
            `source:line:column`, facts have source, line, column and key.
        LimitExceeded: it is over 256 KiB or has more than 500 checks.
    """
    root = read_tree(text, source=source)
    _check_groups(root)
    top = root.only(_TOP)
    timing = _timing(top["defaults"], Timing()) if "defaults" in top else Timing()
    checks = [
        check for group in _GROUPS if group in top for check in _group(top[group], group, timing)
    ]
    folders = top["folders"].flag() if "folders" in top else True
    if not checks and not ("folders" in top and folders):
        raise root.place.wrong(
            "there is no check in it; wanted `required` or `wanted` with resources below",
            hint="required: {file: {/etc/hostname: {exists: true}}}",
        )
    if len(checks) > CHECKS_MOST:
        raise LimitExceeded(
            f"{source} has {len(checks)} checks; at most {CHECKS_MOST} are wanted", source=source
        )
    return CheckPlan(source=source, text=text, checks=tuple(checks), folders=folders, timing=timing)


def _check_groups(root: Node) -> None:
    """Refuse a file of goss's, whose resources stand at the top, with a word on where they belong here."""
    for name in root.mapping():
        if name in KINDS and root.keys is not None:
            raise root.keys[name].wrong(
                f"{name!r} stands at the top of the file",
                hint=f"put it below `required`, which decides, or `wanted`, which warns: required: {{{name}: …}}",
            )


def _group(node: Node, group: Group, timing: Timing) -> Iterator[Check]:
    if node.value is None:
        return
    for kind, entries in node.only(KINDS).items():
        if entries.value is None:
            continue
        for name, entry in entries.mapping("a mapping of names to attributes").items():
            yield _check(entry, group, kind, name, timing)


def _check(node: Node, group: Group, kind_name: str, name: str, timing: Timing) -> Check:
    kind = KINDS[kind_name]
    if kind_name in _SLOW:
        timing = dataclasses.replace(timing, timeout_seconds=_SLOW[kind_name])
    if kind_name == "inventory" and not isinstance(node.value, dict):
        inventory_kind(node, name)
        rule = choice(node, RULES)  # `skills: equal` is short for `skills: {rule: equal}`
        return _made(node, group, kind_name, name, timing, {}, {"rule": rule})
    known = {
        *kind.attributes,
        *COMMON,
        *TIMINGS,
        *kind.texts,
        *kind.flags,
        *kind.lists,
        *kind.special,
    }
    known |= {kind.target} if kind.target else set()
    known |= {"timeout"} if kind.has_timeout else set()
    entry = node.only(known) if node.value is not None else {}
    own = _timing_of(entry, timing)
    options = _options(kind, entry)
    wants = {}
    for attribute, nature in kind.attributes.items():
        if attribute in entry:
            wants[attribute] = parse_matcher(entry[attribute], nature)
        elif attribute in kind.defaults and not options.get("nagios"):
            wanted = kind.defaults[attribute]
            assert isinstance(wanted, (bool, int))
            wants[attribute] = Matcher("equal", wanted)
    SPECIAL.get(kind_name, nothing_special)(node, entry, name, wants, options)
    made = _made(node, group, kind_name, name, own, wants, options)
    return dataclasses.replace(
        made,
        title=entry["title"].string() if "title" in entry else None,
        skip=entry["skip"].flag() if "skip" in entry else False,
    )


def _made(
    node: Node, group: Group, kind: str, name: str, timing: Timing,
    wants: dict[str, Matcher], options: dict[str, Any],
) -> Check:  # fmt: skip
    target = options.get("target", name)
    if not name or not target or "\0" in target:
        raise node.name_place.wrong(f"{node.place.path} has an empty name or one with a NUL in it")
    if kind in _PATHS and not target.startswith("/"):
        raise node.name_place.wrong(
            f"{node.place.path}: {target!r} is no absolute path", hint=f"did you mean /{target}?"
        )
    return Check(
        group=group, kind=kind, name=name, wants=wants, options=options, timing=timing,
        line=node.place.line,
    )  # fmt: skip


def _options(kind: Kind, entry: dict[str, Node]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if kind.target in entry:
        found["target"] = entry[kind.target].string()
    readers: tuple[tuple[tuple[str, ...], Callable[[Node], Any]], ...] = (
        (kind.texts, Node.string),
        (kind.flags, Node.flag),
        (kind.lists, Node.strings),
    )
    for names, read in readers:
        found |= {name: read(entry[name]) for name in names if name in entry}
    return found


def _timing(node: Node, base: Timing) -> Timing:
    return _timing_of(node.only(TIMINGS), base)


def _timing_of(entry: dict[str, Node], base: Timing) -> Timing:
    found: dict[str, float | int] = {}
    for name, field in TIMINGS.items():
        if name in entry:
            least, most = _TIMING_BOUNDS[name]
            node = entry[name]
            is_count = name.endswith("Threshold")
            found[field] = (
                node.whole(int(least), int(most)) if is_count else node.number(least, most)
            )
    if "timeout" in entry:
        if "timeoutSeconds" in entry:
            raise entry["timeout"].place.wrong(
                "`timeout` (milliseconds) and `timeoutSeconds` are both given", hint="leave one out"
            )
        found["timeout_seconds"] = entry["timeout"].whole(1, 3_600_000) / 1000
    changed: Timing = dataclasses.replace(base, **found)  # type: ignore[arg-type]
    return changed
