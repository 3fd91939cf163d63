"""goss's matchers, one by one."""

from __future__ import annotations

import asyncio

import pytest

from torpor.recovery.checks.facts import Unclear
from torpor.recovery.checks.matcher_file import parse_matcher
from torpor.recovery.checks.matchers import Output, Value, ValueKind
from torpor.recovery.checks.regexes import search
from torpor.recovery.checks.yamltree import read_tree

TEXT = Output("one fish\ntwo !fish\nred Fish 42\n")


def matches(text: str, kind: ValueKind, found: Value) -> bool:
    matcher = parse_matcher(read_tree(f"m: {text}", source="t").mapping()["m"], kind)
    assert matcher.words
    return asyncio.run(matcher.match(found, search))


@pytest.mark.parametrize(
    ("text", "kind", "found", "is_match"),
    [
        ("true", "flag", True, True),
        ("true", "flag", False, False),
        ("0", "whole", 0, True),
        ("0", "whole", 1, False),
        ("{gt: 3}", "whole", 4, True),
        ("{gt: 3}", "whole", 3, False),
        ("{le: 3}", "text", "3", True),
        ("{lt: 3}", "text", "many", False),
        ('"0644"', "text", "0644", True),
        ("0644", "text", "0644", True),
        ("{or: [a, b]}", "text", "b", True),
        ("{and: [{have-prefix: a}, {have-suffix: z}]}", "text", "a-z", True),
        ("{not: a}", "text", "a", False),
        ("{match-regexp: '^a+$'}", "text", "aaa", True),
        ("{contain-substring: b}", "text", "abc", True),
        ("[a, b]", "list", ("b", "c", "a"), True),
        ("[a, a]", "list", ("a", "b"), False),
        ("a", "list", ("a", "b"), True),
        ("{consist-of: [{have-prefix: m}, foo]}", "list", ("foo", "moo"), True),
        ("{consist-of: [foo]}", "list", ("foo", "moo"), False),
        ("{contain-elements: [{have-prefix: f}, foo]}", "list", ("foo", "fee"), True),
        ("{contain-element: {have-suffix: o}}", "list", ("foo", "fee"), True),
        ("{equal: [a, b]}", "list", ("a", "b"), True),
        ("{equal: [b, a]}", "list", ("a", "b"), False),
        ("{have-len: 3}", "output", TEXT, True),
        ("{have-len: 2}", "list", ("a", "b"), True),
        ("[one, two]", "output", TEXT, True),
        ("[one, '!three']", "output", TEXT, True),
        ("['!one']", "output", TEXT, False),
        ("['\\!fish']", "output", TEXT, True),
        ("['/[Ff]ish \\d+/']", "output", TEXT, True),
        ("['!/fish$/']", "output", TEXT, False),
        ("[/^fish/]", "output", TEXT, False),
        ("one", "output", TEXT, True),
        ("''", "output", TEXT, False),
        ("''", "output", Output(""), True),
        ("[]", "output", TEXT, True),
        ("{contain-substring: \"fish\\ntwo\"}", "output", TEXT, True),
        ("{equal: ok}", "output", Output("ok\n"), True),
        ("{not: {contain-element: {have-prefix: two}}}", "output", TEXT, False),
    ],
)  # fmt: skip
def test_matchers(text: str, kind: ValueKind, found: Value, is_match: bool) -> None:
    assert matches(text, kind, found) is is_match


def test_what_holds_with_more_output() -> None:
    def holds(text: str) -> bool:
        return parse_matcher(
            read_tree(f"m: {text}", source="t").mapping()["m"], "output"
        ).holds_with_more

    assert holds("[a, /b/]")
    assert not holds("[a, '!b']")
    assert not holds("{have-len: 3}")
    assert not holds("{equal: a}")


def test_a_careless_pattern_does_not_hold_up_the_daemon() -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.02)
                ticks += 1

        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(tick())
            with pytest.raises(Unclear, match="took longer than"):
                await search("(a+)+$", ["a" * 5000 + "b"])
            ticking.cancel()
        assert ticks > 20
        return loop.time() - began

    assert asyncio.run(run()) < 30
