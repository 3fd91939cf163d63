"""Reads the keys of a checks file that have a shape of their own, resource by resource."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torpor.base.near import meant
from torpor.model_inventory import KINDS as INVENTORY_KINDS
from torpor.model_inventory_rules import RULES
from torpor.recovery.checks.kinds import FILETYPES
from torpor.recovery.checks.matcher_file import parse_matcher, pattern_of
from torpor.recovery.checks.matchers import Matcher, ValueKind
from torpor.recovery.checks.yamltree import Node

_METHOD = re.compile(r"[A-Z]{1,16}")
_MODE = re.compile(r"0?[0-7]{3,4}")
_PORT = re.compile(r"(tcp|tcp6|udp|udp6):([0-9]{1,5})")


def choice(node: Node, known: tuple[str, ...]) -> str:
    """Return a text that is one of `known`."""
    found = node.string()
    if found not in known:
        raise node.mistaken(f"one of {', '.join(known)}")
    return found


Special = Callable[[Node, dict[str, Node], str, dict[str, Matcher], dict[str, Any]], None]


def inventory_kind(node: Node, name: str) -> None:
    """Refuse a kind that no inventory has; `KIND.FIELD` is one field of a kind."""
    kind = name.partition(".")[0]
    if kind not in INVENTORY_KINDS:
        raise node.name_place.wrong(
            f"there is no kind {kind!r} in an inventory",
            hint=meant(kind, INVENTORY_KINDS) or f"one of {', '.join(INVENTORY_KINDS)}",
        )


def nothing_special(
    _node: Node,
    _entry: dict[str, Node],
    _name: str,
    _wants: dict[str, Matcher],
    _options: dict[str, Any],
) -> None:
    """Read nothing: the resource has no such keys."""
    return


def _file(
    _node: Node,
    entry: dict[str, Node],
    _name: str,
    wants: dict[str, Matcher],
    _options: dict[str, Any],
) -> None:
    if "contains" in wants:  # the name before goss 0.4
        if "contents" in wants:
            raise entry["contains"].place.wrong(
                "`contains` is the old name of `contents`; both are given"
            )
        wants["contents"] = wants.pop("contains")
    for attribute, check, wanted in (
        ("mode", _MODE.fullmatch, 'octal digits, such as "0644"'),
        ("filetype", FILETYPES.__contains__, f"one of {', '.join(FILETYPES)}"),
        ("sha256", re.compile(r"[0-9a-f]{64}").fullmatch, "64 hexadecimal digits"),
        ("md5", re.compile(r"[0-9a-f]{32}").fullmatch, "32 hexadecimal digits"),
    ):
        matcher = wants.get(attribute)
        if matcher is not None and matcher.operator == "equal" and not check(str(matcher.value)):
            raise entry[attribute].mistaken(wanted)
    if "mode" in wants and wants["mode"].operator == "equal":
        wants["mode"] = Matcher("equal", f"{int(str(wants['mode'].value), 8):04o}")


def _port(
    node: Node,
    _entry: dict[str, Node],
    name: str,
    _wants: dict[str, Matcher],
    options: dict[str, Any],
) -> None:
    target = options.get("target", name)
    found = _PORT.fullmatch(target)
    if found is None or not 0 < int(found[2]) < 65536:
        raise node.name_place.wrong(
            f"{target!r} is no port; wanted tcp, tcp6, udp or udp6, a colon and 1 to 65535",
            hint="tcp:22",
        )


def _service(
    node: Node,
    _entry: dict[str, Node],
    _name: str,
    wants: dict[str, Matcher],
    _options: dict[str, Any],
) -> None:
    if not wants:
        raise node.place.wrong(
            f"{node.place.path} wants nothing", hint="give one of enabled, running, restarts"
        )


def _http(
    node: Node,
    entry: dict[str, Node],
    name: str,
    _wants: dict[str, Matcher],
    options: dict[str, Any],
) -> None:
    target = options.get("target", name)
    if not target.startswith(("http://", "https://")):
        raise node.name_place.wrong(
            f"{target!r} is no URL", hint="it begins with http:// or https://"
        )
    if "method" in entry and _METHOD.fullmatch(options["method"]) is None:
        raise entry["method"].mistaken("an HTTP method in capitals, such as GET")
    for line in options.get("request-headers", ()):
        if re.fullmatch(r"[!#-'*+.0-9A-Z^-z|~-]+:[^\r\n]*", line) is None:
            raise entry["request-headers"].mistaken('headers such as "Accept: text/html"')


def _sqlite(
    _node: Node,
    entry: dict[str, Node],
    _name: str,
    wants: dict[str, Matcher],
    options: dict[str, Any],
) -> None:
    tables = (
        entry["min-rows"].mapping("tables with their least rows") if "min-rows" in entry else {}
    )
    for table, node in tables.items():
        wants[f"rows of {table}"] = Matcher("ge", node.whole(0, 1 << 62))
    queries = entry["query"].mapping("SQL with what it has to give") if "query" in entry else {}
    for sql, node in queries.items():
        nature: ValueKind = (
            "whole"
            if isinstance(node.value, int)
            else "list"
            if isinstance(node.value, list)
            else "text"
        )
        wants[f"query {sql}"] = parse_matcher(node, nature)
    options["tables"], options["queries"] = tuple(tables), tuple(queries)
    if options.get("write-canary"):
        wants["write-canary"] = Matcher("equal", True)


def _inventory(
    node: Node,
    entry: dict[str, Node],
    name: str,
    _wants: dict[str, Matcher],
    options: dict[str, Any],
) -> None:
    inventory_kind(node, name)
    if "rule" not in entry:
        raise node.place.wrong(f"{node.place.path} has no rule", hint=f"one of {', '.join(RULES)}")
    options["rule"] = choice(entry["rule"], RULES)


def _turn(
    _node: Node,
    entry: dict[str, Node],
    _name: str,
    _wants: dict[str, Matcher],
    options: dict[str, Any],
) -> None:
    options["has_timeout"] = bool({"timeout", "timeoutSeconds"} & set(entry))
    if "outage" in entry:
        outage = entry["outage"].only(("exit-status", "output"))
        if "exit-status" in outage:
            given = outage["exit-status"]
            codes = given.items() if isinstance(given.value, list) else [given]
            options["outage-exit-codes"] = tuple(code.whole(1, 255) for code in codes)
        if "output" in outage:
            patterns = outage["output"].strings()
            options["outage-patterns"] = tuple(
                pattern_of(text, outage["output"]) for text in patterns
            )
    if "control" in entry:
        control = entry["control"].only(("command", "http"))
        if len(control) != 1:
            raise entry["control"].mistaken("exactly one of command and http")
        ((name, node),) = control.items()
        if name == "http" and not node.string().startswith(("http://", "https://")):
            raise node.mistaken("a URL")
        options[f"control-{name}"] = node.string()


SPECIAL: dict[str, Special] = {
    "file": _file,
    "port": _port,
    "service": _service,
    "http": _http,
    "sqlite": _sqlite,
    "inventory": _inventory,
    "turn": _turn,
}
